"""Pickles that are read only if their writer had the job's key: calls, results, calls to go on with.

Unpickling runs code, and shared folders, buckets and logs may be written by others. So each file begins with
a HMAC-SHA256 of the rest and of its purpose (RFC 2104); with the purpose in it, a result cannot be passed off
as that of another call. A header of JSON follows, which says what the pickle needs before it is read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from collections.abc import Mapping
from typing import Any, Dict, NamedTuple

_MAGIC = b"shunter-sealed-1 "
_DIGEST = 64  # hexadecimal digits


class SealError(ValueError):
    """The file is damaged, or was not written by this job."""


class Sealed(NamedTuple):
    """What a file holds: its header, and the pickle, which nobody has read yet."""

    header: Dict[str, Any]
    body: bytes


def seal(header: Mapping[str, Any], body: bytes, key: bytes, purpose: str) -> bytes:
    """Return the file of a pickle.

    Args:
        header: JSON values.
        body: the pickle.
        key: the job's key.
        purpose: what it is for, such as ``result 3 0``; it is read only for the same purpose.
    """
    content = json.dumps(dict(header)).encode() + b"\n" + body
    return _MAGIC + _digest(content, key, purpose).encode() + b"\n" + content


def unseal(data: bytes, key: bytes, purpose: str) -> Sealed:
    """Return the content of a file.

    Raises:
        SealError: it is damaged, for another purpose, or from another job.
    """
    start = len(_MAGIC) + _DIGEST + 1
    digest, content = data[len(_MAGIC) : start - 1], data[start:]
    if not data.startswith(_MAGIC) or not hmac.compare_digest(
        digest, _digest(content, key, purpose).encode()
    ):
        raise SealError("it is damaged, or was written by someone who does not have this job's key")
    header, _, body = content.partition(b"\n")
    return Sealed(json.loads(header), body)


def _digest(content: bytes, key: bytes, purpose: str) -> str:
    return hmac.new(key, purpose.encode() + b"\0" + content, hashlib.sha256).hexdigest()


def python_version() -> str:
    """Return the major and minor version of this Python, such as ``3.11``: pickles of functions need it."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"
