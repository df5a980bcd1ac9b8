"""Another user of the machine does what is possible to keep a job's watcher from its work."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from shunter.schedulers.exec.container import watcher_door
from shunter.specs import AppDef, AppState

from .conftest import Jobs, kill_watcher, wait_until, watcher_pid

PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")
pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or PYTHON is None, reason="only root becomes another user, who needs a Python"
)
#: Listens under these names, and never answers.
SQUATTER = """
import socket, sys, time
doors = []
for name in sys.argv[1:]:
    door = socket.socket(socket.AF_UNIX)
    while True:
        try:
            door.bind("\\0shunter/" + name)
            break
        except OSError:
            time.sleep(0.01)
    door.listen()
    doors.append(door)
print("taken", flush=True)
time.sleep(600)
"""


@pytest.fixture
def squat() -> Iterator[Callable[..., None]]:
    """Have the user nobody take names, as soon as they are free."""
    squatters = []

    def take(*names: str, then: Callable[[], object] = lambda: None) -> None:
        command = [PYTHON or "", "-c", SQUATTER, *names]
        squatter = subprocess.Popen(
            command, user=65534, group=65534, cwd="/", stdout=subprocess.PIPE, text=True
        )
        squatters.append(squatter)
        then()
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "taken\n"

    yield take
    for squatter in squatters:
        squatter.kill()
        squatter.communicate()


def test_a_name_that_can_be_predicted(jobs: Jobs, squat: Callable[..., None]) -> None:
    info = jobs.scheduler.submit_dryrun(AppDef("job", [jobs.role("sleep 600", num_replicas=2)]), {})
    squat(f"docker/{info.app_id}")
    app_id = jobs.scheduler.schedule(info)
    wait_until(lambda: watcher_pid(app_id), "a watcher")
    jobs.scheduler.cancel(app_id)
    assert jobs.end_of(app_id).state == AppState.CANCELLED


def test_a_name_that_can_be_seen(jobs: Jobs, squat: Callable[..., None]) -> None:
    app_id = jobs.submit(jobs.role("sleep 600", num_replicas=2), grace_period=1)
    wait_until(lambda: watcher_door._name(app_id), "the watcher's door")
    squat(watcher_door._name(app_id), then=lambda: kill_watcher(app_id))
    jobs.scheduler.cancel(app_id)
    assert jobs.end_of(app_id).state == AppState.CANCELLED
