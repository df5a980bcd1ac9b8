"""Lines about the run, on stderr, in the predecessors' format. The logging package stays unloaded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
_NAMES = {DEBUG: "DEBUG", INFO: "INFO", WARNING: "WARNING", ERROR: "ERROR"}
_threshold = INFO
_mask: Callable[[str], str] = str


def set_level(level: int) -> None:
    """Show messages of this level and above. Default: 20 (INFO)."""
    global _threshold
    _threshold = level


def set_mask(mask: Callable[[str], str]) -> None:
    """Pass every message through a function that takes secrets out of it."""
    global _mask
    _mask = mask


def shows(level: int) -> bool:
    """Whether messages of this level are shown."""
    return level >= _threshold


def write(level: int, message: str) -> None:
    """Write one message. Never raises: a closed stderr must not end a training job."""
    if not shows(level):
        return
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    head = f"{stamp},{int(now % 1 * 1000):03d} shunter-toolkit {_NAMES.get(level, level):<8}"
    data = f"{head} {_mask(message)}\n".encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        pass


def debug(message: str) -> None:
    """Write a message for those who debug the toolkit."""
    write(DEBUG, message)


def info(message: str) -> None:
    """Write an ordinary message."""
    write(INFO, message)


def warning(message: str) -> None:
    """Write a message about something that the user may want to change."""
    write(WARNING, message)


def error(message: str) -> None:
    """Write a message about what ended the job."""
    write(ERROR, message)
