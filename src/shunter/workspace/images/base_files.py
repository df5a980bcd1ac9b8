"""What a base image has at a path: looked up in the layers of a registry."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from shunter.image_registry.blobs import BlobStream
from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import RegistryImage
from shunter.workspace.images.image_cache import ImageCache
from shunter.workspace.images.image_content import Found
from shunter.workspace.images.layer import WHITEOUT

#: Compressed layers beyond this are not read: they hold packages, not the making of a directory.
LARGEST_READ = 256 << 20
#: A layer is read no further than this many bytes, or this many times its compressed size. One that unpacks
#: to more is not code, and may be malicious.
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


def _found(member: tarfile.TarInfo) -> Found:
    if member.issym():
        return Found("link", 0o777, member.uid, member.gid, member.linkname)
    kind = "dir" if member.isdir() else "file"
    return Found(kind, member.mode & 0o7777, member.uid, member.gid)  # type: ignore[arg-type]


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

    def lookup(self, paths: Sequence[str]) -> Mapping[str, Found]:
        """Return what the image has at these paths; see `image_content.Lookup`."""
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
        """Return what a layer says of paths: what they are, or None where it hides the layers below."""
        answers: dict[str, Found | None] = {}
        hidden: set[str] = set()
        with self._client.open_blob(self._image.reference.repository, digest) as stream:
            try:
                unpacked: Any = _UnpackedLayer(stream, bound)
                with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_BoundedMember) as archive:
                    for member in archive:
                        archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all of them
                        name = member.name.removeprefix("./").strip("/")
                        if name in paths:
                            answers[name] = _found(member)
                        parent, _, last = name.rpartition("/")
                        if last == OPAQUE:
                            hidden |= {path for path in paths if path.startswith(f"{parent}/")}
                        elif last.startswith(WHITEOUT):
                            gone = f"{parent}/{last[len(WHITEOUT) :]}".lstrip("/")
                            hidden |= {path for path in paths if f"{path}/".startswith(f"{gone}/")}
            except (tarfile.TarError, zlib.error, ValueError):
                return answers  # an unknown compression, a damaged archive, or one that is too large
        return {**dict.fromkeys(hidden), **answers}


class _UnpackedLayer:
    """A layer as it is unpacked: gzip, or plain. More bytes than ``bound`` are a `ValueError`."""

    def __init__(self, stream: BlobStream, bound: int) -> None:
        self._stream = stream
        self._left = bound
        self._packed = stream.read()
        while 0 < len(self._packed) < 2 and (more := stream.read()):
            self._packed += more
        self._unpacker = zlib.decompressobj(31) if self._packed.startswith(b"\x1f\x8b") else None
        self._block = b""

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end."""
        while len(self._block) < size and (more := self._next(size)):
            self._left -= len(more)
            if self._left < 0:
                raise ValueError("the layer unpacks to more than the limit")
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


class _BoundedMember(tarfile.TarInfo):
    """A member whose extended headers have a bounded length."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo | None:
        if self.type in _EXTENDED and self.size > LONGEST_HEADER:
            raise tarfile.ReadError("an extended header is too long")
        member: tarfile.TarInfo | None = super()._proc_member(archive)  # type: ignore[misc]
        return member
