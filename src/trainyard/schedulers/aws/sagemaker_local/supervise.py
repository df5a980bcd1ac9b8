"""Program of the processes that outlive whoever starts a job: launcher -> guard -> runner -> hosts.

``python -m trainyard.schedulers.aws.sagemaker_local.supervise`` reads a plan from standard input, detaches,
and ends with 0 as soon as the job is attended, or prints on standard error why it is not. The request comes
through standard input, with whatever secrets it holds: on disk it is kept without them.

The guard only waits. Should the runner be killed, the guard ends the hosts and says so in the job's state.
Should both be killed at once, the sentinel does: a shell that reads from a pipe whose other end they hold.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from trainyard.schedulers.aws.sagemaker_local import recovery
from trainyard.schedulers.aws.sagemaker_local.training_job import TERMINAL, JobDir
from trainyard.schedulers.exec.process import guard
from trainyard.system.identity import Process

MODULE = "trainyard.schedulers.aws.sagemaker_local.supervise"
SENTINEL = f'read -r _; exec "$PYTHON" -P -m {MODULE} --orphaned "$JOB"'


def main() -> NoReturn:
    """Detach a runner for the job of standard input, and end when it is ready."""
    plan = json.loads(sys.stdin.buffer.read())
    job = JobDir(plan["job_dir"])
    guard.detach(job.file("runner.log"), lambda ready: _guard(job, plan, ready), "runner")


def _guard(job: JobDir, plan: dict[str, Any], ready: int) -> NoReturn:
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)  # not SIG_IGN, which hosts would inherit
    guard.guard(
        f"trainyard: guard of {job.name}",
        lambda identity: _run(job, plan, identity, ready),
        ready,
        (SENTINEL, {**os.environ, "PYTHON": sys.executable, "JOB": job.path}),
        started=plan.clear,
        clean_up=lambda: _end_orphan(job),
    )


def _end_orphan(job: JobDir) -> None:
    recovery.end_orphan(job, by_guard=True)


def _run(job: JobDir, plan: dict[str, Any], guarded_by: Process, ready: int) -> NoReturn:
    def prepare() -> Callable[[], None]:
        from trainyard.schedulers.aws.sagemaker_local.training_run import TrainingRun

        return TrainingRun(job, plan, guarded_by).run

    guard.keep(f"trainyard: runner of {job.name}", prepare, ready, job.path)


def _is_over(job: JobDir) -> bool:
    state = recovery.current_state(job)
    return state is None or (state["status"] in TERMINAL and state["swept"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--orphaned"]:
        guard.wait_until_ended(lambda: _is_over(JobDir(sys.argv[2])), pause=0.2)
    else:
        main()
