"""Starting a job's watcher, and finding out whether there is one.

A watcher listens on a socket in Linux's abstract namespace, named after the job. There can be one alone of
that name, it vanishes with its process, and all users of the machine see it. A connection is a knock: look
again.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys

from trainyard.errors import BackendError
from trainyard.processes import stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.docker.engine import Engine

#: Flag of a process in /proc/PID/stat, see include/linux/sched.h.
_PF_EXITING = 0x4
ENDING_MS = 10_000

WATCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watcher.py")
#: The shell leaves it to itself and ends at once, so that it is no child of ours.
_DETACH = 'exec "$PYTHON" -I -S "$WATCHER" "$JOB" </dev/null >/dev/null 2>&1 &'


def _address(app_id: str) -> str:
    return f"\0trainyard/docker/{app_id}"


def open_door(app_id: str) -> socket.socket | None:
    """Become a job's watcher; None if it has one."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    while True:
        try:
            door.bind(_address(app_id))
        except OSError:
            if not _has_vanished(app_id):
                door.close()
                return None
        else:
            door.listen()
            return door


def _has_vanished(app_id: str) -> bool:
    """Tell whether a job's watcher was about to end, and has ended now: its socket goes last of all."""
    visitor = attend(app_id)
    if visitor is None:
        return True
    with visitor:
        if not _is_ending(visitor):
            return False
        poll = select.poll()
        poll.register(visitor, select.POLLIN)
        return bool(poll.poll(ENDING_MS))


def _is_ending(visitor: socket.socket) -> bool:
    """Tell whether the process at the other end is about to end: killed, its files not yet closed."""
    fields = stat_fields(_pid_of(visitor))
    return fields is None or fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def _pid_of(visitor: socket.socket) -> int:
    """Return the process at the other end of a connection."""
    pid, _, _ = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def knock(app_id: str) -> bool:
    """Have a job's watcher look again, also one that is stopped (SIGSTOP); returns False if it has none."""
    visitor = attend(app_id)
    if visitor is None:
        return False
    with visitor:
        if _is_ending(visitor):
            return False
        from signal import SIGCONT  # late: importing it costs more than all of this

        try:
            os.kill(_pid_of(visitor), SIGCONT)
        except OSError:  # it has just ended, or is another user's
            pass
        return True


def attend(app_id: str) -> socket.socket | None:
    """Return a connection that ends when a job's watcher does; None if it has none."""
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        visitor.connect(_address(app_id))
    except OSError:
        visitor.close()
        return None
    return visitor


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
