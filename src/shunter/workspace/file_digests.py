"""Digests of files, remembered so that files that have not changed are not read again.

A file counts as unchanged while its size, modification time, change time and inode are. That leaves one trap,
known from Git: a file that is changed twice within one tick of the file system's clock, once before it is
hashed and once after, looks the same. So a digest is remembered only if the file had not been touched for a
while when it was read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from typing import Any

from shunter.paths import state_dir

#: The kernel's clock for file times ticks at least every 10 ms; old file systems keep whole seconds, or two.
FINE_TICK_NS = 100_000_000
COARSE_TICK_NS = 2_500_000_000

Key = tuple[int, int, int, int]


def key_of(info: os.stat_result) -> Key:
    """Return what must stay the same for a file to count as unchanged."""
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def is_settled(info: os.stat_result, now_ns: int) -> bool:
    """Tell whether a change that came after ``now_ns`` would show in the file's times.

    ``info`` is the file when it was read, ``now_ns`` when reading it began, in nanoseconds.
    """
    coarse = info.st_mtime_ns % 1_000_000_000 == 0 and info.st_ctime_ns % 1_000_000_000 == 0
    tick = COARSE_TICK_NS if coarse else FINE_TICK_NS
    return max(info.st_ctime_ns, 0) + tick < now_ns


class Index:
    """The digests of one project. Its failures are not errors: files are read again.

    Args:
        root: the project's directory.
    """

    def __init__(self, root: str) -> None:
        name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
        self._path = os.path.join(state_dir(), "workspaces", "index", name)
        self._known: dict[str, list[Any]] = _load(self._path)
        self._used: dict[str, list[Any]] = {}
        self._changed = False

    def digest(self, path: str, info: os.stat_result) -> str | None:
        """Return the digest of a file that has not changed, None if it is not known."""
        row = self._known.get(path)
        if row is None or tuple(row[:4]) != key_of(info):
            return None
        self._used[path] = row
        digest: str = row[4]
        return digest

    def remember(self, path: str, info: os.stat_result, digest: str, began_ns: int) -> None:
        """Keep the digest (SHA-256) of a file of the project, as it was when it was read, for later.

        ``began_ns`` is when reading it began.
        """
        if is_settled(info, began_ns):
            self._used[path] = [*key_of(info), digest]
            self._changed = True

    def save(self) -> None:
        """Save the digests of the files that were looked up or read."""
        if not self._changed and len(self._used) == len(self._known):
            return
        body = json.dumps(self._used, separators=(",", ":")).encode("ascii")
        temporary = f"{self._path}.{os.getpid()}.{time.monotonic_ns()}.tmp"
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(body)
            os.replace(temporary, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _load(path: str) -> dict[str, list[Any]]:
    try:
        with open(path, "rb") as file:
            known = json.load(file)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


class ChangingFileError(Exception):
    """A file was written to each time it was read, and not only at its end."""


class NotAFileError(Exception):
    """What was a file a moment ago is no longer a file."""


def hash_file(path: str) -> tuple[str, os.stat_result, int]:
    """Return a file's digest, what it was when it was read, and when reading it began in nanoseconds.

    Of a file that becomes longer all the time, as a log does, it is the digest of what it had; reading it
    began at 0, so that the digest is not remembered.

    Raises:
        OSError: it cannot be read.
        NotAFileError: it is not a regular file.
        ChangingFileError: it is being written to all the time.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        for _ in range(3):
            began = time.time_ns()
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise NotAFileError(path)
            file.seek(0)
            digest, left = hashlib.sha256(), before.st_size
            while left and (chunk := file.read(min(left, 1 << 20))):
                digest.update(chunk)
                left -= len(chunk)
            after = os.fstat(descriptor)
            if key_of(before) == key_of(after):
                return digest.hexdigest(), before, began
    if after.st_size > before.st_size:
        return digest.hexdigest(), before, 0
    raise ChangingFileError(path)
