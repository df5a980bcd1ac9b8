"""Programs are found again in the scripts that their containers run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.components.train import script
from shunter.components.utils import sh
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import (
    CodeInContainer,
    RoleCommand,
    container_command,
    read_command,
)
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler
from shunter.specs.macro_substitution import macros
from tests.sagemaker.remote.conftest import Cloud, wait_for
from tests.sagemaker.remote.test_jobs import options, submit

texts = st.text(
    st.one_of(st.sampled_from("ab'\"$;)( \n\r\u0085\u2028=*é"), st.characters(exclude_categories=["Cs"])),
    max_size=12,
).map(lambda text: text.replace("\0", ""))
names = st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True)
variables = st.dictionaries(st.from_regex(r"OWN_[A-Z]{1,4}", fullmatch=True), texts, max_size=3)
codes = st.sampled_from([None, CodeInContainer(), CodeInContainer("my code.tar.gz")])


@given(st.lists(texts, max_size=6), variables)
def test_a_script(words: list[str], env: dict[str, str]) -> None:
    entrypoint, arguments = container_command(
        {"role": RoleCommand(words, env, True)}, CodeInContainer(), several=True
    )
    assert read_command([*entrypoint, *arguments]) == {"": RoleCommand(words, env, True)}


@pytest.mark.slow
@given(st.dictionaries(names, st.lists(texts, min_size=1, max_size=4), min_size=2, max_size=4), variables)
def test_several_roles(roles: dict[str, list[str]], env: dict[str, str]) -> None:
    programs = {name: RoleCommand(words, env) for name, words in roles.items()}
    entrypoint, arguments = container_command(programs, None, several=True)
    wanted = {name: RoleCommand(words, env) for name, words in roles.items()}
    assert read_command([*entrypoint, *arguments]) == wanted


@pytest.mark.slow
def test_a_job_is_described_with_the_command_that_it_was_given(
    cloud: Cloud, scheduler: AWSSageMakerScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    arguments = ["--name", "it's $HOME", "--flag", "a\nb"]
    many = script(*arguments, script="train.py", image="i:1", num_replicas=2)
    few = sh("echo", f"{macros.replica_id} is here", image="i:1", num_replicas=2)
    hosts = script(script="train.py", image="i:1")
    for app, more, wanted in (
        (many, {}, ["train", "train.py", *arguments]),
        (few, {}, few.roles[0].args),
        (hosts, {"hyperparameters": {"lr": "0.1"}}, ["train", "train.py", "--lr", "0.1"]),
    ):
        app_id = submit(scheduler, app, options(cloud, **more))
        described = wait_for(scheduler, app_id)
        role = described.roles[0]
        assert [role.entrypoint, *role.args][-len(wanted) :] == wanted
