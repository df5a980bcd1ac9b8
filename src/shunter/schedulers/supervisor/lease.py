"""The lease of a race: a file with the handle of the one job that may run. See `shunter.runner.races`.

Where the jobs share no folder it is an object of S3, of which a job has presigned URLs in place of a path.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress

from shunter._toolkit import race_lease


def take(path: str, handle: str) -> str:
    """Take a lease for a job, unless another one has it; returns the handle of the one that has it.

    The file gets its name only with its content, by a hard link: no reader sees an empty one, and of many
    that try at once, also on several machines, one succeeds. For an object see `race_lease.take`.

    Raises:
        OSError: it can be neither taken nor read.
    """
    if race_lease.is_object(path):
        return race_lease.take(path, handle)
    own = f"{path}.{secrets.token_hex(8)}"
    try:
        with open(own, "x", encoding="utf-8") as file:
            file.write(f"{handle}\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(own, path)
    finally:
        with suppress(FileNotFoundError):
            os.remove(own)
    return holder(path)


def holder(path: str) -> str:
    """Return the handle of the job that has a lease; "" if none has it.

    Raises:
        OSError: it cannot be read.
    """
    if race_lease.is_object(path):
        return race_lease.holder(path)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""
