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
import time
from typing import Any, NoReturn

from trainyard.processes import Process, myself
from trainyard.schedulers.aws.sagemaker_local import recovery
from trainyard.schedulers.aws.sagemaker_local.store import TERMINAL, JobDir
from trainyard.schedulers.machine import linux, processes

READY = b"ready"
ORPHAN_SECONDS = 60.0
MODULE = "trainyard.schedulers.aws.sagemaker_local.supervise"
SENTINEL = f'read -r _; exec "$PYTHON" -P -m {MODULE} --orphaned "$JOB"'


def main() -> NoReturn:
    """Detach a runner for the job of standard input, and end when it is ready."""
    plan = json.loads(sys.stdin.buffer.read())
    ready_in, ready_out = os.pipe()
    if os.fork() == 0:
        os.close(ready_in)
        job = JobDir(plan["job_dir"])
        _detach_output(job)
        _guard(job, plan, ready_out)
    os.close(ready_out)
    answer = b""
    while chunk := os.read(ready_in, 65536):
        answer += chunk
    if answer != READY:
        os.write(2, answer or b"the runner ended before it was ready")
        os._exit(1)
    os._exit(0)


def _detach_output(job: JobDir) -> None:
    log = os.open(job.file("runner.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(null)


def _guard(job: JobDir, plan: dict[str, Any], ready: int) -> NoReturn:
    """Start the runner, wait for its end, and clean up behind it if it was killed."""
    linux.become_subreaper()
    linux.set_title(f"trainyard: guard of {job.name}")
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)  # not SIG_IGN, which hosts would inherit
    guard = myself()
    lifeline, _kept_open = os.pipe()
    runner = os.fork()
    if runner == 0:
        os.close(lifeline)
        _run(job, plan, guard, ready)
    os.close(ready)
    plan.clear()
    sentinel = _start_sentinel(job, lifeline)
    while (ended := os.wait()[0]) != runner:
        if ended == sentinel:
            sentinel = 0
    for pid in processes.children_of(os.getpid()):
        if pid != sentinel:
            _kill(pid)
    recovery.end_orphan(job, by_guard=True)
    # Only now, since this process may be killed too; takes the sentinel along.
    processes.kill_descendants()
    os._exit(0)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _start_sentinel(job: JobDir, lifeline: int) -> int:
    try:
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", SENTINEL],
            {**os.environ, "PYTHON": sys.executable, "JOB": job.path},
            file_actions=[(os.POSIX_SPAWN_DUP2, lifeline, 0)],
            setsid=True,
        )
    except OSError:
        return 0
    finally:
        os.close(lifeline)


def _end_orphan(job: JobDir) -> None:
    """End a job whose guard and runner are gone, or just going: files are closed before a process ends."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while time.monotonic() < deadline:
        state = recovery.current_state(job)
        if state is None or (state["status"] in TERMINAL and state["swept"]):
            return
        time.sleep(0.2)


def _run(job: JobDir, plan: dict[str, Any], guard: Process, ready: int) -> NoReturn:
    code = 1
    try:
        linux.become_subreaper()
        linux.set_title(f"trainyard: runner of {job.name}")
        from trainyard.schedulers.aws.sagemaker_local.runner import TrainingRun

        try:
            run = TrainingRun(job, plan, guard)
        except OSError as error:
            os.write(ready, f"cannot write {error.filename or job.path}: {error.strerror}".encode())
            os._exit(1)
        os.write(ready, READY)
        os.close(ready)
        run.run()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--orphaned"]:
        _end_orphan(JobDir(sys.argv[2]))
    else:
        main()
