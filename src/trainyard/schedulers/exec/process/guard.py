"""Program of the processes that outlive the command that starts a job: launcher -> guard -> supervisor.

``python guard.py MODULE:CLASS waiting`` reads a plan from standard input (without one it ends), detaches
a supervisor of this class, and ends with 0 as soon as it runs the job, or prints on standard error why it
does not. It may be started ahead of its job, so that it loads while the job is being prepared. The plan comes
through standard input, with all secrets in it, and is never written to a disk. The class has the class of its
jobs as ``job_class``, is made with the job, its plan and its guard, and has a method ``run``.

The guard does nothing but wait. Should the supervisor be killed, the kernel hands all of its descendants to
the guard (a child subreaper), which kills them and ends the job. Should both be killed at once, the sentinel
does: a shell that reads from a pipe to which nobody ever writes. Guard and supervisor alone hold its other
end, so the read ends when the last of them has. (A parent-death signal for every replica would serve too, but
takes one more program per replica to set up: 1.5 ms of cpu each.)
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # run as a script, so that it may start without `site`
    sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4))

import json
import signal

from trainyard import system
from trainyard.backoff import Backoff
from trainyard.schedulers.exec.process import recovery
from trainyard.schedulers.exec.process.job_directory import log_exception
from trainyard.system import processes
from trainyard.system.identity import myself

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from trainyard.schedulers.exec.process.job_directory import JobDirectory

READY = b"ready"
ORPHANED = "--orphaned"
#: How long guard and supervisor may take from closing their files to their end, and the poll interval.
ORPHAN_SECONDS, ORPHAN_PAUSE = 60.0, 0.05
LONGEST_PATH = 300


def main() -> NoReturn:
    """Wait for a job, detach a supervisor for it, and end when that is ready."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # files that the command has open do not belong to the job
    system.become_subreaper()  # loads what guard and supervisor need before there is a job
    myself()
    supervisor_class = _class_named(sys.argv[1])
    data = sys.stdin.buffer.read()
    if not data:
        os._exit(0)
    plan = json.loads(data)
    job = supervisor_class.job_class(plan["job_dir"])
    log = job.file(f"{job.SUPERVISOR}.log")
    ready_in, ready_out = os.pipe()
    if os.fork() == 0:
        os.close(ready_in)
        try:
            _detach_output(log)
        except OSError as error:
            os.write(ready_out, f"cannot write {log}: {error.strerror}".encode())
            os._exit(1)
        _guard(job, plan, supervisor_class, ready_out)
    os.close(ready_out)
    answer = b""
    while chunk := os.read(ready_in, 65536):
        answer += chunk
    if answer != READY:
        problem = answer or f"the {job.SUPERVISOR} ended before it was ready: {_last_line(log)}".encode()
        os.write(2, problem)
        os._exit(1)
    os._exit(0)


def _class_named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


def _last_line(log: str) -> str:
    """Return the last line of a log, which says what went wrong."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = file.read().strip().splitlines()
    return lines[-1] if lines else "it was killed"


def _detach_output(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(null)


def _guard(job: JobDirectory, plan: dict[str, Any], supervisor_class: Any, ready: int) -> NoReturn:
    """Start the supervisor, wait for its end, and end the job if the supervisor was killed."""
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)  # not SIG_IGN, which programs of the job would inherit
    system.become_subreaper()
    system.set_title(f"trainyard: guard of {job.name}")
    identity = myself()
    lifeline, _kept_open = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(lifeline)
        _supervise(job, lambda: supervisor_class(job, plan, identity), ready)
    os.close(ready)
    plan.clear()  # it holds the environment of the job's programs
    sentinel = _start_sentinel(job, lifeline)
    while (ended := os.wait()[0]) != supervisor:
        if ended == sentinel:
            sentinel = 0
    processes.kill_descendants(spared=sentinel)
    state = job.read_state()
    if state is not None and not job.is_over(state):
        recovery.end_orphan(job, by_guard=True)
    processes.kill_descendants()  # the sentinel last of all, since this process may be killed too
    os._exit(0)


def _start_sentinel(job: JobDirectory, lifeline: int) -> int:
    """Start the sentinel in a new session; returns its pid, 0 if there is no shell."""
    flags = ["-I", "-S"] if sys.flags.no_site else ["-P"]
    command = [sys.executable, *flags, os.path.abspath(__file__), sys.argv[1], ORPHANED, job.path]
    try:
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", 'read -r _; exec "$@"', "sh", *command],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, lifeline, 0)],
            setsid=True,
        )
    except OSError:
        return 0
    finally:
        os.close(lifeline)


def _supervise(job: JobDirectory, make_supervisor: Callable[[], Any], ready: int) -> NoReturn:
    """Make the supervisor, say that it is ready, and run the job. Reports what it cannot write."""
    code = 1
    try:
        system.become_subreaper()
        system.set_title(f"trainyard: {job.SUPERVISOR} of {job.name}")
        try:
            supervisor = make_supervisor()
        except OSError as error:
            path = error.filename or job.path
            shown = path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}..."
            os.write(ready, f"cannot write {shown}: {error.strerror}".encode("utf-8", "surrogateescape"))
            os._exit(1)
        os.write(ready, READY)
        os.close(ready)
        supervisor.run()
        code = 0
    except BaseException:
        log_exception()
    finally:
        os._exit(code)


def _end_orphan(job: JobDirectory) -> None:
    """End a job whose guard and supervisor are gone, or about to: they close their files first."""
    polls = Backoff(ORPHAN_PAUSE, jitter=0, limit=ORPHAN_SECONDS).start()
    while (state := recovery.current_state(job)) is not None and not job.is_over(state) and polls.pause():
        pass


if __name__ == "__main__":
    if sys.argv[2] == ORPHANED:
        _end_orphan(_class_named(sys.argv[1]).job_class(sys.argv[3]))
    else:
        main()
