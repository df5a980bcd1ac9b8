"""Reading an image of a registry: its manifest for one platform, and its configuration."""

from __future__ import annotations

import platform as machine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError
from trainyard.image_registry.documents import (
    check_config,
    check_index,
    check_manifest,
    parse_object,
)
from trainyard.image_registry.media import CONFIGS, IMAGES, LISTS, OCI_INDEX, OCI_MANIFEST
from trainyard.image_registry.registry_errors import RegistryError

if TYPE_CHECKING:
    from trainyard.docker.image_reference import Reference
    from trainyard.image_registry.client import ManifestDocument, RegistryClient

LONGEST_CONFIG = 8 << 20
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


def read_image(
    client: RegistryClient, reference: Reference, platform: str | None = None, *, scopes: tuple[str, ...] = ()
) -> RegistryImage:
    """Fetch manifest and configuration of an image.

    Args:
        client: of the reference's registry.
        reference: the image.
        platform: ``os/architecture[/variant]``; this machine's by default, where there is a choice.
        scopes: what to ask a token server for.

    Raises:
        ConfigError: it is not there, is no image, or is not there for the platform.
        RegistryError: the registry refuses, or stays away.
    """
    what = f"the manifest of {reference}"
    top = client.manifest(reference.repository, reference.selector, scopes=scopes)
    if top is None:
        raise ConfigError(
            f"there is no image {reference} in its registry",
            hint="Check the name and the tag, and that the image was pushed.",
        )
    found, document = top, parse_object(top.body, what)
    kind = top_kind = _kind(top, document)
    if kind in LISTS:
        check_index(document, what)
        entry = _choose(document, platform or own_platform(), reference)
        chosen = client.manifest(reference.repository, entry, scopes=scopes)
        if chosen is None:
            raise RegistryError(
                f"the image {reference} is damaged: its registry has no manifest {entry}", status=404
            )
        found, document = chosen, parse_object(chosen.body, what)
        kind = _kind(chosen, document)
    if kind in IMAGES:
        check_manifest(document, what)
    if kind not in IMAGES or document["config"].get("mediaType") not in CONFIGS:
        raise ConfigError(
            f"{reference} is not an image that can be built upon ({_what(kind, document)})",
            hint="Use an image in the format of OCI, or of Docker (schema 2).",
        )
    config = _config(client, reference, document["config"], scopes)
    has = _platform_of(config)
    if platform is not None and kind == top_kind and not _fits(has, platform):
        raise ConfigError(f"the image {reference} is for {has}, not for {platform}")
    return RegistryImage(reference, found.digest, kind, document, config, has, top.digest)


def _kind(document: ManifestDocument, value: dict[str, Any]) -> str:
    """Return the media type: OCI's may be missing in the document, and a plain server may not know it."""
    known = LISTS | IMAGES
    for candidate in (value.get("mediaType"), document.media_type):
        if isinstance(candidate, str) and candidate in known:
            return candidate
    if value.get("schemaVersion") == 2 and "mediaType" not in value:
        return OCI_INDEX if "manifests" in value else OCI_MANIFEST
    return str(value.get("mediaType") or document.media_type)[:200]


def _what(kind: str, document: dict[str, Any]) -> str:
    if document.get("schemaVersion") == 1:
        return "its manifest is of the obsolete schema 1"
    config = document["config"].get("mediaType", "") if kind in IMAGES else ""
    return f"manifest {kind or 'of no known type'}" + (f", configuration {config}" if config else "")


def _choose(index: dict[str, Any], platform: str, reference: Reference) -> str:
    there: list[str] = []
    for entry in index["manifests"]:
        has = _platform_of(entry.get("platform") or {})
        if _fits(has, platform):
            digest: str = entry["digest"]
            return digest
        if not has.startswith("unknown"):  # attestations
            there.append(has)
    others = ", ".join(sorted(set(there))) or "nothing"
    raise ConfigError(
        f"the image {reference} is not there for {platform}, only for {others}",
        hint="Choose a platform that it has, or another image.",
    )


def _platform_of(value: dict[str, Any]) -> str:
    parts = (value.get("os") or "unknown", value.get("architecture") or "unknown", value.get("variant") or "")
    return "/".join(str(part) for part in parts if part)


def _fits(has: str, wanted: str) -> bool:
    """Tell whether a platform is the wanted one; a variant counts only where both name one."""
    return has == wanted or has.startswith(f"{wanted}/") or wanted.startswith(f"{has}/")


def _config(
    client: RegistryClient, reference: Reference, descriptor: dict[str, Any], scopes: tuple[str, ...]
) -> dict[str, Any]:
    what = f"the configuration of {reference}"
    body = client.read_blob(reference.repository, descriptor["digest"], LONGEST_CONFIG, scopes=scopes)
    value = parse_object(body, what)
    check_config(value, what)
    return value
