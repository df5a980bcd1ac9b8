"""Small JSON documents that are replaced whole."""

from __future__ import annotations

import errno
import json
import os
from _thread import get_native_id
from typing import Any

from shunter import system
from shunter.paths import state_error


def read_json(path: str) -> dict[str, Any] | None:
    """Return a document, or None if the file is missing or damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return None
    except OSError as error:
        raise state_error("read", path, error) from error
    return data if isinstance(data, dict) else None


def write_json(path: str, data: dict[str, Any]) -> None:
    """Replace a document, whole or not at all. Readers see the old one or the new one."""
    # the name is different for each thread, since several may write the same document
    temporary = f"{path}.{os.getpid()}.{get_native_id()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(data))
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def reserve(path: str, size: int) -> None:
    """Reserve disk space in a file, for a document that must be written even when the disk is full."""
    with open(path, "wb") as file:
        system.reserve_space(file.fileno(), size)


def write_json_last(path: str, data: dict[str, Any], reserved: str, *, is_final: bool = True) -> None:
    """Replace a document for the last time, in the space of the file ``reserved`` if the disk is full.

    ``is_final`` says whether to free that space.
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
        except OSError:  # it was used already, or nothing can be removed here: no harm
            pass


def is_full_disk(error: BaseException | None) -> bool:
    """Tell whether an error, or its cause, is a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False
