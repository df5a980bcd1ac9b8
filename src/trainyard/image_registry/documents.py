"""JSON documents of registries: parsed, and checked for the members that we read.

A registry is another party. What it sends may be damaged or made to harm, so nothing of a document is used
before its type is known, and no digest reaches a URL that is not one.

https://github.com/opencontainers/image-spec/blob/main/manifest.md, .../image-index.md and .../config.md
"""

from __future__ import annotations

import json
from typing import Any

from trainyard.image_registry.digests import is_digest
from trainyard.image_registry.registry_errors import RegistryError

#: More layers than any runtime takes; Docker's own limit is 127.
MOST_LAYERS = 1000
_LARGEST_SIZE = 1 << 62


def parse_object(body: bytes, what: str) -> dict[str, Any]:
    """Return a document that is a JSON object.

    Args:
        body: its bytes.
        what: what it is, for messages: ``the manifest of IMAGE``.

    Raises:
        RegistryError: it is not.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RegistryError(f"{what} is not a JSON object")
    return value


def check_index(document: dict[str, Any], what: str) -> None:
    """Check a list of manifests for several platforms.

    Raises:
        RegistryError: a member is missing, or not of its type.
    """
    for number, entry in enumerate(_list(document, "manifests", what)):
        where = f"manifests[{number}]"
        _check_descriptor(entry, f"{what}: {where}")
        platform = entry.get("platform")
        if platform is not None:
            _check_texts(platform, ("os", "architecture", "variant"), f"{what}: {where}.platform")


def check_manifest(document: dict[str, Any], what: str) -> None:
    """Check the manifest of one image.

    Raises:
        RegistryError: a member is missing, or not of its type.
    """
    _check_descriptor(document.get("config"), f"{what}: config")
    layers = _list(document, "layers", what)
    if len(layers) > MOST_LAYERS:
        raise _damaged(f"{what}: layers", f"{len(layers)} of them, more than {MOST_LAYERS}")
    for number, layer in enumerate(layers):
        _check_descriptor(layer, f"{what}: layers[{number}]")
    _check_texts(document.get("annotations") or {}, None, f"{what}: annotations")


def check_config(document: dict[str, Any], what: str) -> None:
    """Check an image's configuration.

    Raises:
        RegistryError: a member is missing, or not of its type.
    """
    rootfs = document.get("rootfs")
    if not isinstance(rootfs, dict):
        raise _damaged(f"{what}: rootfs", "not an object")
    for number, digest in enumerate(_list(rootfs, "diff_ids", f"{what}: rootfs")):
        if not is_digest(digest):
            raise _damaged(f"{what}: rootfs.diff_ids[{number}]", "not a digest")
    _check_texts(document, ("os", "architecture", "variant"), what)
    inner = document.get("config") or {}
    _check_texts(inner, ("WorkingDir", "User"), f"{what}: config")
    _check_texts(inner.get("Labels") or {}, None, f"{what}: config.Labels")
    for number, step in enumerate(_list(document, "history", what) if document.get("history") else ()):
        if not isinstance(step, dict):
            raise _damaged(f"{what}: history[{number}]", "not an object")


def _list(document: dict[str, Any], key: str, what: str) -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list):
        raise _damaged(f"{what}: {key}", "not a list")
    return value


def _check_descriptor(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _damaged(where, "not an object")
    if not is_digest(value.get("digest")):
        raise _damaged(f"{where}.digest", "not a digest of sha256 or sha512")
    size = value.get("size")
    if type(size) is not int or not 0 <= size <= _LARGEST_SIZE:
        raise _damaged(f"{where}.size", "not a number of bytes")
    _check_texts(value, ("mediaType",), where)


def _check_texts(value: Any, names: tuple[str, ...] | None, where: str) -> None:
    """Check that members of an object are text or absent: those that are named, or all."""
    if not isinstance(value, dict):
        raise _damaged(where, "not an object")
    for name in value if names is None else names:
        if not isinstance(value.get(name), str | None):
            raise _damaged(f"{where}.{name}"[:200], "not text")


def _damaged(where: str, problem: str) -> RegistryError:
    return RegistryError(
        f"{where} is {problem}",
        hint="The image is damaged in its registry, or the registry is broken. Push the image again.",
    )
