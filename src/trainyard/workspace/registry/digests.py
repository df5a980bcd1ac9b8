"""Digests of content: ``sha256:...``, ``sha512:...``."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from trainyard.workspace.registry.errors import RegistryError

if TYPE_CHECKING:
    from hashlib import _Hash

_ALGORITHMS = {"sha256": 64, "sha512": 128}


def digest_of(content: bytes) -> str:
    """Return the ``sha256:`` digest."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def hasher(digest: str) -> _Hash:
    """Return a new hash of a digest's kind.

    Raises:
        RegistryError: the digest is of no kind that can be verified.
    """
    algorithm, _, value = digest.partition(":")
    if len(value) != _ALGORITHMS.get(algorithm, -1):
        raise RegistryError(f"{digest[:150]!r} is not a digest that can be verified (sha256 or sha512)")
    return hashlib.new(algorithm)


def matches(content: bytes, digest: str) -> bool:
    """Tell whether content has a digest."""
    value = hasher(digest)
    value.update(content)
    return value.hexdigest() == digest.partition(":")[2]
