"""Images of a registry: digests, media types, the manifest for one platform, and the configuration.

Registries are not trusted. What they send may be damaged or malicious, so no value of a document is used
before its type has been checked, and only verified digests are put into URLs.

https://github.com/opencontainers/image-spec/blob/main/manifest.md, .../image-index.md, .../config.md,
.../media-types.md, and https://distribution.github.io/distribution/spec/manifest-v2-2/
"""

from __future__ import annotations

import hashlib
import json
import platform as machine
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shunter.docker.image_reference import Reference
from shunter.errors import ConfigError
from shunter.image_registry.registry_errors import RegistryError

if TYPE_CHECKING:
    from hashlib import _Hash

    from shunter.image_registry.client import ManifestDocument, RegistryClient

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"

MANIFEST_TYPES = (OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST)
LISTS = frozenset({DOCKER_LIST, OCI_INDEX})
IMAGES = frozenset({DOCKER_MANIFEST, OCI_MANIFEST})
CONFIGS = frozenset({DOCKER_CONFIG, OCI_CONFIG})
#: The media type of a layer compressed by gzip, by that of the manifest.
GZIP_LAYERS = {DOCKER_MANIFEST: f"{DOCKER_LAYER}.gzip", OCI_MANIFEST: f"{OCI_LAYER}+gzip"}
LONGEST_CONFIG = 8 << 20
_LARGEST_SIZE = 1 << 62
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
# https://github.com/opencontainers/image-spec/blob/main/image-index.md: GOOS and GOARCH of Go
_ARCHITECTURES = {
    "x86_64": "amd64",
    "amd64": "amd64",
    "aarch64": "arm64",
    "arm64": "arm64",
    "armv7l": "arm/v7",
    "armv6l": "arm/v6",
    "i686": "386",
    "i386": "386",
}


# ---- digests and media types


def digest_of(content: bytes) -> str:
    """Return the ``sha256:`` digest."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def hasher(digest: str) -> _Hash:
    """Return a new hash of a digest's kind.

    Raises:
        RegistryError: the digest is of another kind than can be verified.
    """
    if not _DIGEST.fullmatch(digest):
        raise RegistryError(f"{digest[:150]!r} is not a digest that can be verified (sha256 or sha512)")
    return hashlib.new(digest.partition(":")[0])


def is_foreign(media_type: str) -> bool:
    """Tell whether a layer is not distributed by registries, but fetched from its URLs."""
    return ".foreign." in media_type or ".nondistributable." in media_type


# ---- documents


def parse_object(body: bytes, what: str) -> dict[str, Any]:
    """Return a document that is a JSON object; messages call it ``what``: ``the manifest of IMAGE``.

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


def _text_problem(value: object) -> str:
    return "" if isinstance(value, str | None) else "not text"


def _texts_problem(value: object) -> str:
    is_right = isinstance(value, dict) and not any(map(_text_problem, value.values()))
    return "" if is_right else "not an object of texts"


def _digest_problem(value: object) -> str:
    is_right = isinstance(value, str) and _DIGEST.fullmatch(value)
    return "" if is_right else "not a digest of sha256 or sha512"


def _size_problem(value: object) -> str:
    return "" if type(value) is int and 0 <= value <= _LARGEST_SIZE else "not a number of bytes"


# The shapes of documents: a function for a value, a list of one shape for a list, a dictionary of shapes for
# an object, in which members with a question mark may be missing or empty.
_DESCRIPTOR = {"digest": _digest_problem, "size": _size_problem, "mediaType": _text_problem}
_PLATFORM = {"os": _text_problem, "architecture": _text_problem, "variant": _text_problem}
MANIFEST = {"config": _DESCRIPTOR, "layers": [_DESCRIPTOR], "annotations?": _texts_problem}
INDEX = {"manifests": [{**_DESCRIPTOR, "platform?": _PLATFORM}]}
CONFIG = {
    **_PLATFORM,
    "rootfs": {"diff_ids": [_digest_problem]},
    "config?": {"WorkingDir": _text_problem, "User": _text_problem, "Labels?": _texts_problem},
    "history?": [{}],
}


def check(value: Any, shape: Any, what: str, where: str = "") -> None:
    """Check that a document has a shape: ``MANIFEST``, ``INDEX`` or ``CONFIG``.

    Raises:
        RegistryError: something is missing, or has the wrong type.
    """
    problem = ""
    if callable(shape):
        problem = shape(value)
    elif not isinstance(value, type(shape)):
        problem = "not an object" if isinstance(shape, dict) else "not a list"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            check(item, shape[0], what, f"{where}[{number}]")
    else:
        for key, inner in shape.items():
            name = key.removesuffix("?")
            if name == key or value.get(name):
                check(value.get(name), inner, what, f"{where}.{name}".lstrip("."))
    if problem:
        raise RegistryError(
            f"{what}: {where} is {problem}",
            hint="The image is damaged in its registry, or the registry is broken. Push the image again.",
        )


# ---- images


@dataclass(frozen=True)
class RegistryImage:
    """An image for one platform.

    Attributes:
        reference: as it was asked for.
        digest: of the image's own manifest.
        media_type: of that manifest.
        manifest: its content.
        config: content of the image's configuration.
        platform: ``linux/amd64``.
        selected_digest: what the reference led to: the index's digest where there is one, else ``digest``.
    """

    reference: Reference
    digest: str
    media_type: str
    manifest: dict[str, Any]
    config: dict[str, Any]
    platform: str
    selected_digest: str


def own_platform() -> str:
    """Return the platform of this machine's containers, ``linux/amd64``."""
    name = machine.machine().lower()
    return f"linux/{_ARCHITECTURES.get(name, name)}"


def platforms_of(client: RegistryClient, reference: Reference) -> list[str]:
    """Return the platforms that an image is there for, such as ``linux/amd64``.

    Raises:
        ConfigError: there is no such image.
        RegistryError: the registry refuses, cannot be reached, or sends something else than an image.
    """
    what = f"the manifest of {reference}"
    top = client.manifest(reference.repository, reference.selector)
    document = parse_object(top.body, what) if top is not None else {}
    if top is None or _kind(top, document) not in LISTS:
        return [read_image(client, reference).platform]
    check(document, INDEX, what)
    platforms = [_platform_of(entry.get("platform") or {}) for entry in document["manifests"]]
    return [platform for platform in platforms if not platform.startswith("unknown")]


def read_image(client: RegistryClient, reference: Reference, platform: str | None = None) -> RegistryImage:
    """Fetch manifest and configuration of an image.

    Args:
        client: of the reference's registry.
        reference: the image.
        platform: ``os/architecture[/variant]``; this machine's by default, where there is a choice.

    Raises:
        ConfigError: there is no such image, or none for the platform.
        RegistryError: the registry refuses, or cannot be reached.
    """
    what = f"the manifest of {reference}"
    top = client.manifest(reference.repository, reference.selector)
    if top is None:
        raise ConfigError(
            f"there is no image {reference} in its registry",
            hint="Check the name and the tag, and that the image was pushed.",
        )
    document = parse_object(top.body, what)
    digest, kind = top.digest, _kind(top, document)
    is_list = kind in LISTS
    if is_list:
        check(document, INDEX, what)
        digest = _choose(document, platform or own_platform(), reference)
        chosen = client.manifest(reference.repository, digest)
        if chosen is None:
            raise RegistryError(
                f"the image {reference} is damaged: its registry has no manifest {digest}", status=404
            )
        document = parse_object(chosen.body, what)
        kind = _kind(chosen, document)
    if kind in IMAGES:
        check(document, MANIFEST, what)
    if kind not in IMAGES or document["config"].get("mediaType") not in CONFIGS:
        raise ConfigError(
            f"{reference} is not an image that others can be built on ({_description(kind, document)})",
            hint="Use an image in the format of OCI, or of Docker (schema 2).",
        )
    config = read_config(client, reference, document)
    has = _platform_of(config)
    if platform is not None and not is_list and not _fits(has, platform):
        raise ConfigError(f"the image {reference} is for {has}, not for {platform}")
    return RegistryImage(reference, digest, kind, document, config, has, top.digest)


def read_config(client: RegistryClient, reference: Reference, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration that a manifest names, checked."""
    what = f"the configuration of {reference}"
    digest = manifest["config"]["digest"]
    value = parse_object(client.read_blob(reference.repository, digest, LONGEST_CONFIG), what)
    check(value, CONFIG, what)
    return value


def _kind(document: ManifestDocument, value: dict[str, Any]) -> str:
    """Return the media type: OCI's may be missing in the document, and a plain server may not know it."""
    for candidate in (value.get("mediaType"), document.media_type):
        if isinstance(candidate, str) and candidate in LISTS | IMAGES:
            return candidate
    if value.get("schemaVersion") == 2 and "mediaType" not in value:
        return OCI_INDEX if "manifests" in value else OCI_MANIFEST
    return str(value.get("mediaType") or document.media_type)[:200]


def _description(kind: str, document: dict[str, Any]) -> str:
    if document.get("schemaVersion") == 1:
        return "its manifest is of the obsolete schema 1"
    config = document["config"].get("mediaType", "") if kind in IMAGES else ""
    return f"manifest {kind or 'of no known type'}" + (f", configuration {config}" if config else "")


def _choose(index: dict[str, Any], platform: str, reference: Reference) -> str:
    others: set[str] = set()
    for entry in index["manifests"]:
        has = _platform_of(entry.get("platform") or {})
        if _fits(has, platform):
            digest: str = entry["digest"]
            return digest
        if not has.startswith("unknown"):  # attestations
            others.add(has)
    there = ", ".join(sorted(others)) or "nothing"
    raise ConfigError(
        f"the image {reference} is not available for {platform}, only for {there}",
        hint="Choose a platform that it has, or another image.",
    )


def _platform_of(value: dict[str, Any]) -> str:
    parts = (value.get("os") or "unknown", value.get("architecture") or "unknown", value.get("variant") or "")
    return "/".join(str(part) for part in parts if part)


def _fits(has: str, wanted: str) -> bool:
    """Tell whether a platform is the wanted one; a variant counts only where both name one."""
    return has == wanted or has.startswith(f"{wanted}/") or wanted.startswith(f"{has}/")
