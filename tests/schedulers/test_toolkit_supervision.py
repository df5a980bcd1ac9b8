"""What is refused, warned of and hidden where the toolkit inside the job notifies and looks for hangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError
from shunter.runner import get_runner
from shunter.specs import AppDef, Resource, Role

HOOK = "https://hooks.example.com/services/T0/ended"
CFG: dict[str, dict[str, Any]] = {
    "kubernetes": {"image_repo": "reg/x"},
    "aws_batch": {"queue": "q", "image_repo": "reg/x"},
    "aws_sagemaker": {
        "role": "arn:aws:iam::123456789012:role/x",
        "instance_type": "ml.m5.large",
        "region": "us-east-1",
        "output_path": "s3://b/o",
    },
}
ALL = pytest.mark.parametrize("scheduler", CFG)


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with the script, which travels."""
    (tmp_path / "t.py").write_text("")
    monkeypatch.chdir(tmp_path)


def job(**fields: Any) -> AppDef:
    train = {"version": 1, "name": "t", "program": "t.py", **fields.pop("train", {})}
    role = Role("t", "alpine:3", entrypoint="python", args=["t.py"], resource=Resource(1, 0, 512), **fields)
    role.metadata["train"] = train
    return AppDef("t", [role])


def planned(scheduler: str, app: AppDef, **cfg: Any) -> Any:
    with get_runner("s") as runner:
        return runner.dryrun(app, scheduler, {**CFG[scheduler], **cfg})


@ALL
def test_jobs_without_the_toolkit_are_refused(scheduler: str) -> None:
    app = AppDef("t", [Role("t", "alpine:3", entrypoint="sh", args=["x"], resource=Resource(1, 0, 512))])
    with pytest.raises(
        ConfigError, match=f"hang_timeout: on {scheduler} this needs the toolkit .* role 't' runs without it"
    ):
        planned(scheduler, app, hang_timeout=30.0)


@ALL
def test_replicas_that_end_one_by_one_are_refused(scheduler: str) -> None:
    with pytest.raises(ConfigError, match="does not know how the others end"):
        planned(scheduler, job(num_replicas=2), notify=[HOOK])
    together = job(num_replicas=2, train={"distribution": {"kind": "torchrun", "processes_per_host": 1}})
    warned = planned(scheduler, together, notify=[HOOK]).warnings
    assert any("lets the job's first container send it" in text for text in warned)


@ALL
def test_a_target_in_no_variable_is_refused(scheduler: str) -> None:
    with pytest.raises(ConfigError, match="the job has no variable 'HOOK'"):
        planned(scheduler, job(), notify=["env:HOOK"])
    warned = planned(scheduler, job(env={"HOOK": HOOK}), notify=["env:HOOK"]).warnings
    assert not any("can read the URL" in text for text in warned)


def test_a_signing_secret_goes_only_where_others_do_not_read_it() -> None:
    request = planned("kubernetes", job(), notify=[HOOK], notify_secret="hush-hush-1").request
    in_secret = [each for each in request.manifests if each["kind"] == "Secret"]
    assert in_secret[0]["stringData"]["SHUNTER_NOTIFY_SECRET"] == "hush-hush-1"
    others = json.dumps([each for each in request.manifests if each["kind"] != "Secret"])
    assert "hush-hush-1" not in others
    assert HOOK not in others
    with pytest.raises(ConfigError, match="notify_secret would be in the job's variables"):
        planned("aws_batch", job(), notify=[HOOK], notify_secret="hush-hush-1")


@pytest.mark.parametrize("scheduler", ["aws_batch", "aws_sagemaker"])
def test_the_secret_of_the_environment_is_not_sent(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHUNTER_NOTIFY_SECRET", "hush-hush-1")
    info = planned(scheduler, job(), notify=[HOOK])
    assert "hush-hush-1" not in repr(vars(info.request))
    assert any("are not signed" in text for text in info.warnings)


def test_only_the_last_attempt_is_the_end() -> None:
    rules = {"oom": "2", "exception": "0", "other": "2", "node": "2", "preempted": "2"}
    request = planned("kubernetes", job(), notify=[HOOK], retry=rules).request
    asked = json.loads(request.manifests[0]["stringData"]["SHUNTER_NOTIFY"])
    assert asked["again"]["attempts"] == 3
    assert ["1", False] in asked["again"]["codes"]
    assert request.resource["spec"]["backoffLimitPerIndex"] == 2
    request = planned("aws_batch", job(), notify=[HOOK], retry={"oom": "2", "exception": "0"}).request
    pairs = request.submission["containerOverrides"]["environment"]
    asked = json.loads(next(each["value"] for each in pairs if each["name"] == "SHUNTER_NOTIFY"))
    assert asked["again"] == {
        "attempts": 3,
        "variable": "AWS_BATCH_JOB_ATTEMPT",
        "first": 1,
        "codes": [["0", False], ["137", True], ["*", False]],
    }
    with pytest.raises(ConfigError, match="a Volcano job does not know whether it is the last attempt"):
        planned("kubernetes", job(max_retries=1), notify=[HOOK], kind="volcano")
