"""Digests of content: ``sha256:...``, ``sha512:...``."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from trainyard.image_registry.registry_errors import RegistryError

if TYPE_CHECKING:
    from hashlib import _Hash

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


def is_digest(value: object) -> bool:
    """Tell whether something is a digest that can be verified."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def digest_of(content: bytes) -> str:
    """Return the ``sha256:`` digest."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def hasher(digest: str) -> _Hash:
    """Return a new hash of a digest's kind.

    Raises:
        RegistryError: the digest is of no kind that can be verified.
    """
    if not is_digest(digest):
        raise RegistryError(f"{digest[:150]!r} is not a digest that can be verified (sha256 or sha512)")
    return hashlib.new(digest.partition(":")[0])


def matches(content: bytes, digest: str) -> bool:
    """Tell whether content has a digest."""
    value = hasher(digest)
    value.update(content)
    return value.hexdigest() == digest.partition(":")[2]
