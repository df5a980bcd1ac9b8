"""What is interrupted: nothing that is half there is taken for whole, and no job is started twice or lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shunter.components.train import script
from shunter.components.utils import sh
from shunter.runner.preparation import inject
from shunter.schedulers.aws import session
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import create_scheduler
from shunter.specs.status import AppState
from tests.sagemaker.remote.conftest import Cloud, eventually, wait_for
from tests.sagemaker.remote.proxy import DROP, LOSE_ANSWER, PASS, STALL, between
from tests.sagemaker.remote.test_jobs import options, submit


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text("print('ran')\n")
    (directory / "data.bin").write_bytes(os.urandom(20 << 20))
    monkeypatch.chdir(directory)
    # the SDK waits longer and longer between attempts
    monkeypatch.setattr(session, "ATTEMPTS", 2)
    return directory


def uploads(cloud: Cloud) -> list[object]:
    found: list[object] = cloud.client("s3").list_multipart_uploads(Bucket=cloud.bucket).get("Uploads", [])
    return found


@pytest.mark.slow
def test_s3_goes_away_within_an_upload(cloud: Cloud, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with between(cloud.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        proxy.fault = lambda method, path, headers: DROP if "partNumber=2" in path else PASS
        scheduler = create_scheduler("test")
        app = script(script="train.py", image="i:1")
        with pytest.raises(AwsError, match="s3:PutObject"):
            submit(scheduler, app, options(cloud))
        assert [key for key in cloud.objects() if key.endswith("sourcedir.tar.gz")] == []
        assert uploads(cloud) == []
        assert scheduler.list({"all": True}) == []
        proxy.fault = lambda method, path, headers: PASS
        app_id = submit(scheduler, script(script="train.py", image="i:1"), options(cloud))
        assert wait_for(scheduler, app_id).state == AppState.SUCCEEDED
        scheduler.close()


@pytest.mark.slow
def test_an_interrupted_upload_of_data_does_not_count(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ATTEMPTS", 2)
    data = tmp_path / "data"
    data.mkdir()
    for name in ("a", "b", "c"):
        (data / name).write_text(name)
    cfg = options(cloud, channels={"training": str(data)})
    with between(cloud.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        proxy.fault = lambda method, path, headers: DROP if method == "PUT" and path.endswith("/b") else PASS
        scheduler = create_scheduler("test")
        with pytest.raises(AwsError):
            submit(scheduler, sh("true", image="i:1"), cfg)
        assert not [key for key in cloud.objects() if key.endswith(".complete")]
        proxy.fault = lambda method, path, headers: PASS
        app_id = submit(scheduler, sh("true", image="i:1"), cfg)
        assert wait_for(scheduler, app_id).state == AppState.SUCCEEDED
        assert sorted(key[-2:] for key in cloud.objects(prefix="shunter/data/") if not key.endswith("e")) == [
            "/a",
            "/b",
            "/c",
        ]
        scheduler.close()


@pytest.mark.slow
def test_ctrl_c_within_an_upload(cloud: Cloud, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with between(cloud.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        proxy.fault = lambda method, path, headers: STALL if "partNumber=2" in path else PASS
        cfg = ",".join(f"{key}={value}" for key, value in options(cloud).items())
        words = [
            "run",
            "-s",
            "aws_sagemaker",
            "-cfg",
            cfg,
            "train.script",
            "--script",
            "train.py",
            "--image",
            "i:1",
        ]
        command = [sys.executable, "-m", "shunter", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert proxy.stalled.wait(40)
            process.send_signal(signal.SIGINT)
            proxy.released.set()
            _, said = process.communicate(timeout=40)
        assert process.returncode == 130, said
        assert "Traceback" not in said
        assert [key for key in cloud.objects() if key.endswith("sourcedir.tar.gz")] == []
        eventually(lambda: uploads(cloud) == [])
        scheduler = create_scheduler("test")
        assert scheduler.list({"all": True}) == []
        scheduler.close()
        listed = subprocess.run(
            [sys.executable, "-m", "shunter", "list", "--all"], capture_output=True, text=True, check=True
        )
        assert "REFUSED" in listed.stdout


@pytest.mark.slow
@pytest.mark.parametrize("verdict", [LOSE_ANSWER, DROP])
def test_a_lost_answer_starts_no_second_job(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    lost: list[str] = []

    def fault(method: str, path: str, headers: dict[str, str]) -> str:
        if headers.get("X-Amz-Target", "").endswith("CreateTrainingJob") and not lost:
            lost.append(path)
            return verdict
        return PASS

    with between(cloud.sagemaker) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", proxy.url)
        proxy.fault = fault
        scheduler = create_scheduler("test")
        app_id = submit(scheduler, sh("true", image="i:1"), options(cloud))
        assert lost
        assert wait_for(scheduler, app_id).state == AppState.SUCCEEDED
        assert [row.app_id for row in scheduler.list()] == [app_id]
        scheduler.close()


@pytest.mark.slow
def test_a_name_that_is_taken_is_refused(cloud: Cloud) -> None:
    scheduler = create_scheduler("test")
    info = scheduler.submit_dryrun(sh("true", image="i:1"), options(cloud))
    scheduler.schedule(info)
    with pytest.raises(AwsError, match="already exists"):
        scheduler.schedule(info)
    wait_for(scheduler, info.request.job_name)
    scheduler.close()


@pytest.mark.slow
def test_code_that_changes_while_it_is_uploaded(
    cloud: Cloud, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = create_scheduler("test")
    app = script(script="train.py", image="i:1")
    inject(app, scheduler.backend, scheduler.session_name)
    info = scheduler.submit_dryrun(app, options(cloud))
    assert info.shipment is not None
    planned = info.shipment.planned.key  # type: ignore[attr-defined]
    (project / "train.py").write_text("print('changed')\n")
    scheduler.ship(info)
    channel = info.request.job_def["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
    assert planned not in channel
    assert info.shipment.planned.key in channel  # type: ignore[attr-defined]
    app_id = scheduler.schedule(info)
    assert wait_for(scheduler, app_id).state == AppState.SUCCEEDED
    assert "changed\n" in list(scheduler.log_iter(app_id, "train"))
    scheduler.close()


def test_a_refused_submission_leaves_no_job(cloud: Cloud, project: Path) -> None:
    scheduler = create_scheduler("test")
    cfg = options(cloud, channels={"training": "/no/such/directory"})
    with pytest.raises(ValueError, match="there is no file or directory /no/such/directory"):
        submit(scheduler, script(script="train.py", image="i:1"), cfg)
    assert scheduler.list({"all": True}) == []
    scheduler.close()
