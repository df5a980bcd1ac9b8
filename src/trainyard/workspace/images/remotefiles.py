"""What an image of a registry has at a path: found in its layers as they stream by, from the top down."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainyard.workspace.images.base_files import found
from trainyard.workspace.images.layer import WHITEOUT
from trainyard.workspace.images.placement import Found

if TYPE_CHECKING:
    from trainyard.image_registry.blobs import BlobStream
    from trainyard.image_registry.client import RegistryClient
    from trainyard.image_registry.image_manifest import RegistryImage
    from trainyard.workspace.images.image_cache import ImageCache

#: Compressed layers beyond this are not read: they hold packages, not the making of a directory.
LARGEST_READ = 256 << 20
#: A layer is read no further than this many bytes, or this many times its compressed size. One that unpacks
#: to more is not code, and may be made to keep us busy.
LARGEST_UNPACKED = 4 << 30
LARGEST_RATIO = 100
SMALLEST_BOUND = 64 << 20
#: Longer extended headers, which `tarfile` reads into memory, are not those of a path.
LONGEST_HEADER = 1 << 20
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
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
            if layer["size"] <= LARGEST_READ and "zstd" not in (layer.get("mediaType") or ""):
                bound = min(LARGEST_UNPACKED, max(SMALLEST_BOUND, layer["size"] * LARGEST_RATIO))
                answers |= self._search_layer(layer["digest"], missing, bound)
        return {path: answers.get(path) for path in paths}

    def _search_layer(self, digest: str, paths: set[str], bound: int) -> dict[str, Found | None]:
        """Return what a layer says of paths: what they are, or that they are nothing from here on down."""
        answers: dict[str, Found | None] = {}
        hidden: set[str] = set()
        with self._client.open_blob(self._image.reference.repository, digest) as stream:
            try:
                unpacked: Any = _Unpacked(stream, bound)
                with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Member) as archive:
                    for member in archive:
                        archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all of them
                        name = member.name.removeprefix("./").strip("/")
                        if name in paths:
                            answers[name] = found(member)
                        parent, _, last = name.rpartition("/")
                        if last == OPAQUE:
                            hidden |= {path for path in paths if path.startswith(f"{parent}/")}
                        elif last.startswith(WHITEOUT):
                            gone = f"{parent}/{last[len(WHITEOUT) :]}".lstrip("/")
                            hidden |= {path for path in paths if f"{path}/".startswith(f"{gone}/")}
            except (tarfile.TarError, zlib.error, ValueError):
                return answers  # an unknown compression, a damaged archive, or one that is too large
        return {**dict.fromkeys(hidden), **answers}


class _Unpacked:
    """A layer as it is unpacked: gzip, or plain.

    Args:
        stream: the layer.
        bound: how many bytes may come of it. More is a `ValueError`.
    """

    def __init__(self, stream: BlobStream, bound: int) -> None:
        self._stream = stream
        self._left = bound
        self._packed = stream.read()
        self._unpacker = zlib.decompressobj(31) if self._packed.startswith(b"\x1f\x8b") else None
        self._block = b""

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end."""
        while len(self._block) < size and (more := self._next(size)):
            self._left -= len(more)
            if self._left < 0:
                raise ValueError("the layer unpacks to more than the bound")
            self._block += more
        block, self._block = self._block[:size], self._block[size:]
        return block

    def _next(self, size: int) -> bytes:
        """Return some more bytes, at most about ``size``; b"" at the end."""
        while True:
            if self._unpacker is not None and self._unpacker.eof:  # gzip files may follow each other
                self._packed = self._unpacker.unused_data
                self._unpacker = zlib.decompressobj(31)
            packed = self._packed or self._stream.read()
            self._packed = b""
            if self._unpacker is None or not packed:
                return packed
            unpacked = self._unpacker.decompress(packed, max(size, 1 << 16))
            self._packed = self._unpacker.unconsumed_tail
            if unpacked:
                return unpacked


class _Member(tarfile.TarInfo):
    """A member whose extended headers have a bounded length."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo | None:
        if self.type in _EXTENDED and self.size > LONGEST_HEADER:
            raise tarfile.ReadError("an extended header is too long")
        member: tarfile.TarInfo | None = super()._proc_member(archive)  # type: ignore[misc]
        return member
