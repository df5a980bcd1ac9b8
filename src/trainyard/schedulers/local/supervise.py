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
    sys.path[0] = os.path.dirname(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    )

import json
import time

from trainyard.processes import Process, myself
from trainyard.schedulers.local import reasons
from trainyard.schedulers.local.store import JobDir
from trainyard.schedulers.local.supervisor import Supervisor
from trainyard.schedulers.machine import linux, processes
from trainyard.specs.status import AppState, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

READY = b"ready"
#: How long guard and supervisor may take from closing their files to their end.
ORPHAN_SECONDS = 60.0
#: The sentinel: waits for the end of guard and supervisor, and then has a Python look after the job.
SENTINEL = 'read -r _; exec "$PYTHON" -I -S "$PROGRAM" --orphaned "$JOB"'


def main() -> NoReturn:
    """Wait for a job, detach a supervisor for it, and end when that is ready."""
    data = sys.stdin.buffer.read()
    if not data:
        os._exit(0)
    plan = json.loads(data)
    job_dir = plan["job_dir"]
    ready_in, ready_out = os.pipe()
    if os.fork() == 0:
        os.close(ready_in)
        _detach_output(job_dir)
        _guard(JobDir(job_dir), plan, ready_out)
    os.close(ready_out)
    answer = b""
    while chunk := os.read(ready_in, 65536):
        answer += chunk
    if answer != READY:
        os.write(2, answer or b"the supervisor ended before it was ready")
        os._exit(1)
    os._exit(0)


def _detach_output(job_dir: str) -> None:
    log = os.open(os.path.join(job_dir, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _guard(job: JobDir, plan: dict[str, Any], ready: int) -> NoReturn:
    """Start the supervisor, wait for its end, and clean up behind it if it was killed."""
    linux.become_subreaper()
    linux.set_title(f"trainyard: guard of {job.app_id}")
    guard = myself()
    lifeline, _kept_open = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(lifeline)
        _supervise(job, plan, guard, ready)
    os.close(ready)
    plan.clear()  # it holds the replicas' environment
    sentinel = _start_sentinel(job, lifeline)
    while (ended := os.wait()[0]) != supervisor:
        if ended == sentinel:
            sentinel = 0
    processes.kill_descendants(spared=sentinel)
    state = job.read_state()
    if state is not None and not is_terminal(AppState[state["state"]]):
        job.write_final_state(reasons.ended_state(state, reasons.SUPERVISOR_LOST, time.time()))
    processes.kill_descendants()  # the sentinel last of all, since this process may be killed too
    os._exit(0)


def _start_sentinel(job: JobDir, lifeline: int) -> int:
    """Start the sentinel, in a session of its own; returns its pid, 0 where there is no shell."""
    try:
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", SENTINEL],
            {"PYTHON": sys.executable, "PROGRAM": os.path.abspath(__file__), "JOB": job.path},
            file_actions=[(os.POSIX_SPAWN_DUP2, lifeline, 0)],
            setsid=True,
        )
    except OSError:
        return 0
    finally:
        os.close(lifeline)


def _supervise(job: JobDir, plan: dict[str, Any], guard: Process, ready: int) -> NoReturn:
    code = 1
    try:
        linux.become_subreaper()
        linux.set_title(f"trainyard: supervisor of {job.app_id}")
        supervisor = Supervisor(job, plan, guard)
        try:
            supervisor.prepare()
        except OSError as error:
            os.write(ready, f"cannot write {error.filename or job.path}: {error.strerror}".encode())
            os._exit(1)
        os.write(ready, READY)
        os.close(ready)
        supervisor.run()
        code = 0
    except BaseException:
        import traceback  # late: it would slow every start down

        traceback.print_exc()
    finally:
        os._exit(code)


def _end_orphan(job: JobDir) -> None:
    """End a job whose guard and supervisor are gone, or about to: they close their files before they end."""
    from trainyard.schedulers.local.status import current_state

    deadline = time.monotonic() + ORPHAN_SECONDS
    while time.monotonic() < deadline:
        state = current_state(job)
        if state is None or is_terminal(AppState[state["state"]]):
            return
        time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "--orphaned":
        _end_orphan(JobDir(sys.argv[2]))
    else:
        main()
