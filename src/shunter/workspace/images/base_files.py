"""What a base image has at a path: looked up in the layers of a registry."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import RegistryImage
from shunter.image_registry.registry_errors import Purpose
from shunter.workspace.images.image_cache import ImageCache
from shunter.workspace.images.layer import WHITEOUT
from shunter.workspace.manifest import Entry, Kind

#: Compressed layers beyond this are not read: they hold packages, not the making of a directory.
LARGEST_READ = 256 << 20
OPAQUE = f"{WHITEOUT}{WHITEOUT}.opq"


def _entry(path: str, member: tarfile.TarInfo) -> Entry:
    if member.issym():
        return Entry(path, "link", 0o777, target=member.linkname, uid=member.uid, gid=member.gid)
    kind: Kind = "dir" if member.isdir() else "file"
    return Entry(path, kind, member.mode & 0o7777, uid=member.uid, gid=member.gid)


class RegistryFiles:
    """Looks paths up in an image of a registry: in its layers as they arrive, from the top down.

    The layer that made an image's working directory is usually one of the topmost, so that little is read.
    ``usual`` names paths that images either lack or have with root as owner and mode 0755: these are not
    looked for, so that the whole image need not be read. Answers are remembered in the cache.
    """

    def __init__(
        self, client: RegistryClient, image: RegistryImage, cache: ImageCache, usual: Sequence[str] = ()
    ) -> None:
        self._client = client
        self._image = image
        self._cache = cache
        self._usual = frozenset(usual)

    def lookup(self, paths: Sequence[str]) -> Mapping[str, Entry]:
        """Return what the image has at these paths; see `image_content.Lookup`."""
        key = ("remote look", self._image.digest)
        remembered: dict[str, Any] = self._cache.recall(*key) or {}
        unknown = {path for path in paths if path not in remembered and path not in self._usual}
        if unknown:
            purpose = Purpose("pull", self._client.registry, self._image.reference.repository)
            remembered |= self._client.patiently(lambda: self._search(unknown), purpose)
            self._cache.remember(remembered, *key)
        return {path: Entry(*remembered[path]) for path in paths if remembered.get(path)}

    def _search(self, paths: set[str]) -> dict[str, Entry | None]:
        answers: dict[str, Entry | None] = {}
        for layer in reversed(self._image.manifest["layers"]):
            missing = paths - answers.keys()
            if not missing:
                break
            media_type = layer.get("mediaType") or ""
            if layer["size"] <= LARGEST_READ and "zstd" not in media_type:
                answers |= self._search_layer(layer["digest"], missing, media_type.endswith("gzip"))
        return {path: answers.get(path) for path in paths}

    def _search_layer(self, digest: str, paths: set[str], is_packed: bool) -> dict[str, Entry | None]:
        """Return what a layer says of paths: what they are, or None where it hides the layers below."""
        answers: dict[str, Entry | None] = {}
        hidden: set[str] = set()
        with self._client.open_blob(self._image.reference.repository, digest) as stream:
            try:
                raw: Any = stream  # all that is asked of it is `read`
                content: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
                with tarfile.open(fileobj=content, mode="r|") as archive:
                    for member in archive:
                        archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all of them
                        name = member.name.removeprefix("./").strip("/")
                        if name in paths:
                            answers[name] = _entry(name, member)
                        parent, _, last = name.rpartition("/")
                        if last == OPAQUE:
                            hidden |= {path for path in paths if path.startswith(f"{parent}/")}
                        elif last.startswith(WHITEOUT):
                            gone = f"{parent}/{last[len(WHITEOUT) :]}".lstrip("/")
                            hidden |= {path for path in paths if f"{path}/".startswith(f"{gone}/")}
            except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError):
                return answers  # an unknown compression, or a damaged archive
        return {**dict.fromkeys(hidden), **answers}
