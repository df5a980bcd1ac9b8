"""Patched images through a Docker daemon.

A daemon takes an image from an archive, as ``docker load`` sends it, in which the layers that it has already
may be missing: it knows them by what is below them and their digest. So only the new layer travels, and
nothing is unpacked, run or committed. A daemon that does not play along (with containerd's image store, or
Podman) is asked to build the same image instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from trainyard.docker.engine import Engine, EngineError
from trainyard.docker.image_store import inspect_image, load, remove, tag
from trainyard.errors import BackendError
from trainyard.workspace.images.base_files import BaseFiles
from trainyard.workspace.images.delta import LARGEST_PART, difference
from trainyard.workspace.images.image_config import add_layers, config_bytes, config_of_inspected, working_dir
from trainyard.workspace.images.layer import LayerContent, LayerDigests, LayerEntry, tar_size, tar_stream

if TYPE_CHECKING:
    from trainyard.progress import Progress
    from trainyard.workspace.images.image_cache import Anchor, ImageCache
    from trainyard.workspace.images.image_content import Cargo

T = TypeVar("T")

_UNKNOWN = "sha256:" + 64 * "0"
_LOADING = "loading the layer into Docker"


@dataclass(frozen=True)
class Order:
    """An image to be made.

    Attributes:
        base: what `inspect_image` says of the image below.
        cargo: what goes on top.
        name: repository and tag that it gets.
        labels: labels that it gets.
        roots: names the workspace's directories, so that layers of the same ones are told apart.
    """

    base: Mapping[str, Any]
    cargo: Cargo
    name: str
    labels: Mapping[str, str]
    roots: str


def patch(engine: Engine, order: Order, cache: ImageCache, progress: Progress) -> str:
    """Have the daemon make an image; returns its id (``sha256:...``). Its name is given at the very end.

    Raises:
        WorkspaceChangedError: a file is no longer what it was when it was hashed; nothing was made.
        BackendError: the daemon could not.
    """
    patching = _Patching(engine, order, cache, progress)
    image = patching.by_loading() or patching.by_building()
    tag(engine, image, order.name)
    return image


class _Patching:
    """The ways to one image, from the cheapest on."""

    def __init__(self, engine: Engine, order: Order, cache: ImageCache, progress: Progress) -> None:
        self._engine = engine
        self._order = order
        self._cache = cache
        self._progress = progress
        self._refusal = ""
        self._config = config_of_inspected(order.base)
        with_workspace = order.cargo.entries is not None
        self._workdir = working_dir(self._config)
        self._kept_workdir = (
            self._workdir if with_workspace else (self._config.get("config") or {}).get("WorkingDir", "")
        )
        with BaseFiles(engine, order.base["Id"], cache) as files:
            self._content = order.cargo.compose(self._workdir, files.look)
            self._key = (order.base["Id"], self._workdir, order.roots, f"daemon {engine.endpoint}")
            self._anchor, self._delta = self._find_delta(files)

    def _find_delta(self, files: BaseFiles) -> tuple[Anchor | None, LayerContent]:
        """Return the anchor, and what goes on top of it; no anchor where the whole layer is to be made."""
        anchor = self._cache.anchor(*self._key)
        if anchor is None:
            return None, self._content
        delta = difference(anchor.entries, self._content.entries)
        if tar_size(delta.entries) > LARGEST_PART * tar_size(self._content.entries):
            return None, self._content
        if files.may_have_any(delta.doubtful):
            return None, self._content
        return anchor, replace(self._content, entries=delta.entries)

    def by_loading(self) -> str | None:
        """Return the id of the image, loaded; None where the daemon does not take it like that."""
        anchor = self._anchor
        if anchor is not None:
            content = self._delta if self._delta.entries else None
            image = self._try(lambda: self._load([anchor.digests.diff_id], content)[0])
            if image:
                return image
        loaded = self._try(lambda: self._load([], self._content))
        if not loaded:
            return None
        image, digests = loaded
        self._cache.drop_anchor(self._content.entries, digests, *self._key)
        return image

    def _try(self, attempt: Callable[[], T]) -> T | None:
        try:
            return attempt()
        except EngineError as error:
            if is_out_of_space(error):
                raise out_of_space("load the layer", error) from error
            self._refusal = error.message
            return None

    def _load(self, below: Sequence[str], content: LayerContent | None) -> tuple[str, LayerDigests]:
        archive = _Archive(self._config, below, content, self._finish)
        self._progress.step(f"{_LOADING}: {archive.describe()}")
        load(self._engine, archive.stream(self._progress))
        loaded = inspect_image(self._engine, archive.image)
        if loaded is None or list(loaded["RootFS"].get("Layers") or []) != archive.diff_ids:
            if loaded is not None:
                remove(self._engine, archive.image)
            raise EngineError(500, "the daemon loaded the archive, but has not got the image")
        return archive.image, archive.digests

    def _finish(self, diff_ids: Sequence[str]) -> bytes:
        history = ["trainyard: workspace", "trainyard: changes of the workspace"][: len(diff_ids)]
        return config_bytes(
            add_layers(
                self._config,
                diff_ids,
                workdir=self._kept_workdir,
                labels=self._order.labels,
                history=history,
            )
        )

    def by_building(self) -> str:
        """Return the id of the image, built: slower, since the daemon unpacks, and always the whole layer."""
        from trainyard.workspace.images.builder import build_on_engine

        digests = LayerDigests()
        lines = ["FROM " + self._order.base["Id"], "ADD layer.tar /"]
        if self._kept_workdir:
            lines.append(f"WORKDIR {self._kept_workdir}")
        files = _outer(tar_size(self._content.entries), lambda: tar_stream(self._content, digests))
        text = "\n".join(lines).encode() + b"\n"
        context = _outer_tar({**files, "Dockerfile": (len(text), lambda: [text])})
        self._progress.step("building the image, since the daemon does not take a single layer")
        try:
            return build_on_engine(
                self._engine, context, "Dockerfile", {}, self._order.labels, self._progress, quiet=True
            )
        except BackendError as error:
            if is_out_of_space(error):
                raise out_of_space("build the image", error) from error
            raise BackendError(
                f"the Docker daemon at {self._engine.endpoint} can make no image with the code."
                f" Loading a layer: {self._refusal}. Building: {error.message}",
                hint="Are the daemon and its disk in order? `docker info` and the daemon's log tell more.",
            ) from error


class _Archive:
    """The archive of an image in which only the new layer is."""

    def __init__(
        self,
        config: Mapping[str, Any],
        below: Sequence[str],
        content: LayerContent | None,
        finish: Callable[[Sequence[str]], bytes],
    ) -> None:
        self._present = [*config["rootfs"]["diff_ids"], *below]
        self._below = list(below)
        self._content = content
        self._finish = finish
        self._size = tar_size(content.entries) if content else 0
        self.digests = LayerDigests()
        self.image = ""

    @property
    def diff_ids(self) -> list[str]:
        """All layers of the image; known once it has been streamed."""
        return [*self._present, *([self.digests.diff_id] if self._content else [])]

    def describe(self) -> str:
        """Return the size of the new layer as people read it."""
        return f"{self._size / 1e6:.1f} MB" if self._content else "nothing new"

    def stream(self, progress: Progress) -> Iterator[bytes]:
        """Yield the archive. The configuration comes last, since it holds the layer's digest."""
        files: dict[str, _File] = {}
        layers = ["present.tar"] * len(self._present)
        if self._content is not None:
            content = self._content
            files = _outer(self._size, lambda: self._told(tar_stream(content, self.digests), progress))
            layers.append("layer.tar")
        length = len(self._finish([*self._below, *([_UNKNOWN] if self._content else [])]))
        files["config.json"] = (length, self._config_parts)
        listing = json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": layers}]).encode()
        files["manifest.json"] = (len(listing), lambda: [listing])
        return _outer_tar(files)

    def _told(self, pieces: Iterable[bytes], progress: Progress) -> Iterator[bytes]:
        done = 0
        for piece in pieces:
            yield piece
            done += len(piece)
            progress.advance(_LOADING, done, self._size)

    def _config_parts(self) -> list[bytes]:
        document = self._finish([*self._below, *([self.digests.diff_id] if self._content else [])])
        self.image = f"sha256:{hashlib.sha256(document).hexdigest()}"
        return [document]


#: Size of a file in an archive, and what gives its content when it is its turn.
_File = tuple[int, Callable[[], Iterable[bytes]]]


def _outer(size: int, give: Callable[[], Iterable[bytes]]) -> dict[str, _File]:
    return {"layer.tar": (size, give)}


def _outer_tar(files: Mapping[str, _File]) -> Iterator[bytes]:
    entries = tuple(LayerEntry(name, "file", 0o644, size=size) for name, (size, _) in files.items())
    return tar_stream(LayerContent(entries, lambda entry: files[entry.path][1]()))


def is_out_of_space(error: Exception) -> bool:
    """Tell whether a daemon's message is about a full disk."""
    return "no space left on device" in str(error).lower()


def out_of_space(attempt: str, error: Exception) -> BackendError:
    """Say that the daemon's disk is full, and what to do."""
    return BackendError(
        f"the Docker daemon could not {attempt}: its disk is full ({error})",
        hint="Free some: `docker system df` shows what takes it, `trainyard gc` and `docker image prune` "
        "remove what is not used. Nothing that was half made is left or used.",
    )
