"""Starting a job's watcher, and finding out whether there is one.

A watcher listens on a socket in Linux's abstract namespace, named after the job. There can be one alone of
that name, it vanishes with its process, and all users of the machine see it. A connection is a knock: look
again.
"""

from __future__ import annotations

import os
import socket
import sys

from trainyard.errors import BackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.docker.engine import Engine

WATCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watcher.py")
#: The shell leaves it to itself and ends at once, so that it is no child of ours.
_DETACH = 'exec "$PYTHON" -I -S "$WATCHER" "$JOB" </dev/null >/dev/null 2>&1 &'


def _address(app_id: str) -> str:
    return f"\0trainyard/docker/{app_id}"


def open_door(app_id: str) -> socket.socket | None:
    """Become a job's watcher; None if it has one."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.bind(_address(app_id))
    except OSError:
        door.close()
        return None
    door.listen()
    return door


def knock(app_id: str) -> bool:
    """Have a job's watcher look again; returns False if it has none."""
    visitor = attend(app_id)
    if visitor is None:
        return False
    visitor.close()
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
