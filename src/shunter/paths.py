"""Where shunter keeps its files on this machine.

``SHUNTER_HOME`` puts everything under one directory; otherwise the XDG base directories hold:
state (jobs and their logs, history) in ``~/.local/state/shunter``, configuration in
``~/.config/shunter``. As that specification asks, variables with relative paths are ignored.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Mapping

from shunter.errors import StateStoreError


def state_dir() -> str:
    """Return the directory of jobs and history."""
    return _base("state", "XDG_STATE_HOME", "~/.local/state")


def config_dir() -> str:
    """Return the directory of the user's configuration."""
    return _base("config", "XDG_CONFIG_HOME", "~/.config")


def jobs_dir() -> str:
    """Return the directory that holds one directory per local job."""
    return os.path.join(state_dir(), "jobs")


def history_path() -> str:
    """Return the path of the history database."""
    return os.path.join(state_dir(), "history.db")


def view_dir(name: str) -> str:
    """Return the working directory of a local job that has a workspace; ``name`` is the job's id."""
    return os.path.join(state_dir(), "workspaces", "views", name)


def existing(*places: str | None) -> str | None:
    """Return the first place that is there, as far as this machine can tell: a path has to exist here."""
    return next((place for place in places if place and (place[0] != "/" or os.path.exists(place))), None)


def make_private_dir(path: str) -> None:
    """Create a directory that only its owner can read, with its parents.

    Raises:
        StateStoreError: it cannot be created; the message names the path and the variable that moves it.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise state_error("make the state directory", path, error) from error


def has_content(path: str) -> bool:
    """Tell whether a file of the state directory exists and is not empty.

    Raises:
        StateStoreError: the file system does not say.
    """
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False
    except OSError as error:
        raise state_error("read the history in", path, error) from error


def state_error(attempt: str, path: str, error: OSError) -> StateStoreError:
    """Describe a failure of the file system below the state directory."""
    return StateStoreError(
        f"cannot {attempt} {path}: {error.strerror or error}",
        hint="Free space or fix the permissions, or set SHUNTER_HOME to a writable directory.",
    )


def _base(kind: str, variable: str, fallback: str) -> str:
    home = os.environ.get("SHUNTER_HOME")
    if home:
        return os.path.join(os.path.abspath(os.path.expanduser(home)), kind)
    return os.path.join(xdg(variable) or os.path.expanduser(fallback), "shunter")


def xdg(variable: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a directory of the XDG specification; "" if it is relative, as the specification demands."""
    path = environ.get(variable, "")
    return path if os.path.isabs(path) else ""


def remove_tree(path: str) -> None:
    """Remove a directory with all that is in it, also what its owner made read-only, if it exists.

    Raises:
        OSError: something cannot be removed.
    """
    try:
        _remove(path)
    except PermissionError:
        for directory, _, _ in os.walk(path):  # from the top, so that what was closed is walked too
            if not os.access(directory, os.W_OK | os.X_OK | os.R_OK):
                os.chmod(directory, 0o700)
        _remove(path)


def _remove(path: str) -> None:
    """Remove a directory, from which other processes may be removing files too."""
    while True:
        try:
            return shutil.rmtree(path)
        except FileNotFoundError:  # before Python 3.13, also of a file in it that has vanished meanwhile
            if not os.path.lexists(path):
                return None


# ---- reading files that another user may have created: never a FIFO or device, never without a limit

#: Configuration, ignore files and the like are never larger.
LARGEST = 16 << 20


def read_regular_file(path: str, largest: int = LARGEST, *, special: bool = False) -> bytes:
    """Return the content of a regular file of at most ``largest`` bytes.

    With ``special`` a pipe or device is read too, such as a shell's ``/dev/fd/63``.

    Raises:
        OSError: it cannot be read, is not a regular file, or is too large; ``strerror`` says which.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags if special else flags | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
        if not stat.S_ISREG(mode) and not special:
            raise OSError(errno.EINVAL, "it is a FIFO, a socket or a device, not a regular file", path)
        content = file.read(largest + 1)
        if len(content) > largest:
            raise OSError(errno.EFBIG, f"it is larger than {largest >> 10} KiB", path)
        return content
