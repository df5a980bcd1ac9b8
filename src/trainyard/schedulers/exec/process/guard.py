"""Processes that outlive whoever starts a job: launcher -> guard -> keeper, and a sentinel beside them.

The launcher ends once the keeper is ready. The guard only waits: should the keeper be killed, the guard ends
what it had started. Should both be killed at once, the sentinel does: a shell that reads from a pipe to which
nobody writes, and whose other end guard and keeper alone hold.
"""

from __future__ import annotations

import os
import sys

from trainyard import system
from trainyard.backoff import Backoff
from trainyard.system import processes
from trainyard.system.identity import Process, myself

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

READY = b"ready"
#: How long guard and keeper may take from closing their files to their end.
ORPHAN_SECONDS = 60.0
LONGEST_PATH = 300


def detach(log: str, guard: Callable[[int], NoReturn], what: str) -> NoReturn:
    """Fork a guard, and end when the keeper behind it is ready, or say why it is not.

    Args:
        log: file that takes the output of guard and keeper.
        guard: runs in the child; gets the descriptor on which the keeper says that it is ready.
        what: what the keeper is called.
    """
    ready_in, ready_out = os.pipe()
    if os.fork() == 0:
        os.close(ready_in)
        try:
            _detach_output(log)
        except OSError as error:
            os.write(ready_out, f"cannot write {log}: {error.strerror}".encode())
            os._exit(1)
        guard(ready_out)
    os.close(ready_out)
    answer = b""
    while chunk := os.read(ready_in, 65536):
        answer += chunk
    if answer != READY:
        os.write(2, answer or f"the {what} ended before it was ready: {_last_line(log)}".encode())
        os._exit(1)
    os._exit(0)


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


def guard(
    title: str,
    keep: Callable[[Process], NoReturn],
    ready: int,
    sentinel: tuple[str, Mapping[str, str]],
    started: Callable[[], None],
    clean_up: Callable[[], None],
) -> NoReturn:
    """Start a keeper, wait for its end, and clean up behind it if it was killed.

    Args:
        title: what this process is called in lists.
        keep: what the keeper does; gets the guard's identity.
        ready: descriptor that the keeper alone writes to.
        sentinel: command of a shell, and its environment.
        started: called once the keeper has been started.
        clean_up: called when all that the keeper had started has been killed.
    """
    system.become_subreaper()
    system.set_title(title)
    identity = myself()
    lifeline, _kept_open = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(lifeline)
        keep(identity)
    os.close(ready)
    started()
    waiting = _start_sentinel(*sentinel, lifeline)
    while (ended := os.wait()[0]) != keeper:
        if ended == waiting:
            waiting = 0
    processes.kill_descendants(spared=waiting)
    clean_up()
    processes.kill_descendants()  # the sentinel last of all, since this process may be killed too
    os._exit(0)


def _start_sentinel(command: str, environ: Mapping[str, str], lifeline: int) -> int:
    """Start the sentinel, in a session of its own; returns its pid, 0 where there is no shell."""
    try:
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", command],
            dict(environ),
            file_actions=[(os.POSIX_SPAWN_DUP2, lifeline, 0)],
            setsid=True,
        )
    except OSError:
        return 0
    finally:
        os.close(lifeline)


def keep(title: str, prepare: Callable[[], Callable[[], None]], ready: int, place: str) -> NoReturn:
    """Be a keeper: prepare, say that it is ready, and do the work.

    Args:
        title: what this process is called in lists.
        prepare: returns what does the work. What it cannot write is told to the launcher.
        ready: descriptor on which to say so.
        place: where it writes, for that message.
    """
    code = 1
    try:
        system.become_subreaper()
        system.set_title(title)
        try:
            work = prepare()
        except OSError as error:
            path = error.filename or place
            shown = path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}..."
            os.write(ready, f"cannot write {shown}: {error.strerror}".encode("utf-8", "surrogateescape"))
            os._exit(1)
        os.write(ready, READY)
        os.close(ready)
        work()
        code = 0
    except BaseException:
        note_fault()
    finally:
        os._exit(code)


def note_fault() -> None:
    """Write the traceback of the present exception to the process's log, unless its disk is full."""
    import traceback  # late: it would slow every start down

    try:
        traceback.print_exc()
        sys.stderr.flush()
    except OSError:
        pass


def wait_until_ended(is_over: Callable[[], bool], pause: float) -> None:
    """Look until a job is over whose guard and keeper are gone, or about to: they close their files first.

    Args:
        is_over: looks, and ends the job if nobody keeps it any more.
        pause: seconds between two looks.
    """
    polls = Backoff(pause, jitter=0, limit=ORPHAN_SECONDS).start()
    while not is_over() and polls.pause():
        pass
