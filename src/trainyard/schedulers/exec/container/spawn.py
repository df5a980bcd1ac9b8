"""Starting a job's watcher, and finding out whether there is one.

A watcher listens under a name made of the job's (`trainyard.system.claim_name`), which only one process can
have at a time and which is free again when that process ends. A connection asks it to look at the job again.
"""

from __future__ import annotations

import os
import select
import sys

from trainyard import system
from trainyard.errors import BackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from trainyard.docker.engine import Engine

ENDING_MS = 10_000

WATCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watcher.py")
#: The shell leaves it to itself and ends at once, so that it is no child of ours.
_DETACH = 'exec "$PYTHON" -I -S "$WATCHER" "$JOB" </dev/null >/dev/null 2>&1 &'


def _name(app_id: str) -> str:
    return f"docker/{app_id}"


def open_door(app_id: str) -> socket.socket | None:
    """Become a job's watcher; None if it has one."""
    while True:
        door = system.claim_name(_name(app_id))
        if door is not None or not _has_vanished(app_id):
            return door


def _has_vanished(app_id: str) -> bool:
    """Tell whether a job's watcher was about to end, and has ended now: its socket goes last of all."""
    visitor = attend(app_id)
    if visitor is None:
        return True
    with visitor:
        if not _is_ending(app_id, visitor):
            return False
        poll = select.poll()
        poll.register(visitor, select.POLLIN)
        return bool(poll.poll(ENDING_MS))


def _is_ending(app_id: str, visitor: socket.socket) -> bool:
    """Tell whether the watcher at the other end is about to end: killed, its files not yet closed."""
    facts = system.process_facts(system.pid_of_name(_name(app_id), visitor))
    return facts is None or facts.status == "ending"


def knock(app_id: str) -> bool:
    """Have a job's watcher look again, also one that is stopped (SIGSTOP); returns False if it has none."""
    visitor = attend(app_id)
    if visitor is None:
        return False
    with visitor:
        if _is_ending(app_id, visitor):
            return False
        from signal import SIGCONT  # late: importing it costs more than all of this

        try:
            os.kill(system.pid_of_name(_name(app_id), visitor), SIGCONT)
        except OSError:  # it has just ended, or is another user's
            pass
        return True


def attend(app_id: str) -> socket.socket | None:
    """Return a connection that ends when a job's watcher does; None if it has none."""
    return system.connect_to_name(_name(app_id))


def ensure_watcher(engine: Engine, app_id: str) -> None:
    """Have a job's watcher look again; start one if it has none.

    Raises:
        BackendError: it cannot be started.
    """
    if knock(app_id):
        return
    environ = {
        **os.environ,
        **engine.environ(),
        "PYTHON": sys.executable,
        "WATCHER": WATCHER,
        "JOB": app_id,
    }
    try:
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", _DETACH], environ, setsid=True)
        os.waitpid(pid, 0)
    except OSError as error:
        raise BackendError(f"cannot start the watcher of {app_id}: {error}") from error
