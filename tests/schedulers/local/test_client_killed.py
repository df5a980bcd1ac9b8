"""The submitting command dies at any moment: its job was not submitted, and says so, or runs to its end."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from shunter.runner import Runner
from shunter.runner.records import INTERRUPTED
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.start import StartingSupervisor
from shunter.specs import AppState
from shunter.system.identity import Process

from .conftest import PATIENCE, Jobs, wait_until

SUBMIT = [sys.executable, "-m", "shunter", "run", "--detach", "utils.sh", "--", "sh", "-c"]
SUBMIT += ["sleep 0.3; echo end"]
#: Hands a job over, and dies before it hears that the job runs. "slow": the supervisor has not read it yet.
DIES = """
import os, signal, sys
from shunter.cli import console_main
from shunter.schedulers.supervisor import submission

how = sys.argv.pop(1)

class Dying(submission.StartingSupervisor):
    def run(self, plan):
        if how == "slow":
            os.kill(self.process().pid, signal.SIGSTOP)
        self._read_answer = lambda: os.kill(os.getpid(), signal.SIGKILL)
        return super().run(plan)

submission.StartingSupervisor = Dying
console_main()
"""


def submitted() -> list[JobDirectory]:
    return list(JobDirectory.all())


def test_killed_before_the_answer(jobs: Jobs) -> None:
    client = subprocess.run([sys.executable, "-c", DIES, "quick", *SUBMIT[3:]], check=False)
    assert client.returncode == -signal.SIGKILL
    (job,) = submitted()
    assert jobs.end_of(job.name).state == AppState.SUCCEEDED
    assert jobs.log(job.name, "sh") == ["end\n"]


def test_killed_before_a_slow_supervisor_has_the_job(jobs: Jobs) -> None:
    client = subprocess.run([sys.executable, "-c", DIES, "slow", *SUBMIT[3:]], check=False)
    assert client.returncode == -signal.SIGKILL
    (job,) = submitted()
    supervisor = Process.from_json((job.read_request() or {})["supervisor"])
    assert supervisor is not None
    try:
        seen = jobs.scheduler.describe(job.name)
        assert seen is not None
        assert seen.state == AppState.SUBMITTED, seen
    finally:
        os.kill(supervisor.pid, signal.SIGCONT)
    assert jobs.end_of(job.name).state == AppState.SUCCEEDED


def test_a_part_of_a_plan_is_no_job(tmp_path: Path) -> None:
    starting = StartingSupervisor()
    supervisor = starting.process()
    assert supervisor is not None
    os.write(starting._plan, b'{"job_dir": "' + os.fsencode(tmp_path) + b'", "roles": [')
    starting.discard()
    wait_until(lambda: not supervisor.is_alive(), "the supervisor's end")
    assert not (tmp_path / "supervisor.log").exists()


def directories() -> list[str]:
    return [job.name for job in JobDirectory.directories()]


def successes(jobs: Jobs) -> list[str]:
    return [job.name for job in submitted() if jobs.end_of(job.name).state == AppState.SUCCEEDED]


def kill(client: int, terminal: int) -> None:
    os.kill(client, signal.SIGKILL)


def kill_group(client: int, terminal: int) -> None:
    os.killpg(client, signal.SIGKILL)


def close_terminal(client: int, terminal: int) -> None:
    os.close(terminal)


@pytest.mark.slow
@pytest.mark.timeout(400)  # 60 s on two idle cores
@pytest.mark.parametrize("end", [kill, kill_group, close_terminal])
def test_ended_at_any_moment(jobs: Jobs, end: Callable[[int, int], None]) -> None:
    whole = submit_for(PATIENCE, end)
    tries = 15
    for number in range(tries):
        submit_for(whole * (0.2 + number / tries), end)
        submit_for(0.001 * number, end, once_there_is_a_directory=True)
    seconds = 0.001 * tries
    while len(successes(jobs)) < 2 and seconds < PATIENCE:  # a busy machine may take longer than at first
        seconds *= 2
        submit_for(seconds, end, once_there_is_a_directory=True)
    with Runner("shunter") as runner:
        for job in submitted():
            jobs.end_of(job.name)
        outcomes = Counter((job.phase, job.state, job.msg) for job in runner.jobs())
    print(end.__name__, *outcomes.items(), sep="\n")
    assert outcomes.pop(("submitted", AppState.SUCCEEDED, "")) > 1
    assert outcomes.keys() <= {
        ("submitted", AppState.FAILED, "its submission was interrupted before it was started"),
        ("refused", AppState.UNSUBMITTED, INTERRUPTED),
    }


def submit_for(
    seconds: float, end: Callable[[int, int], None], *, once_there_is_a_directory: bool = False
) -> float:
    """Submit a job on a terminal, and end the command after some seconds; returns how long it ran.

    The seconds count from the start, or from when the job has a directory.
    """
    before = directories()
    client, terminal = pty.fork()
    if client == 0:
        os.execv(SUBMIT[0], SUBMIT)
    ended = os.pidfd_open(client)
    began = time.monotonic()
    while (
        once_there_is_a_directory and directories() == before and not select.select([ended], [], [], 0.001)[0]
    ):
        pass
    select.select([ended], [], [], seconds)
    took = time.monotonic() - began
    end(client, terminal)
    if end is not close_terminal:
        os.close(terminal)
    os.waitpid(client, 0)
    os.close(ended)
    return took
