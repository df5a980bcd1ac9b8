"""A user who is not root: containers leave files of root's, and nothing of it may stay."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import shunter

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = str(Path(shunter.__file__).parents[1])
SOCKET = "/var/run/docker.sock"
PYTHON = "/usr/bin/python3"
#: Where psutil is.
PACKAGES = os.path.dirname(os.path.dirname(psutil.__file__))
RUN = """
import json, os, signal, sys, time
from shunter.schedulers.sagemaker_local_scheduler import job_start
from shunter.schedulers.supervisor import job_watch
request, kill = json.loads(sys.argv[1]), sys.argv[2] == "kill"
job = job_start.start_job(request)
if kill:
    deadline = time.monotonic() + 40
    logs = __import__("pathlib").Path(job.file("logs"))
    while not any(path.stat().st_size for path in logs.rglob("*.log")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(job.read_state()["supervisor"][0], signal.SIGKILL)
job_watch.wait_for_end(job, 40)
state = job.read_state()
while os.path.exists(job.work):
    time.sleep(0.05)
    state = job.read_state()
print(json.dumps([state["status"], state["failure_reason"], sorted(os.listdir(job.path))]))
"""
WORK = """
import os, time
open('/opt/ml/model/m', 'w').write('m')
os.chmod('/opt/ml/model/m', 0o600)
os.makedirs('/opt/ml/output/data/deep', 0o700)
open('/opt/ml/checkpoints/c', 'w').write('c')
print('user', os.getuid(), flush=True)
if os.environ.get('WAIT'):
    time.sleep(600)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may use, which those of tests are not."""
    folder = tempfile.mkdtemp(prefix="shunter-everybody-")
    os.chmod(folder, 0o777)
    yield Path(folder)
    shutil.rmtree(folder)


def as_somebody(place: Path, *words: str, mode: str = "always") -> subprocess.CompletedProcess[str]:
    group = str(os.stat(SOCKET).st_gid)
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(place),
        "SHUNTER_HOME": str(place / "home"),
        "SHUNTER_SAGEMAKER_DOCKER": mode,
        "PYTHONPATH": f"{SOURCE}:{PACKAGES}",
    }
    line = ["setpriv", "--reuid", "12345", "--regid", "12345", "--groups", group, *words]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=58, env=environ, cwd=place, check=False
    )


def require_somebody(place: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not os.path.exists(SOCKET):
        pytest.skip("only root can be somebody else, with setpriv and the daemon's socket")
    if as_somebody(place, PYTHON, "-c", "import shunter").returncode:
        pytest.skip("the project's files are for its owner only")


def test_processes_know_each_others_names(place: Path) -> None:
    """Without root's rights too; and /opt/ml, by namespaces of users where the system has them."""
    require_somebody(place)
    probe = ("unshare", "--user", "--map-root-user", "--mount", "true")
    has_namespaces = as_somebody(place, *probe).returncode == 0
    script = (
        "import json, os, socket;"
        f"base = '/opt/ml' if {has_namespaces} else os.environ['SAGEMAKER_BASE_DIR'];"
        "config = json.load(open(base + '/input/config/resourceconfig.json'));"
        "assert len({socket.gethostbyname(host) for host in config['hosts']}) == 2;"
        "open(base + '/model/m', 'w').close()"
    )
    request = request_of("none", script, place)
    if has_namespaces:
        request["Environment"]["SHUNTER_OPT_ML"] = "1"
    request["ResourceConfig"]["InstanceCount"] = 2
    done = as_somebody(place, PYTHON, "-c", RUN, json.dumps(request), "well", mode="never")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[:2] == ["Completed", ""], done.stdout


def request_of(image: str, work: str, place: Path) -> dict[str, Any]:
    return {
        "TrainingJobName": f"nobody-{os.urandom(4).hex()}",
        "RoleArn": "arn:aws:iam::123456789012:role/R",
        "AlgorithmSpecification": {
            "TrainingImage": image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "-c", "import os; exec(os.environ['WORK'])"],
        },
        "Environment": {"WORK": work},
        "CheckpointConfig": {"S3Uri": f"file://{place}/checkpoints"},
        "OutputDataConfig": {"S3OutputPath": f"file://{place}/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    }


@pytest.mark.slow
@pytest.mark.parametrize("end", ["well", "kill"])
def test_nothing_of_roots_is_left(image: str, place: Path, end: str) -> None:
    require_somebody(place)
    request = request_of(image, WORK, place)
    request["Environment"]["WAIT"] = "1" if end == "kill" else ""
    done = as_somebody(place, PYTHON, "-c", RUN, json.dumps(request), end)
    assert done.returncode == 0, done.stderr
    status, reason, _ = json.loads(done.stdout)
    if end == "kill":
        assert (status, reason) == ("Failed", "InternalServerError: the supervisor of this job was killed")
    else:
        assert status == "Completed", reason
        assert (place / "checkpoints/c").read_text() == "c"
        assert (place / "out" / request["TrainingJobName"] / "output/model.tar.gz").exists()
    owners = {path.lstat().st_uid for path in place.rglob("*")}
    assert owners == {12345}
