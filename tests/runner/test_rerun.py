from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError, InvalidRunConfigException, UnknownAppException
from shunter.runner import Runner
from shunter.specs import AppDef, BindMount, DeviceMount, Resource, RetryPolicy, Role, parse_app_handle
from shunter.specs.submission import Submission
from tests.runner.fake_scheduler import FakeScheduler


def job_of(fake: FakeScheduler, handle: str) -> dict[str, Any]:
    job = fake.job(parse_app_handle(handle).app_id)
    for role in job["roles"]:
        del role["env"]["TORCHX_JOB_ID"]
    for role in job["roles"]:
        role["args"] = [arg.replace(job["app_id"], "ID") for arg in role["args"]]
    return {key: value for key, value in job.items() if key not in ("app_id", "token")}


def test_a_job_is_repeated_exactly(
    runner: Runner, fake: FakeScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = Role(
        "r",
        "img",
        entrypoint="python",
        args=["train.py", "--out", "x/${app_id}", "$$HOME", "ünï"],
        env={"A": "a=b,c", "EMPTY": ""},
        num_replicas=3,
        min_replicas=2,
        max_retries=4,
        retry_policy=RetryPolicy.REPLICA,
        resource=Resource(1, 2, 3, {"a": 1}, {"b": 2}, {"c": "d"}),
        port_map={"http": 80},
        metadata={"k": [1, {"x": None}]},
        mounts=[BindMount("/a", "/b", True), DeviceMount("/dev/x", "/dev/y", "r")],
    )
    monkeypatch.chdir(tmp_path)
    first = runner.run(
        AppDef("exact", [role], {"m": "n"}), "fake", {"tags": ["x", "y"], "priority": 0, "fast": True}
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    second = runner.rerun(first)
    assert second != first
    assert job_of(fake, second) == job_of(fake, first)
    assert Path.cwd() == elsewhere
    old, new = runner.history.find(first), runner.history.find(second)
    assert old is not None
    assert new is not None
    assert (new.app, new.cfg, new.cwd) == (old.app, old.cfg, str(tmp_path))
    assert new.rerun_of == first
    third = runner.rerun(second)
    assert job_of(fake, third) == job_of(fake, first)


def test_options_can_be_replaced(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    first = runner.run(app, "fake", {"queue": "old", "priority": 3})
    job = job_of(fake, runner.rerun(first, cfg={"queue": "new"}))
    assert (job["cfg"]["queue"], job["cfg"]["priority"]) == ("new", 3)


def test_another_scheduler_starts_from_its_own_defaults(app: AppDef) -> None:
    factories = {"fake": FakeScheduler, "other": lambda session, **kw: FakeScheduler(session, "other")}
    with Runner("s", factories) as runner:
        first = runner.run(app, "fake", {"queue": "old", "priority": 3})
        second = runner.rerun(first, scheduler="other", cfg={"priority": 5})
        other = runner.scheduler("other")
        assert isinstance(other, FakeScheduler)
        cfg = job_of(other, second)["cfg"]
        assert second.startswith("other://")
        assert (cfg["queue"], cfg["priority"]) == ("default", 5)


def test_component_and_arguments_are_kept_for_the_record(runner: Runner, app: AppDef) -> None:
    submission = Submission(app=app, component="a.b", arguments=["x"], scheduler="fake", parent_run_id="p")
    first = runner.submit(submission)
    record = runner.history.find(runner.rerun(first))
    assert record is not None
    assert (record.component, record.component_args, record.parent_run_id) == ("a.b", ["x"], "p")


def test_a_secret_is_taken_from_the_environment_again(
    runner: Runner, fake: FakeScheduler, app: AppDef, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("MY_LOGIN", "l0gin-s3cret")
    secret = "hf_abcdefghijkl"
    monkeypatch.setenv("HF_TOKEN", secret)
    app.roles[0].env["HF_TOKEN"] = secret
    app.roles[1].args = ["--url", f"https://me:{secret}@host/x"]
    first = runner.run(app, "fake", {"login": "l0gin-s3cret"})
    runner.history.close()
    stored = b"".join(path.read_bytes() for path in (home / "state").rglob("*") if path.is_file())
    assert secret.encode() not in stored
    assert b"l0gin-s3cret" not in stored
    assert job_of(fake, runner.rerun(first)) == job_of(fake, first)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigError, match="HF_TOKEN is not set") as caught:
        runner.rerun(first)
    assert "export HF_TOKEN=..." in caught.value.hint
    assert len(fake.list()) == 2


def test_a_secret_without_a_name_cannot_be_recovered(
    runner: Runner, fake: FakeScheduler, app: AppDef
) -> None:
    app.roles[0].args = ["--password", "typed-by-hand", "ghp_0123456789abcdef"]
    first = runner.run(app, "fake", {"login": "typed"})
    with pytest.raises(
        ConfigError, match=r"SHUNTER_SECRET_LOGIN is not set.*one was given directly, without a name"
    ):
        runner.rerun(first)
    assert len(fake.list()) == 1


def test_a_secret_option_can_be_given_again(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    first = runner.run(app, "fake", {"login": "typed"})
    with pytest.raises(ConfigError):
        runner.rerun(first)
    assert job_of(fake, runner.rerun(first, cfg={"login": "again"}))["cfg"]["login"] == "again"


def test_what_cannot_be_repeated(
    runner: Runner, app: AppDef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownAppException, match="not in the history"):
        runner.rerun("fake://s/nope")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    handle = runner.run(app, "fake")
    monkeypatch.chdir(tmp_path)
    gone.rmdir()
    with pytest.raises(ConfigError, match=r"submitted from .*gone, which cannot be entered"):
        runner.rerun(handle)
    assert Path.cwd() == tmp_path
    gone.mkdir()
    with pytest.raises(InvalidRunConfigException):
        runner.rerun(handle, cfg={"nope": 1})
    assert Path.cwd() == tmp_path


def test_a_refused_job_can_be_repeated(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    from shunter.errors import BackendError

    fake.fail_schedule = BackendError("no")
    with pytest.raises(BackendError):
        runner.run(app, "fake")
    fake.fail_schedule = None
    (record,) = runner.history.rows()
    handle = runner.rerun(record.handle)
    assert os.path.exists(fake.directory / parse_app_handle(handle).app_id)


def test_the_definition_is_that_of_the_time(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    before = copy.deepcopy(app)
    first = runner.run(app, "fake")
    app.roles[0].args.append("changed")
    assert runner.describe(runner.rerun(first)) is not None
    record = runner.history.find(first)
    assert record is not None
    assert record.app["roles"][0]["args"] == before.roles[0].args


def test_the_code_that_a_job_had_is_shipped_again(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    first = runner.run(app, "fake", workspace="sub")
    second = runner.rerun(first)
    assert fake.shipped == ["sub", "@" + "f" * 64]
    third = runner.rerun(second, workspace="other")
    assert fake.shipped[2:] == ["other"]
    images = [role["image"] for role in fake.job(parse_app_handle(third).app_id)["roles"]]
    assert images == ["exact@sha256:1234"] * 2


def test_images_that_hold_the_code_are_used_again(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    first = runner.run(app, "fake", workspace="sub")
    fake.images.add("exact@sha256:1234")
    second = runner.rerun(first)
    assert fake.shipped == ["sub"]
    assert job_of(fake, second) == job_of(fake, first)
    record = runner.history.find(second)
    assert record is not None
    assert record.fingerprint == "f" * 64
    assert runner.rerun(second) != second  # which is known to hold code, too
    assert fake.shipped == ["sub"]


def test_dry_run_of_a_repetition_touches_nothing(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    first = runner.run(app, "fake", {"queue": "gpu"})
    info = runner.plan(runner.repeated(first, cfg={"fast": True}))
    assert (info.cfg["queue"], info.cfg["fast"]) == ("gpu", True)
    assert len(fake.list()) == len(runner.history.rows()) == 1
