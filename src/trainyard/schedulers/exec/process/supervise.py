"""Program of the processes that outlive the command: launcher -> guard -> supervisor -> replicas.

Beside them waits a sentinel, for the case that guard and supervisor are killed at once.

``python supervise.py waiting`` reads the plan from standard input (without one it ends), detaches, and ends
with 0 as soon as the job is under supervision, or prints on standard error why it is not. It is started
ahead of its job, so that it comes up while the job is being made.

The guard does nothing but wait. Should the supervisor be killed, the kernel hands all of its descendants
to the guard (a child subreaper), which ends them and says so in the job's state. Should both be killed,
the sentinel does: a shell that reads from a pipe to which nobody ever writes. Its other end is held by
guard and supervisor alone, so the read ends when the last of them has. (A parent-death signal for every
replica would serve too, but takes a program more per replica to set up: 1.5 ms of cpu each.)
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # run as a script, so that it starts without `site`; its own folder is of no use
    sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4))

import json
import time

from trainyard import system
from trainyard.schedulers.exec.process import guard, reasons
from trainyard.schedulers.exec.process.job_directory import JobDir
from trainyard.schedulers.exec.process.supervisor import Supervisor
from trainyard.specs.status import AppState, is_terminal
from trainyard.system import processes
from trainyard.system.identity import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

#: The sentinel: waits for the end of guard and supervisor, and then has a Python look after the job.
SENTINEL = 'read -r _; exec "$PYTHON" -I -S "$PROGRAM" --orphaned "$JOB"'


def main() -> NoReturn:
    """Wait for a job, detach a supervisor for it, and end when that is ready."""
    data = sys.stdin.buffer.read()
    if not data:
        os._exit(0)
    plan = json.loads(data)
    job = JobDir(plan["job_dir"])
    guard.detach(job.file("supervisor.log"), lambda ready: _guard(job, plan, ready), "supervisor")


def _guard(job: JobDir, plan: dict[str, Any], ready: int) -> NoReturn:
    environ = {"PYTHON": sys.executable, "PROGRAM": os.path.abspath(__file__), "JOB": job.path}
    environ |= {name: os.environ[name] for name in (system.SWITCH,) if name in os.environ}
    guard.guard(
        f"trainyard: guard of {job.app_id}",
        lambda identity: _supervise(job, plan, identity, ready),
        ready,
        (SENTINEL, environ),
        started=plan.clear,  # it holds the replicas' environment
        clean_up=lambda: _end_as_lost(job),
    )


def _end_as_lost(job: JobDir) -> None:
    state = job.read_state()
    if not system.HAS_SUBREAPER:
        replicas = [replica for role in (state or {}).get("roles", ()) for replica in role["replicas"]]
        sessions = {replica["pid"] for replica in replicas if replica["state"] == AppState.RUNNING.name}
        processes.kill_members_of_job(job.path, sessions)
    if state is not None and not is_terminal(AppState[state["state"]]):
        job.write_final_state(reasons.ended_state(state, reasons.SUPERVISOR_LOST, time.time()))


def _supervise(job: JobDir, plan: dict[str, Any], guarded_by: Process, ready: int) -> NoReturn:
    def prepare() -> Callable[[], None]:
        supervisor = Supervisor(job, plan, guarded_by)
        supervisor.prepare()
        return supervisor.run

    guard.keep(f"trainyard: supervisor of {job.app_id}", prepare, ready, job.path)


def _is_over(job: JobDir) -> bool:
    from trainyard.schedulers.exec.process.recovery import current_state

    state = current_state(job)
    return state is None or is_terminal(AppState[state["state"]])


if __name__ == "__main__":
    if sys.argv[1] == "--orphaned":
        guard.wait_until_ended(lambda: _is_over(JobDir(sys.argv[2])), pause=0.05)
    else:
        main()
