"""The commands of containers, run by real shells with a ``resourceconfig.json`` of each shape."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shunter.schedulers.aws_sagemaker_scheduler.container_setup import (
    LONGEST_ITEM,
    MOST_ITEMS,
    REPLICA,
    PlannedCode,
    RoleCommand,
    container_command,
    without_secrets,
)
from shunter.schedulers.aws_sagemaker_scheduler.training_script import as_arguments

SHELLS = [
    shell for shell in (["dash"], ["bash", "--posix"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])
]
SHOW = (
    "import os, sys; print(ascii([sys.argv[1:], os.environ.get('TORCHX_REPLICA_IDX'),"
    " os.environ.get('TORCHX_RANK0_HOST'), os.environ.get('OWN'), os.getcwd()]))"
)
HOSTS = ["algo-1", "algo-10", "algo-11", "algo-2", "algo-3"]


def program(*arguments: str, **env: str) -> RoleCommand:
    return RoleCommand([sys.executable, "-c", SHOW, *arguments], env)


def run(
    shell: list[str],
    base: Path,
    config: object,
    programs: dict[str, RoleCommand],
    *,
    code: PlannedCode | None = None,
    several: bool = True,
    indent: int | None = None,
) -> list[object]:
    """Run a container's command, and return what the program sees."""
    place = base / "input/config"
    place.mkdir(parents=True, exist_ok=True)
    (place / "resourceconfig.json").write_text(json.dumps(config, indent=indent))
    entrypoint, arguments = container_command(programs, code, several=several)
    items = [*entrypoint, *arguments]
    assert max(map(len, items)) <= LONGEST_ITEM
    assert len(entrypoint) <= MOST_ITEMS
    assert len(arguments) <= MOST_ITEMS
    assert not set("\0\n\r\u2028\u0085") & set("".join(items))
    words = [*shell, *entrypoint[1:], *arguments] if entrypoint[0] == "/bin/sh" else items
    env = {
        "PATH": os.environ["PATH"],
        "SAGEMAKER_BASE_DIR": str(base),
        "LC_ALL": "C.UTF-8",
        "PYTHONUTF8": "1",
    }
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result: list[object] = __import__("ast").literal_eval(done.stdout)
    return result


def homogeneous(current: str) -> dict[str, object]:
    return {"current_host": current, "hosts": HOSTS, "network_interface_name": "eth0"}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("current", "index", "rank0"),
    [("algo-1", "0", "localhost"), ("algo-2", "1", "algo-1"), ("algo-10", "3", "algo-1")],
)
def test_replicas_know_their_place(
    shell: list[str], tmp_path: Path, indent: int | None, current: str, index: str, rank0: str
) -> None:
    groups = [{"instance_group_name": "homogeneousCluster", "instance_type": "ml.m5.large", "hosts": HOSTS}]
    real = {**homogeneous(current), "current_group_name": "homogeneousCluster", "instance_groups": groups}
    own = {"r": program(f"i={REPLICA}!", OWN=f"<{REPLICA}>")}
    for config in (homogeneous(current), real, dict(reversed(real.items()))):
        seen = run(shell, tmp_path, config, own, indent=indent)
        assert seen[:4] == [[f"i={index}!"], index, rank0, f"<{index}>"]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@pytest.mark.parametrize(
    ("current", "group", "seen"),
    [
        ("algo-2", "trainer", [["t", "0"], "0", "localhost"]),
        ("algo-3", "trainer", [["t", "1"], "1", "algo-2"]),
        ("algo-1", "ps", [["p"], "0", "algo-2"]),
    ],
)
def test_roles_are_groups(
    shell: list[str], tmp_path: Path, current: str, group: str, seen: list[object]
) -> None:
    config = {
        "current_group_name": group,
        "current_host": current,
        "hosts": ["algo-1", "algo-2", "algo-3"],
        "instance_groups": [
            {"instance_group_name": "ps", "instance_type": "x", "hosts": ["algo-1"]},
            {"hosts": ["algo-2", "algo-3"], "instance_type": "y", "instance_group_name": "trainer"},
        ],
    }
    programs = {"trainer": program("t", REPLICA), "ps": program("p", OWN="mine")}
    found = run(shell, tmp_path, config, programs)
    assert found[:3] == seen
    assert found[3] == ("mine" if group == "ps" else None)


TEXT = st.text(st.characters(blacklist_categories=("Cs",)).filter(lambda c: c != "\0"), max_size=30)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(arguments=st.lists(TEXT | st.just("x" * 700), max_size=6), own=TEXT)
def test_arguments_arrive_as_they_are(
    shell: list[str], tmp_path: Path, arguments: list[str], own: str
) -> None:
    seen = run(shell, tmp_path, homogeneous("algo-2"), {"r": program(*arguments, OWN=own)})
    assert seen[0] == arguments
    assert seen[3] == own


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_code_is_unpacked_and_entered(shell: list[str], tmp_path: Path) -> None:
    channel = tmp_path / "input/data/shunter_code"
    channel.mkdir(parents=True)
    (tmp_path / "hello.txt").write_text("hello")
    with tarfile.open(channel / "sourcedir.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "hello.txt", "sub/hello.txt")
    seen = run(shell, tmp_path, homogeneous("algo-1"), {"r": program()}, code=PlannedCode(), several=False)
    assert seen[1:3] == ["0", "localhost"]
    assert seen[4] == str(tmp_path / "code")
    assert (tmp_path / "code/sub/hello.txt").read_text() == "hello"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), JSON, max_size=4))
def test_hyperparameters_become_the_arguments_that_the_toolkit_makes_of_them(values: dict[str, Any]) -> None:
    from shunter_toolkit.mapping import to_cmd_args

    assert as_arguments(values) == to_cmd_args(values)


@pytest.mark.parametrize("before", range(0, LONGEST_ITEM, 24))
def test_secrets_are_hidden_wherever_the_script_is_cut(before: int) -> None:
    words = ["t.py", "x" * before, "--password", "hunter2 it's " + "hunter2" * 9, "--lr", "0.1"]
    entrypoint, arguments = container_command({"a": RoleCommand(words)}, PlannedCode(), several=False)
    algorithm = {"ContainerEntrypoint": entrypoint, "ContainerArguments": arguments}
    shown = without_secrets({"AlgorithmSpecification": algorithm})["AlgorithmSpecification"]
    assert shown["ContainerEntrypoint"] == entrypoint
    script = "".join(shown["ContainerArguments"])
    assert "unter2" not in script
    assert "--password '<redacted:password>' --lr 0.1;" in script
