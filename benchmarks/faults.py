"""Kills clients, supervisors, replicas and ``docker start`` at random moments, and counts how jobs end.

    .venv/bin/python benchmarks/faults.py --kills 50 [--image IMAGE]

Of each kind there are that many kills, of clients four times as many. IMAGE has a shell; without it no
containers are used. A broken rule is printed with its job, and ends the program with 1:

- a client that is killed has not submitted its job, and nothing of that runs, or the job runs to its end;
- a job whose supervisor is killed is FAILED with the reason, and nothing of it runs after the first reader;
- a job whose replica is killed is started again, and SUCCEEDED; a command that copies a container's output is
  replaced, and the job is SUCCEEDED;
- no line of a log is lost or doubled: those of each attempt are 0, 1, 2, ... without a gap.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable

from shunter.runner import Runner
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs import AppDef, AppState, Role
from shunter.system import processes

#: The lines of a job, and for how long it writes them, in seconds.
LINES, SECONDS = 200, 2.0
SCRIPT = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); sleep {SECONDS / LINES:g}; done"
PATIENCE = 60.0


class Broken(Exception):
    """A rule was broken."""


def expect(condition: object, text: str) -> None:
    """Raise `Broken` unless something holds."""
    if not condition:
        raise Broken(text)


class Faults:
    """Makes jobs of one scheduler, and kills parts of them."""

    def __init__(self, runner: Runner, scheduler: str, image: str) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.image = image
        self.job_class: type[JobDirectory] = getattr(runner.scheduler(scheduler), "job_class")  # noqa: B009

    def submit(self, max_retries: int = 0) -> tuple[str, JobDirectory]:
        """Start a job; returns its handle and its directory when its replica runs."""
        role = Role("r", self.image, entrypoint="sh", args=["-c", SCRIPT], max_retries=max_retries)
        handle = self.runner.run(AppDef("fault", [role]), self.scheduler)
        job = self.job_class.of(handle.rpartition("/")[2])
        until(lambda: self.replica(job).get("pid"), "the start of the replica")
        time.sleep(random.uniform(0, SECONDS))
        return handle, job

    def replica(self, job: JobDirectory) -> dict[str, object]:
        """Return the only replica of a job, as its state has it."""
        for role in (job.read_state() or {}).get("roles", ()):
            for replica in role["replicas"]:
                return dict(replica)
        return {}

    def lines(self, handle: str) -> list[int]:
        """Return the numbers of the lines that a job has written."""
        role, k = self.runner.replicas(handle)[0]
        words = [line.split() for line in self.runner.log_lines(handle, role, k) if line.startswith("line ")]
        return [int(word[1]) for word in words]

    def end(self, handle: str) -> AppState:
        """Wait for the end of a job."""
        status = self.runner.wait(handle, timeout=PATIENCE)
        expect(status is not None and status.is_terminal(), f"{handle} does not end: {status}")
        assert status is not None
        return status.state

    # ---- what is killed

    def supervisor(self) -> str:
        """Kill a supervisor."""
        handle, job = self.submit()
        state = job.read_state() or {}
        processes.send_to(state["supervisor"][0], signal.SIGKILL)
        end = self.end(handle)
        if end == AppState.SUCCEEDED:  # it came too late
            return "had ended"
        status = self.runner.status(handle)
        expect(status is not None and "supervisor" in status.msg, f"{handle} does not say why: {status}")
        expect(not processes.members_of_job(job.path), f"something of {handle} still runs")
        check_whole(handle, self.lines(handle))
        return end.name

    def program(self) -> str:
        """Kill the program of a replica, or the command that copies a container's output."""
        handle, job = self.submit(max_retries=1)
        pid = self.replica(job)["pid"]
        assert isinstance(pid, int)
        processes.send_to(pid, signal.SIGKILL)
        end = self.end(handle)
        expect(end == AppState.SUCCEEDED, f"{handle} is {end.name}")
        lines = self.lines(handle)
        expect(lines[-LINES:] == list(range(LINES)), f"{handle} has lost or doubled lines")
        check_whole(handle, lines[:-LINES])
        return "retried" if len(lines) > LINES else "whole"


def check_whole(handle: str, lines: list[int]) -> None:
    """Check that lines are numbered from 0 without a gap."""
    expect(lines == list(range(len(lines))), f"{handle} has lost or doubled lines: {lines}")


def client(whole: float) -> str:
    """Kill a client while it submits a job."""
    before = {job.name for job in JobDirectory.directories()}
    words = [sys.executable, "-m", "shunter", "run", "--detach", "utils.sh", "--", "sh", "-c", "echo line 0"]
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(random.uniform(0.3, 1.1) * whole)
    command.kill()
    command.wait()
    with Runner("faults") as runner:
        found = [job for job in JobDirectory.directories() if job.name not in before]
        for job in found:
            status = runner.wait(f"local_cwd://faults/{job.name}", timeout=PATIENCE) if job.exists() else None
            if status is None:
                expect(not processes.members_of_job(job.path), f"{job.name} was not submitted, and runs")
                return "not submitted"
            if status.state == AppState.SUCCEEDED:
                return "ran to its end"
            expect("submission was interrupted" in status.msg, f"{job.name}: {status}")
            return "interrupted, and says so"
    return "not submitted"


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        expect(time.monotonic() < deadline, f"{what} did not come about")
        time.sleep(0.01)


def main() -> int:
    """Run all kinds; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--image", default="")
    options = parser.parse_args()
    problems = 0
    with tempfile.TemporaryDirectory() as home:
        os.environ["SHUNTER_HOME"] = home
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "shunter", "run", "--detach", "utils.echo"], check=True)
        whole = time.monotonic() - began
        with Runner("faults") as runner:
            kinds: dict[str, tuple[int, Callable[[], str]]] = {
                "client, local_cwd": (4 * options.kills, lambda: client(whole))
            }
            schedulers = ["local_cwd", "sagemaker_local", *(["local_docker"] if options.image else [])]
            for name in schedulers:
                image = options.image if name == "local_docker" else ""
                if name == "sagemaker_local":
                    os.environ["SHUNTER_SAGEMAKER_DOCKER"] = "never"
                faults = Faults(runner, name, image)
                kinds[f"supervisor, {name}"] = options.kills, faults.supervisor
                if name != "sagemaker_local":  # it starts no host again that the program's own fault ended
                    kinds[f"program, {name}"] = options.kills, faults.program
            for kind, (kills, act) in kinds.items():
                outcomes: Counter[str] = Counter()
                for _ in range(kills):
                    try:
                        outcomes[act()] += 1
                    except Broken as error:
                        problems += 1
                        outcomes[f"BROKEN: {error}"] += 1
                print(f"{kills} kills of a {kind}: ", dict(outcomes), flush=True)
    print(f"{problems} rules broken")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
