"""A state disk that fills: looking, stopping and collecting work, and jobs outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from shunter.schedulers.sagemaker_local_scheduler.scheduler import create_scheduler
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob

from .conftest import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Jobs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")

#: Waits for a file beside the code, and writes a model.
WAITS = """
print('up', flush=True)
while not os.path.exists(os.environ['GO']):
    time.sleep(0.05)
while True:
    try:
        with open(BASE + '/model/weights', 'w') as file:
            file.write('w')
        break
    except OSError:
        time.sleep(0.05)
print('done', flush=True)
"""


class Disk:
    """A small file system for the state, which can be filled and freed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "shunter-test", str(path)]
        if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
            pytest.skip("file systems cannot be mounted here")

    def fill(self) -> None:
        command = ["dd", "if=/dev/zero", f"of={self.path}/filler", "oflag=append", "conv=notrunc"]
        subprocess.run(command, check=False, capture_output=True)
        assert os.statvfs(self.path).f_bfree == 0

    def free(self) -> None:
        (self.path / "filler").unlink()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    monkeypatch.setenv("SHUNTER_HOME", str(made.path))
    yield made
    made.close()


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return tmp_path / "go"


def start(jobs: Jobs, go: Path, script: str = WAITS, **more: Any) -> str:
    return jobs.start(script, Environment={"GO": str(go)}, **more)


def test_a_job_goes_on_while_the_disk_is_full(jobs: Jobs, processes: str, disk: Disk, go: Path) -> None:
    name = start(jobs, go)
    jobs.says(name, "up")
    disk.fill()
    assert jobs.describe(name)["SecondaryStatus"] == "Training"
    go.touch()
    until(lambda: os.path.exists(TrainingJob.of(name).file("work", "algo-1", "model", "weights")))
    disk.free()
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    assert jobs.artifact(name) == {"weights": b"w"}
    steps = [step["Status"] for step in ended["SecondaryStatusTransitions"]]
    assert steps == ["Starting", "Downloading", "Training", "Uploading", "Completed"]


def test_a_full_disk_refuses_a_new_job_and_leaves_nothing(
    jobs: Jobs, processes: str, disk: Disk, go: Path
) -> None:
    request = jobs.request(WAITS)
    disk.fill()
    with pytest.raises(ClientError, match="No space left on device") as caught:
        jobs.sagemaker.create_training_job(**request)
    assert caught.value.response["Error"]["Code"] == "ResourceLimitExceeded"
    assert jobs.sagemaker.list_training_jobs()["TrainingJobSummaries"] == []
    assert not [name for name in os.listdir(disk.path / "state/sagemaker") if name.startswith(".new-")]


@pytest.mark.slow
def test_all_that_looks_or_ends_works_on_a_full_disk(
    jobs: Jobs, processes: str, disk: Disk, go: Path
) -> None:
    """Of jobs that run, whose supervisor was killed, and have ended."""
    go.touch()
    over = start(jobs, go)
    jobs.end(over)
    go.unlink()
    here = {"S3OutputPath": (disk.path / "results").as_uri()}
    script = WAITS.replace("while", "open(BASE + '/model/early', 'w').write('e' * 5000)\nwhile", 1)
    running, orphan = start(jobs, go, script, OutputDataConfig=here), start(jobs, go)
    jobs.says(running, "up")
    jobs.says(orphan, "up")
    job = TrainingJob.of(orphan)
    state = job.read_state()
    assert state is not None
    disk.fill()
    os.kill(state["supervisor"][0], signal.SIGKILL)
    until(lambda: jobs.describe(orphan)["TrainingJobStatus"] == "Failed")
    assert "was killed" in jobs.describe(orphan)["FailureReason"]
    disk.fill()
    listed = {row["TrainingJobName"] for row in jobs.sagemaker.list_training_jobs()["TrainingJobSummaries"]}
    assert listed == {over, running, orphan}
    assert jobs.lines(orphan) == ["up"]
    jobs.sagemaker.stop_training_job(TrainingJobName=running)
    until(lambda: jobs.describe(running)["TrainingJobStatus"] == "Stopped")
    last = jobs.describe(running)["SecondaryStatusTransitions"][-1]["StatusMessage"]
    assert "No space left on device" in last
    assert (
        Path(TrainingJob.of(running).file("artifacts", "algo-1", "model", "early")).read_text() == "e" * 5000
    )
    disk.fill()
    arn = jobs.describe(over)["TrainingJobArn"]
    with pytest.raises(ClientError, match="No space left"):
        jobs.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "k", "Value": "v" * 200}] * 50)
    jobs.sagemaker.delete_training_job(TrainingJobName=over)
    scheduler = create_scheduler("test")
    found = [item for item in scheduler.leftovers({}, 0.0) if item.id.startswith("job/")]
    assert {item.app_id for item in found} == {running, orphan}
    assert scheduler.remove_leftovers({}, found) > 0
    assert jobs.sagemaker.list_training_jobs()["TrainingJobSummaries"] == []
