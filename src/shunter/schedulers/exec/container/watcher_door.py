"""The door of a job's watcher: one process of a user has it at a time, and others knock at it.

Who has it holds the lock of a file in a directory of the user's own. The file says where the door is: a
socket under a random name (`shunter.system.claim_name`). Other users see such names, so they could take one
that is known beforehand, or one whose process has ended. Nobody but this user is let in, or believed.
"""

from __future__ import annotations

import fcntl
import os
import socket

from shunter import system
from shunter.paths import state_dir, xdg
from shunter.system.identity import host_name

#: The locks of the doors that this process has, which it keeps to its end.
_locks: list[int] = []


def open_door(app_id: str) -> socket.socket | None:
    """Return the listening socket of a job's only watcher; None if another process has it.

    Raises:
        OSError: the directory cannot be written.
    """
    path = _path(app_id)
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        if _is_at(lock, path):
            break
        os.close(lock)  # its watcher has just removed it
    name = f"docker/{os.urandom(16).hex()}"
    door = system.claim_name(name)
    os.ftruncate(lock, 0)
    os.pwrite(lock, name.encode(), 0)
    _locks.append(lock)
    return door


def forget_door(app_id: str) -> None:
    """Remove the file of a door that this process has and needs no more."""
    try:
        os.unlink(_path(app_id))
    except OSError:
        pass


def connect_to_watcher(app_id: str) -> socket.socket | None:
    """Return a connection that ends when a job's watcher does, or None if it has none."""
    name = _name(app_id)
    connection = system.connect_to_name(name) if name else None
    if connection is not None and not is_own(connection):
        connection.close()
        return None
    return connection


def is_own(connection: socket.socket) -> bool:
    """Tell whether the process at the other end is this user's."""
    return system.user_of_visitor(connection) == os.geteuid()


def pid_of_watcher(app_id: str, connection: socket.socket) -> int:
    """Return the process at the other end of a connection to a job's watcher; 0 if that is not known."""
    try:
        return system.pid_of_name(_name(app_id), connection)
    except (OSError, ValueError):
        return 0


def _name(app_id: str) -> str:
    try:
        with open(_path(app_id), encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def _path(app_id: str) -> str:
    """Return the path of a job's file, in a directory for the machine: homes may be shared by several.

    It is the same whichever state directory is used, unless the home directory cannot be written.
    """
    state = xdg("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    for top in (os.path.join(state, "shunter"), state_dir()):
        folder = os.path.join(top, "watchers", host_name())
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and os.stat(folder).st_uid == os.geteuid():
            break
    return os.path.join(folder, app_id)


def _is_at(lock: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False
