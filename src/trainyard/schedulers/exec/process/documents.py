"""Small JSON documents that are replaced whole."""

from __future__ import annotations

import errno
import json
import os
from _thread import get_native_id

from trainyard import system
from trainyard.paths import state_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def read_json(path: str) -> dict[str, Any] | None:
    """Return a document, or None if there is none that is whole."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return None
    except OSError as error:
        raise state_error("read", path, error) from error
    return data if isinstance(data, dict) else None


def write_json(path: str, data: dict[str, Any]) -> None:
    """Replace a document, whole or not at all. Readers see the old one or the new one."""
    # a name for each thread: several of one process may write the same document
    temporary = f"{path}.{os.getpid()}.{get_native_id()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(data))  # not json.dump, which is ten times slower
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def reserve(path: str, size: int) -> None:
    """Set room on the disk aside, in a file, for a document that has to be written even when it is full."""
    with open(path, "wb") as file:
        system.reserve_space(file.fileno(), size)


def write_json_last(path: str, data: dict[str, Any], reserved: str, *, is_final: bool = True) -> None:
    """Replace a document for the last time, in the room set aside if there is no other.

    Args:
        path: the document.
        data: its content.
        reserved: the file that holds the room.
        is_final: whether the room is given up once it is not needed.
    """
    try:
        write_json(path, data)
    except OSError:
        encoded = json.dumps(data).encode()
        with open(reserved, "r+b") as file:
            file.write(encoded)
            file.truncate()
        os.replace(reserved, path)
        return
    if is_final:
        try:
            os.unlink(reserved)
        except OSError:  # it has been used, or nothing may be removed here: it harms nobody
            pass


def is_full_disk(error: BaseException | None) -> bool:
    """Tell whether an error, or what caused it, is that no room is left on a disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False
