"""What a base image has at a path, without running it: from the daemon, or from a registry's layers."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from shunter.docker.daemon_errors import EngineError, EngineUnavailableError
from shunter.docker.engine import DaemonAnswer, Engine
from shunter.image_registry.blobs import BlobStream
from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import RegistryImage
from shunter.paths import state_dir
from shunter.workspace.images.image_cache import ImageCache
from shunter.workspace.images.image_content import Found
from shunter.workspace.images.layer import WHITEOUT

#: Marks the containers that are made to inspect images, should one be left over.
LOOKING_LABEL = "shunter.looking"
#: Questions after which making a whole layer is quicker than asking further.
MOST_QUESTIONS = 300

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


class DaemonFiles:
    """Looks paths up in an image through a container that is made, never started, and removed again.

    The container is made for the first lookup whose answer is not cached. A context manager.
    """

    def __init__(self, engine: Engine, image: str, cache: ImageCache) -> None:
        self._engine = engine
        self._image = image
        self._cache = cache
        self._container = ""

    def __enter__(self) -> DaemonFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._container:
            return
        try:
            path = f"/containers/{self._container}"
            self._engine.request("DELETE", path, params={"force": True, "v": True})
        except (EngineError, EngineUnavailableError):
            if error is None:
                raise

    def lookup(self, paths: Sequence[str]) -> Mapping[str, Found]:
        """Return what the image has at these paths, relative to its root; see `image_content.Lookup`."""
        remembered = self._cache.recall("look", self._image) or {}
        unknown = [path for path in paths if path not in remembered]
        for path in unknown:
            remembered[path] = self._ask(path)
        if unknown:
            self._cache.remember(remembered, "look", self._image)
        return {path: Found(*remembered[path]) for path in paths if remembered[path]}

    def may_have_any(self, paths: Sequence[str]) -> bool:
        """Tell whether the image has, or may have, something at one of these paths.

        Asks for the directories above first: usually the image has none of them, and one question is enough.
        """
        known: dict[str, bool] = {}
        for path in paths:
            parts = path.split("/")
            for count in range(1, len(parts) + 1):
                part = "/".join(parts[:count])
                if part not in known:
                    if len(known) >= MOST_QUESTIONS:
                        return True
                    known[part] = self._has(part)
                if not known[part]:
                    break
            else:
                return True
        return False

    def _has(self, path: str) -> bool:
        try:
            self._engine.request("HEAD", self._archive(), params={"path": f"/{path}"})
        except EngineError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _ask(self, path: str) -> Found | None:
        try:
            answer = self._engine.stream("GET", self._archive(), params={"path": f"/{path}"}, timeout=60)
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        with answer, tarfile.open(fileobj=_AnswerFile(answer), mode="r|") as archive:
            member = archive.next()
        return None if member is None else _found(member)

    def _archive(self) -> str:
        if not self._container:
            body = {
                "Image": self._image,
                "Entrypoint": ["/never-started"],
                "Labels": {LOOKING_LABEL: state_dir()},
                "NetworkDisabled": True,
            }
            self._container = self._engine.request("POST", "/containers/create", json=body)["Id"]
        return f"/containers/{self._container}/archive"


class _AnswerFile(io.RawIOBase):
    """The body of an answer as a file, of which `tarfile` reads the first blocks only."""

    def __init__(self, answer: DaemonAnswer) -> None:
        self._answer = answer

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := self._answer.read1(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


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
