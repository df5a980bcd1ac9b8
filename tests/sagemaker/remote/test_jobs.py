"""Jobs from submission to results: S3, STS and IAM by moto, SageMaker and its logs by our own endpoint."""

from __future__ import annotations

import io
import json
import re
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shunter.components.dist import ddp  # noqa: F401 - a component that other tests use
from shunter.components.train import script
from shunter.components.utils import sh
from shunter.errors import ConfigError, UnknownAppException, UsageError
from shunter.runner.preparation import inject
from shunter.schedulers.api import Stream
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler
from shunter.specs.app import AppDef, Role
from shunter.specs.status import AppState
from tests.sagemaker.remote.conftest import Cloud, eventually, wait_for

SCRIPT = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--fast", action="store_true")
parser.add_argument("rest", nargs="*")
parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
parser.add_argument("--training", default=os.environ.get("SM_CHANNEL_TRAINING"))
parser.add_argument("--testing", default=os.environ.get("SM_CHANNEL_TESTING"))
args = parser.parse_args()
seen = {name: value for name, value in os.environ.items() if name.startswith(("SM_", "TORCHX"))}
seen["argv"] = sys.argv[1:]
seen["cwd"] = sorted(os.listdir("."))
for name in ("training", "testing"):
    place = getattr(args, name)
    if place:
        seen[name] = {file: open(os.path.join(place, file)).read() for file in sorted(os.listdir(place))}
with open(os.path.join(args.model_dir, "model.json"), "w") as file:
    json.dump(seen, file)
for step in range(3):
    print(f"step={step} loss={1 / (step + 1):.3f};", flush=True)
print("done", file=sys.stderr)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    (directory / "lib").mkdir(parents=True)
    (directory / "train.py").write_text(SCRIPT)
    (directory / "lib" / "helper.py").write_text("x = 1\n")
    (directory / ".shunterignore").write_text("*.big\n")
    (directory / "data.big").write_text("not for the job")
    monkeypatch.chdir(directory)
    return directory


def options(cloud: Cloud, **more: Any) -> dict[str, Any]:
    return {
        "role": cloud.role,
        "instance_type": "ml.m5.large",
        "output_path": f"s3://{cloud.bucket}/results",
        **more,
    }


def submit(scheduler: AWSSageMakerScheduler, app: AppDef, cfg: dict[str, Any], workspace: str = "") -> str:
    inject(app, scheduler.backend, scheduler.session_name)
    return scheduler.submit(app, cfg, workspace)


def model(cloud: Cloud, response: Any) -> dict[str, Any]:
    uri = response.metadata["model_artifacts"]
    content = cloud.read(uri.removeprefix(f"s3://{cloud.bucket}/"))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        file = archive.extractfile(next(name for name in archive.getnames() if name.endswith("model.json")))
        assert file is not None
        result: dict[str, Any] = json.load(file)
        return result


@pytest.mark.slow
def test_a_script_with_channels(cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path) -> None:
    cloud.put("data/training/a.csv", "1,2")
    testing = project.parent / "testing"
    testing.mkdir()
    (testing / "b.csv").write_text("3,4")
    app = script(
        "--epochs", "10", "--fast", "one", "it's two",
        script="train.py",
        image="image:1",
        channel={"training": f"s3://{cloud.bucket}/data/training", "testing": str(testing)},
        metric={"loss": None},
    )  # fmt: skip
    app_id = submit(scheduler, app, options(cloud))
    response = wait_for(scheduler, app_id)
    assert response.state == AppState.SUCCEEDED, response
    seen = model(cloud, response)
    assert seen["argv"] == ["--epochs", "10", "--fast", "one", "it's two"]
    assert json.loads(seen["SM_USER_ARGS"]) == seen["argv"]
    assert seen["training"] == {"a.csv": "1,2"}
    assert seen["testing"] == {"b.csv": "3,4"}
    assert json.loads(seen["SM_CHANNELS"]) == ["testing", "training"]
    assert json.loads(seen["SM_HPS"]) == {}
    assert seen["SM_USER_ENTRY_POINT"] == "train.py"
    assert seen["TORCHX_JOB_ID"] == f"aws_sagemaker://test/{app_id}"
    assert seen["cwd"] == [".shunterignore", "lib", "train.py"]
    assert response.metadata["metric:loss"].startswith("0.33")
    assert int(response.metadata["billable_seconds"]) >= 0
    assert response.metadata["output"] == f"s3://{cloud.bucket}/results/{app_id}/output"
    assert response.metadata["secondary_status"] == "Completed"
    assert response.ui_url == (
        f"https://us-east-1.console.aws.amazon.com/sagemaker/home?region=us-east-1#/jobs/{app_id}"
    )
    assert [status.exit_code for role in response.roles_statuses for status in role.replicas] == [0]
    lines = list(scheduler.log_iter(app_id, "train"))
    assert [line for line in lines if line.startswith("step=")] == [
        f"step={n} loss={1 / (n + 1):.3f};\n" for n in range(3)
    ]
    assert "done\n" in lines


@pytest.mark.slow
def test_code_is_uploaded_once_per_content(
    cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    def uploaded() -> list[str]:
        return cloud.objects(prefix="shunter/code/")

    first = submit(scheduler, script(script="train.py", image="i:1"), options(cloud))
    keys = uploaded()
    assert sorted(key.rpartition("/")[2] for key in keys) == ["shunter-toolkit.pyz", "sourcedir.tar.gz"]
    written = cloud.client("s3").head_object(Bucket=cloud.bucket, Key=keys[0])["LastModified"]
    cloud.client("s3").put_object_tagging(
        Bucket=cloud.bucket, Key=keys[0], Tagging={"TagSet": [{"Key": "mark", "Value": "first"}]}
    )
    second = submit(scheduler, script("--epochs", "2", script="train.py", image="i:1"), options(cloud))
    assert uploaded() == keys
    assert cloud.client("s3").head_object(Bucket=cloud.bucket, Key=keys[0])["LastModified"] == written
    tags = cloud.client("s3").get_object_tagging(Bucket=cloud.bucket, Key=keys[0])["TagSet"]
    assert tags == [{"Key": "mark", "Value": "first"}]
    (project / "train.py").write_text(SCRIPT + "# changed\n")
    third = submit(scheduler, script(script="train.py", image="i:1"), options(cloud))
    assert len(uploaded()) == 4
    for app_id in (first, second, third):
        assert wait_for(scheduler, app_id).state == AppState.SUCCEEDED


@pytest.mark.slow
def test_role_and_bucket_are_looked_up_and_made(
    cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    cfg = options(cloud, output_path=None)
    app = script(script="train.py", image="i:1")
    info = scheduler.submit_dryrun(app, cfg)
    assert info.request.job_def["RoleArn"] == f"arn:aws:iam::<account>:role/{cloud.role}"
    bucket = "sagemaker-us-east-1-123456789012"
    _remove(cloud, bucket)
    scheduler.ship(info)
    assert info.request.job_def["RoleArn"] == cloud.role_arn
    assert info.request.job_def["OutputDataConfig"]["S3OutputPath"] == f"s3://{bucket}/"
    try:
        assert len(cloud.objects(bucket)) == 2
        app_id = scheduler.schedule(info)
        assert wait_for(scheduler, app_id).state == AppState.SUCCEEDED
        assert f"{app_id}/output/model.tar.gz" in cloud.objects(bucket)
    finally:
        _remove(cloud, bucket)


def _remove(cloud: Cloud, bucket: str) -> None:
    client = cloud.client("s3")
    if bucket in [each["Name"] for each in client.list_buckets()["Buckets"]]:
        for key in cloud.objects(bucket):
            client.delete_object(Bucket=bucket, Key=key)
        client.delete_bucket(Bucket=bucket)


def test_a_dry_run_calls_nothing_and_writes_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody answers there
    scheduler = AWSSageMakerScheduler("test")
    cfg = {"role": "Training", "instance_type": "ml.m5.large"}
    one = scheduler.submit_dryrun(script(script="train.py", image="i:1"), cfg)
    assert "s3://sagemaker-us-east-1-<account>/shunter/code/" in repr(one)
    assert one.shipment is not None
    assert one.shipment.plan()["files"] == 3


@pytest.mark.slow
def test_replicas_of_any_program(cloud: Cloud, scheduler: AWSSageMakerScheduler) -> None:
    app = sh(
        "echo",
        "replica $TORCHX_REPLICA_IDX of ${replica_id} at $TORCHX_RANK0_HOST",
        image="i:1",
        num_replicas=3,
    )
    app.roles[0].args = ["-c", 'echo "replica $TORCHX_REPLICA_IDX ${replica_id} $TORCHX_RANK0_HOST"']
    app_id = submit(scheduler, app, options(cloud))
    response = wait_for(scheduler, app_id)
    assert response.state == AppState.SUCCEEDED, response
    assert [status.hostname for status in response.roles_statuses[0].replicas] == [
        "algo-1",
        "algo-2",
        "algo-3",
    ]
    for k in range(3):
        host = r"127\.\d+\.\d+\.1" if k else "localhost"  # where hosts are processes
        [line] = scheduler.log_iter(app_id, "sh", k)
        assert re.fullmatch(f"replica {k} {k} {host}\n", line)


@pytest.mark.slow
def test_roles_are_instance_groups(cloud: Cloud, scheduler: AWSSageMakerScheduler) -> None:
    say = 'echo "$TORCHX_ROLE_NAME $TORCHX_ROLE_IDX $TORCHX_REPLICA_IDX $TORCHX_RANK0_HOST $X"'
    app = AppDef(
        "two",
        [
            Role("ps", "i:1", entrypoint="sh", args=["-c", say], env={"X": "1"}),
            Role(
                "worker", "i:1", entrypoint="sh", args=["-c", say], env={"X": "${replica_id}"}, num_replicas=2
            ),
        ],
    )
    app_id = submit(scheduler, app, options(cloud))
    response = wait_for(scheduler, app_id)
    assert response.state == AppState.SUCCEEDED, response
    assert [(role.role, len(role.replicas)) for role in response.roles_statuses] == [("ps", 1), ("worker", 2)]
    assert list(scheduler.log_iter(app_id, "ps", 0)) == ["ps 0 0 localhost 1\n"]
    [line] = scheduler.log_iter(app_id, "worker", 1)
    assert re.fullmatch(r"worker 1 1 127\.\d+\.\d+\.1 1\n", line)


@pytest.mark.slow
def test_a_failure_has_its_reason_and_exit_code(
    cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    (project / "train.py").write_text("raise ValueError('learning rate must be positive')\n")
    app_id = submit(scheduler, script(script="train.py", image="i:1"), options(cloud))
    response = wait_for(scheduler, app_id)
    assert response.state == AppState.FAILED
    assert "learning rate must be positive" in response.msg
    assert response.roles_statuses[0].replicas[0].exit_code == 1


@pytest.mark.slow
def test_a_job_is_cancelled(cloud: Cloud, scheduler: AWSSageMakerScheduler) -> None:
    app = sh("sleep", "600", image="i:1")
    app_id = submit(scheduler, app, options(cloud))
    eventually(lambda: scheduler.describe(app_id).state == AppState.RUNNING)  # type: ignore[union-attr]
    scheduler.cancel(app_id)
    assert wait_for(scheduler, app_id).state == AppState.CANCELLED
    scheduler.cancel(app_id)


@pytest.mark.slow
def test_logs_are_followed_to_the_end(cloud: Cloud, scheduler: AWSSageMakerScheduler) -> None:
    app = sh("true", image="i:1")
    app.roles[0].args = ["-c", "for i in 1 2 3; do echo line $$i; sleep 0.3; done"]
    app_id = submit(scheduler, app, options(cloud))
    assert list(scheduler.log_iter(app_id, "sh", should_tail=True)) == ["line 1\n", "line 2\n", "line 3\n"]
    assert list(scheduler.log_iter(app_id, "sh", regex="2$")) == ["line 2\n"]


@pytest.mark.slow
def test_jobs_are_listed(cloud: Cloud, scheduler: AWSSageMakerScheduler) -> None:
    mine = submit(scheduler, sh("true", image="i:1"), options(cloud))
    failing = sh("false", image="i:1")
    other = submit(scheduler, failing, options(cloud, base_job_name="Other_one"))
    assert other.startswith("Other-one-")
    request = scheduler.submit_dryrun(sh("true", image="i:1"), options(cloud, role=cloud.role_arn)).request
    foreign = {key: value for key, value in request.job_def.items() if key != "Tags"}
    cloud.client("sagemaker").create_training_job(**{**foreign, "TrainingJobName": "foreign"})
    states = {mine: AppState.SUCCEEDED, other: AppState.FAILED}
    for app_id in states:
        wait_for(scheduler, app_id)
    rows = scheduler.list()
    assert {row.app_id: row.state for row in rows} == states
    assert {row.name for row in rows} == {"sh"}
    assert [row.app_id for row in scheduler.list({"states": {AppState.FAILED}})] == [other]
    assert {row.app_id for row in scheduler.list({"all": True})} == {mine, other, "foreign"}
    assert scheduler.list({"since": datetime.now(UTC).timestamp() + 60}) == []
    assert [row.app_id for row in scheduler.list({"name": "Other"})] == [other]


@pytest.mark.slow
def test_what_is_not_there(cloud: Cloud, scheduler: AWSSageMakerScheduler) -> None:
    assert scheduler.describe("no-such-job") is None
    assert scheduler.describe("not_a_name") is None
    assert not scheduler.exists("no-such-job")
    scheduler.cancel("no-such-job")
    assert scheduler.describe_many(["a", "b", "c_"]) == {"a": None, "b": None, "c_": None}
    with pytest.raises(UnknownAppException):
        scheduler.log_iter("no-such-job", "sh")
    app_id = submit(scheduler, sh("true", image="i:1"), options(cloud))
    with pytest.raises(UsageError, match="no replica sh/7"):
        scheduler.log_iter(app_id, "sh", 7)
    with pytest.raises(ValueError, match="COMBINED"):
        scheduler.log_iter(app_id, "sh", streams=Stream.STDERR)
    wait_for(scheduler, app_id)


def test_a_role_that_does_not_exist(cloud: Cloud, scheduler: AWSSageMakerScheduler) -> None:
    with pytest.raises(ConfigError, match="no IAM role Nobody"):
        submit(scheduler, sh("true", image="i:1"), options(cloud, role="Nobody"))
    assert scheduler.list({"all": True}) == []


def test_a_bucket_that_does_not_exist(cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path) -> None:
    cfg = options(cloud, output_path="s3://no-such-bucket-anywhere/x")
    with pytest.raises(AwsError, match="PutObject: there is no bucket no-such-bucket-anywhere"):
        submit(scheduler, script(script="train.py", image="i:1"), cfg)
    assert scheduler.list({"all": True}) == []


@pytest.mark.slow
@pytest.mark.parametrize("toolkit", [True, False])
def test_hyperparameters_come_beside_the_arguments(
    cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path, toolkit: bool
) -> None:
    app = script("--training", "lib", script="train.py", image="i:1")
    cfg = options(cloud, hyperparameters={"epochs": "7"}, toolkit=toolkit)
    response = wait_for(scheduler, submit(scheduler, app, cfg))
    assert response.state == AppState.SUCCEEDED, response
    seen = model(cloud, response)
    assert seen["argv"] == ["--epochs", "7", "--training", "lib"]
    assert seen["SM_HP_EPOCHS"] == "7"
    assert ("SM_HP_TRAINING" in seen) == (not toolkit)


@pytest.mark.slow
def test_code_reaches_any_program(cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path) -> None:
    app = sh("cat", "lib/helper.py", image="i:1")
    app_id = submit(scheduler, app, options(cloud), str(project))
    response = wait_for(scheduler, app_id)
    assert response.state == AppState.SUCCEEDED, response
    assert list(scheduler.log_iter(app_id, "sh")) == ["x = 1\n"]
