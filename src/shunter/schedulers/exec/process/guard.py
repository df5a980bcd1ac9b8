"""Program of the processes that outlive the command that starts a job: guard and supervisor.

``python guard.py MODULE:CLASS waiting`` detaches both at once, ahead of the job, so that they load while the
job is being prepared. The supervisor writes its identity to standard error, reads a plan from standard input
(without a whole one it ends), and writes READY to standard error as soon as it runs the job, or else why it
does not. It does not care whether the command still hears that. The plan comes through standard input, with
all secrets in it, and is never written to a disk. The class names the class of its jobs in ``job_class``. Its
constructor takes the job, its plan, its guard and what ``open_shared`` returned in the guard; it has a method
``run``.

The guard does nothing but wait. If the supervisor is killed, the kernel hands all of its descendants to
the guard (a child subreaper), which kills them and ends the job. If both are killed at once, the sentinel
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
from typing import Any, NoReturn

from shunter import system
from shunter.backoff import Backoff
from shunter.schedulers.exec import outbox
from shunter.schedulers.exec.process import recovery
from shunter.schedulers.exec.process.job_directory import JobDirectory, log_exception
from shunter.schedulers.exec.process.launcher import READY
from shunter.system import processes
from shunter.system.identity import Process, myself

ORPHANED = "--orphaned"
#: How long guard and supervisor may take from closing their files to their end, and the poll interval.
ORPHAN_SECONDS, ORPHAN_PAUSE = 60.0, 0.05
LONGEST_PATH = 300


def main() -> NoReturn:
    """Detach a guard and its supervisor, which wait for a job."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # files that the command has open do not belong to the job
    supervisor_class = _class_named(sys.argv[1])
    if os.fork() == 0:
        _guard(supervisor_class)
    os._exit(0)


def _class_named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


def _guard(supervisor_class: Any) -> NoReturn:
    """Start the supervisor, wait for its end, and end its job if it was killed."""
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)  # not SIG_IGN, which programs of the job would inherit
    system.become_subreaper()
    identity = myself()
    shared = supervisor_class.open_shared()
    lifeline, _kept_open = os.pipe()
    path_in, path_out = os.pipe()
    guarded_in, guarded_out = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        for handle in (lifeline, path_in, guarded_out):
            os.close(handle)
        _supervise(supervisor_class, identity, shared, path_out, guarded_in)
    os.close(path_out)
    os.close(guarded_in)
    _redirect_output(os.devnull)
    with open(path_in, "rb") as pipe:
        path = os.fsdecode(pipe.read())
    if not path:  # there is no job
        os._exit(0)
    job: JobDirectory = supervisor_class.job_class(path)
    directory = _opened(job.path)
    sentinel = _start_sentinel(job, lifeline)
    os.close(guarded_out)  # the supervisor may begin
    try:
        _redirect_output(_log_of(job))
    except OSError:  # the supervisor reports this problem
        pass
    system.set_title(f"shunter: guard of {job.name}")
    while (ended := os.wait()[0]) != supervisor:
        if ended == sentinel:
            sentinel = 0
    # A job that has ended may have been removed, and its name be that of another.
    is_same = _is_at(directory, job.path)
    state = job.read_state() if is_same else None
    if state is None or not job.is_over(state):
        processes.kill_descendants(spared=sentinel)  # spared, since this process may be killed too
        if state is not None:
            recovery.end_orphan(job, by_guard=True)
    elif sentinel:  # the only child, as a rule: then /proc need not be searched
        processes.send_to(sentinel, signal.SIGKILL)
        os.waitpid(sentinel, 0)
    processes.kill_descendants()
    if is_same:
        outbox.send_if_waiting(job.path)
    os._exit(0)


def _opened(path: str) -> int:
    """Open a directory, so that its inode number is given to no other; -1 if it is gone."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1


def _is_at(directory: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(directory), os.stat(path))
    except OSError:
        return False


def _log_of(job: JobDirectory) -> str:
    return job.file(f"{job.SUPERVISOR}.log")


def _redirect_output(path: str) -> None:
    """Redirect standard input from /dev/null, and append output and errors to a file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(null)


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


def _supervise(
    supervisor_class: Any, guard: Process, shared: Any, path_out: int, guarded_in: int
) -> NoReturn:
    """Say who waits for a plan, make the supervisor, say that it is ready, and run the job.

    Nothing of the job is started before the guard closes the other end of ``guarded_in``, with
    its sentinel in place.
    """
    system.become_subreaper()
    answer = os.dup(2)
    _tell(answer, f"{myself()}\n")
    with open(0, "rb", closefd=False) as stdin:
        data = stdin.read()
    try:
        plan = json.loads(data.decode())
    except ValueError:  # the command has no job, or was killed while it handed one over
        os._exit(0)
    code = 1
    try:
        job = supervisor_class.job_class(plan["job_dir"])
        try:
            _redirect_output(_log_of(job))
            os.write(path_out, os.fsencode(job.path))
            os.close(path_out)
            system.set_title(f"shunter: {job.SUPERVISOR} of {job.name}")
            supervisor = supervisor_class(job, plan, guard, shared)
        except OSError as error:
            path = error.filename or job.path
            shown = path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}..."
            _tell(answer, f"cannot write {shown}: {error.strerror}")
            os._exit(1)
        _tell(answer, READY.decode())
        os.close(answer)
        answer = -1
        os.read(guarded_in, 1)
        os.close(guarded_in)
        supervisor.run()
        code = 0
    except BaseException as error:
        log_exception()
        if answer >= 0:
            problem = f"its supervisor ended before it was ready: {type(error).__name__}: {error}"
            _tell(answer, problem)
    finally:
        os._exit(code)


def _tell(answer: int, text: str) -> None:
    """Answer the command, if it is still there."""
    try:
        os.write(answer, text.encode("utf-8", "surrogateescape"))
    except OSError:
        pass


def _end_orphan(job: JobDirectory) -> None:
    """End a job whose guard and supervisor are gone, or about to: they close their files first."""
    polls = Backoff(ORPHAN_PAUSE, jitter=0, limit=ORPHAN_SECONDS).start()
    while (state := recovery.current_state(job)) is not None and not job.is_over(state) and polls.pause():
        pass
    if state is not None:
        outbox.send_if_waiting(job.path)


if __name__ == "__main__":
    if sys.argv[2] == ORPHANED:
        _end_orphan(_class_named(sys.argv[1]).job_class(sys.argv[3]))
    else:
        main()
