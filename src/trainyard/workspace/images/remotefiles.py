"""What an image of a registry has at a path: found in its layers as they stream by, from the top down."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainyard.workspace.images.basefiles import found
from trainyard.workspace.images.layer import WHITEOUT
from trainyard.workspace.images.placement import Found

if TYPE_CHECKING:
    from trainyard.workspace.images.imagecache import ImageCache
    from trainyard.workspace.registry import RegistryClient, RegistryImage

#: Compressed layers beyond this are not read: they hold packages, not the making of a directory.
LARGEST_READ = 256 << 20
OPAQUE = f"{WHITEOUT}{WHITEOUT}.opq"


class RemoteFiles:
    """Looks paths up in an image of a registry.

    The layer that made an image's working directory is mostly one of the topmost, so that little is read.
    Paths that images do not have, or have with root as owner and mode 0755, can be named, so that the whole
    image is not read in search of them.

    Args:
        client: the registry.
        image: the image.
        cache: where answers are remembered.
        usual: paths that are not looked for.
    """

    def __init__(
        self, client: RegistryClient, image: RegistryImage, cache: ImageCache, usual: Sequence[str] = ()
    ) -> None:
        self._client = client
        self._image = image
        self._cache = cache
        self._usual = frozenset(usual)

    def look(self, paths: Sequence[str]) -> Mapping[str, Found]:
        """Return what the image has at these paths; see `placement.Lookup`."""
        key = ("remote look", self._image.digest)
        remembered: dict[str, Any] = self._cache.recall(*key) or {}
        unknown = {path for path in paths if path not in remembered and path not in self._usual}
        if unknown:
            remembered |= self._search(unknown)
            self._cache.remember(remembered, *key)
        return {path: Found(*remembered[path]) for path in paths if remembered.get(path)}

    def _search(self, paths: set[str]) -> dict[str, Found | None]:
        answers: dict[str, Found | None] = {}
        for layer in reversed(self._image.manifest["layers"]):
            missing = paths - answers.keys()
            if not missing:
                break
            if layer["size"] <= LARGEST_READ and "zstd" not in layer["mediaType"]:
                answers |= self._search_layer(layer["digest"], missing)
        return {path: answers.get(path) for path in paths}

    def _search_layer(self, digest: str, paths: set[str]) -> dict[str, Found | None]:
        """Return what a layer says of paths: what they are, or that they are nothing from here on down."""
        answers: dict[str, Found | None] = {}
        hidden: set[str] = set()
        with self._client.open_blob(self._image.reference.repository, digest) as stream:
            try:
                with tarfile.open(fileobj=stream, mode="r|*") as archive:  # type: ignore[call-overload]
                    for member in archive:
                        name = member.name.removeprefix("./").strip("/")
                        if name in paths:
                            answers[name] = found(member)
                        parent, _, last = name.rpartition("/")
                        if last == OPAQUE:
                            hidden |= {path for path in paths if path.startswith(f"{parent}/")}
                        elif last.startswith(WHITEOUT):
                            gone = f"{parent}/{last[len(WHITEOUT) :]}".lstrip("/")
                            hidden |= {path for path in paths if f"{path}/".startswith(f"{gone}/")}
            except (tarfile.ReadError, zlib.error, EOFError):
                return answers  # a compression that is not known here
        return {**dict.fromkeys(hidden), **answers}
