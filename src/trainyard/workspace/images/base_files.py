"""What an image of a daemon has at a path, without running it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainyard.docker.engine import Engine, EngineError, EngineUnavailableError
from trainyard.paths import state_dir
from trainyard.workspace.images.placement import Found

if TYPE_CHECKING:
    from types import TracebackType

    from trainyard.docker.engine import DaemonAnswer
    from trainyard.workspace.images.image_cache import ImageCache

#: Marks the containers that are made to look into images, should one be left over.
LOOKING_LABEL = "trainyard.looking"

#: Questions after which making a whole layer is quicker than asking on.
MOST_QUESTIONS = 300


class BaseFiles:
    """Looks paths up in an image through a container that is made, never started, and removed again.

    It is made when the first question comes whose answer is not remembered. A context manager.

    Args:
        engine: the daemon.
        image: id of the image.
        cache: where answers are remembered.
    """

    def __init__(self, engine: Engine, image: str, cache: ImageCache) -> None:
        self._engine = engine
        self._image = image
        self._cache = cache
        self._container = ""

    def __enter__(self) -> BaseFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._container:
            return
        try:
            self._engine.request(
                "DELETE", f"/containers/{self._container}", params={"force": True, "v": True}
            )
        except (EngineError, EngineUnavailableError):
            if error is None:
                raise

    def look(self, paths: Sequence[str]) -> Mapping[str, Found]:
        """Return what the image has at these paths, relative to its root; see `placement.Lookup`."""
        remembered = self._cache.recall("look", self._image) or {}
        unknown = [path for path in paths if path not in remembered]
        for path in unknown:
            remembered[path] = self._ask(path)
        if unknown:
            self._cache.remember(remembered, "look", self._image)
        return {path: Found(*remembered[path]) for path in paths if remembered[path]}

    def may_have_any(self, paths: Sequence[str]) -> bool:
        """Tell whether the image has, or may have, something at one of these paths.

        Asks for the directories above first: mostly the image has none of them, and one question is enough.
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
        with answer, tarfile.open(fileobj=_Reader(answer), mode="r|") as archive:
            member = archive.next()
        return None if member is None else found(member)

    def _archive(self) -> str:
        if not self._container:
            made = self._engine.request(
                "POST",
                "/containers/create",
                json={
                    "Image": self._image,
                    "Entrypoint": ["/never-started"],
                    "Labels": {LOOKING_LABEL: state_dir()},
                    "NetworkDisabled": True,
                },
            )
            self._container = made["Id"]
        return f"/containers/{self._container}/archive"


def found(member: tarfile.TarInfo) -> Found:
    """Return what a tar's member is."""
    if member.issym():
        return Found("link", 0o777, member.uid, member.gid, member.linkname)
    kind = "dir" if member.isdir() else "file"
    return Found(kind, member.mode & 0o7777, member.uid, member.gid)  # type: ignore[arg-type]


class _Reader(io.RawIOBase):
    """The body of an answer as a file, of which `tarfile` takes the first blocks only."""

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
