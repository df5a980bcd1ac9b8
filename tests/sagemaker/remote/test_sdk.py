"""Our requests against those that the SageMaker SDK's Estimator makes of the same options, field by field."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shunter.schedulers.aws_sagemaker_scheduler import names
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import PlannedCode
from shunter.schedulers.aws_sagemaker_scheduler.options import QUEUE_OPTIONS, AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.request import check_request, make_job, settle
from shunter.specs.app import AppDef, Role
from tests import backends
from tests.sagemaker.remote.cases import CASES, ROLE, Case

ACCOUNT = "123456789012"
BUCKET = re.compile(r"s3://[^/\"]+/")
#: What this version of the SDK has no argument for.
NOT_OF_THE_SDK = (
    "batch_queue",
    *QUEUE_OPTIONS,
    "retry",
    "notify",
    "notify_secret",
    "hang_timeout",
    "on_hang",
    "instance_preferences",
    "instance_placement_config",
    "mlflow_config",
    "model_package_config",
)
SCRIPT = Path(__file__).with_name("sdk_requests.py")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The SDK's requests by case, made by one process in the SDK's environment."""
    python = backends.sagemaker_sdk()
    source = tmp_path_factory.mktemp("code")
    (source / "train.py").write_text("print(1)\n")
    (source / "run.sh").write_text("echo 1\n")
    words = json.dumps([_sdk_arguments(case, str(source)) for case in CASES])
    done = subprocess.run([python, str(SCRIPT)], input=words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.rpartition("@@@")[2])
    return dict(zip((case.name for case in CASES), answers, strict=True))


def _sdk_arguments(case: Case, source: str) -> dict[str, Any]:
    kwargs = {
        "role": ROLE,
        "instance_type": "ml.c5.xlarge",
        "instance_count": 1,
        "entry_point": case.program,
        "source_dir": source,
        "image_uri": "registry/image:1",
        **case.options,
        **case.sdk,
    }
    if case.framework:
        kwargs |= {"framework_version": "2.1.0", "py_version": "py310"}
    if case.framework.endswith("compiler"):
        kwargs |= {"framework_version": "1.13.1", "py_version": "py39"}
    if case.framework == "TensorFlow":
        kwargs |= {"framework_version": "2.12.0", "model_dir": False}
    for name in (*case.without, "channels"):
        kwargs.pop(name, None)
    return {"kwargs": kwargs, "inputs": case.inputs, "region": case.region, "framework": case.framework}


def ours(case: Case) -> dict[str, Any]:
    options = {"role": ROLE, "instance_type": "ml.c5.xlarge", "toolkit": False, **case.options}
    role = Role("train", "registry/image:1", entrypoint="python", args=["train.py", *case.arguments])
    if case.train or case.program != "train.py":
        role.metadata["train"] = {"program": case.program, **case.train}
    source = str(options.get("source_dir", ""))
    code = PlannedCode(archive=source) if source.startswith("s3://") else PlannedCode("c" * 40)
    job = make_job(AppDef("train", [role]), AWSSageMakerOpts(**options), code=code, region=case.region)
    request = settle(job.job_def, {names.ACCOUNT: ACCOUNT})
    check_request(request)
    return request


def normal(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request without what differs from job to job (names of job and code), and our marks."""
    text = json.dumps(request)
    text = text.replace(request["TrainingJobName"], "<job>")
    text = text.replace("<job>/source/sourcedir.tar.gz", "<code>")
    text = re.sub(r"shunter/code/[^/]+/sourcedir.tar.gz", "<code>", text)
    result: dict[str, Any] = json.loads(text)
    result.get("Environment", {}).pop("TORCHX_ROLE_NAME", None)
    if not result.get("Environment"):
        result.pop("Environment", None)
    tags = [tag for tag in result.pop("Tags", []) if not tag["Key"].startswith("shunter/")]
    if tags:
        result["Tags"] = tags
    return result


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {k: v for key, item in value.items() for k, v in flat(item, f"{path}.{key}").items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        named = {str(item.get("ChannelName") or item.get("Key") or i): item for i, item in enumerate(value)}
        return {k: v for key, item in named.items() for k, v in flat(item, f"{path}[{key}]").items()}
    return {path.lstrip("."): value}


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    first, second = flat(one), flat(other)
    return {
        path: (first.get(path), second.get(path))
        for path in sorted(first.keys() | second.keys())
        if first.get(path) != second.get(path)
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_requests_are_those_of_the_sdk(case: Case, theirs: dict[str, dict[str, Any]]) -> None:
    answer = theirs[case.name]
    assert "error" not in answer, answer
    found = differences(normal(ours(case)), normal(answer))
    assert set(found) == set(case.differs), found


def test_every_option_of_the_table_is_compared() -> None:
    import dataclasses

    # profile and region choose the account's endpoint; the rest is in tests of its own
    apart = {"profile", "region", "max_pending", "toolkit", "git_config", "dependencies"}
    apart |= set(NOT_OF_THE_SDK)
    compared = {name for case in CASES for name in case.options} | {"role", "instance_type"}
    assert {field.name for field in dataclasses.fields(AWSSageMakerOpts)} - compared == apart
    assert len(CASES) >= 40
