"""Images with code through a Docker daemon.

A daemon takes an image from an archive, as ``docker load`` sends it, in which the layers that it has already
may be missing: it knows them by what is below them and their digest. So only the new layer travels, and
nothing is unpacked, run or committed. A daemon that does not accept that (with containerd's image store, or
Podman) is asked to build the same image instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shunter.docker.daemon_errors import EngineError
from shunter.docker.engine import Engine
from shunter.docker.image_store import inspect_image, is_out_of_space, load, out_of_space, remove, tag
from shunter.errors import BackendError
from shunter.image_registry.image_manifest import encode_config
from shunter.progress import Progress
from shunter.workspace.images.base_files import DaemonFiles
from shunter.workspace.images.docker_build import build_quietly
from shunter.workspace.images.image_cache import Anchor, ImageCache
from shunter.workspace.images.image_config import (
    HISTORY,
    add_layers,
    config_of_inspected,
    working_dir,
)
from shunter.workspace.images.image_content import Cargo
from shunter.workspace.images.layer import (
    LARGEST_DELTA,
    LayerContent,
    LayerDigests,
    LayerEntry,
    difference,
    tar_size,
    tar_stream,
)

#: Size of a file in an archive, and what gives its content when it is its turn.
File = tuple[int, Callable[[], Iterable[bytes]]]

T = TypeVar("T")

_UNKNOWN = "sha256:" + 64 * "0"
_LOADING = "loading the layer into Docker"


class DaemonPatch:
    """Makes one image in a daemon: an image that it has, with code on top.

    Args:
        engine: the daemon.
        base: what `inspect_image` says of the image below.
        cargo: what goes on top.
        labels: labels that the image gets.
        roots: names the workspace's directories, so that only layers of the same ones are compared.
        cache: what is remembered from the last time.
        progress: receives how far it is.
    """

    def __init__(
        self,
        engine: Engine,
        base: Mapping[str, Any],
        cargo: Cargo,
        labels: Mapping[str, str],
        roots: str,
        cache: ImageCache,
        progress: Progress,
    ) -> None:
        self._engine = engine
        self._base = base
        self._labels = labels
        self._cache = cache
        self._progress = progress
        self._refusal = ""
        self._config = config_of_inspected(base)
        workdir = working_dir(self._config)
        own_workdir = (self._config.get("config") or {}).get("WorkingDir", "")
        self._kept_workdir = workdir if cargo.entries is not None else own_workdir
        self._key = (base["Id"], workdir, roots, f"daemon {engine.endpoint}")
        with DaemonFiles(engine, base["Id"], cache) as files:
            self._content = cargo.compose(workdir, files.lookup)
            self._anchor, self._delta = self._find_delta(files)

    def make(self, name: str) -> str:
        """Return the image's id (``sha256:...``). It gets its name, repository and tag, at the very end.

        Raises:
            WorkspaceChangedError: a file is no longer what it was when it was hashed; nothing was made.
            BackendError: the daemon could not.
        """
        image = self._load_layer() or self._build()
        tag(self._engine, image, name)
        return image

    def _find_delta(self, files: DaemonFiles) -> tuple[Anchor | None, LayerContent]:
        """Return the anchor, and what goes on top of it; no anchor where the whole layer is to be made."""
        anchor = self._cache.anchor(*self._key)
        if anchor is None:
            return None, self._content
        delta = difference(anchor.entries, self._content.entries)
        if tar_size(delta.entries) > LARGEST_DELTA * tar_size(self._content.entries):
            return None, self._content
        if files.may_have_any(delta.doubtful):
            return None, self._content
        return anchor, replace(self._content, entries=delta.entries)

    # ---- by loading

    def _load_layer(self) -> str | None:
        """Return the id of the image, loaded; None where the daemon does not accept it like that."""
        anchor = self._anchor
        if anchor is not None:
            content = self._delta if self._delta.entries else None
            loaded = self._try(lambda: self._load([anchor.digests.diff_id], content))
            if loaded:
                return loaded[0]
        loaded = self._try(lambda: self._load([], self._content))
        if not loaded:
            return None
        image, digests = loaded
        self._cache.set_anchor(self._content.entries, digests, *self._key)
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
        """Load an archive in which only the new layer is, if there is one."""
        present = [*self._config["rootfs"]["diff_ids"], *below]
        digests = LayerDigests()
        size = tar_size(content.entries) if content else 0
        documents: list[bytes] = []

        def diff_ids(of_layer: str) -> list[str]:
            return [*below, *([of_layer] if content else [])]

        def config() -> list[bytes]:
            documents[:] = [self._config_of(diff_ids(digests.diff_id))]
            return documents

        files: dict[str, File] = {}
        layers = ["present.tar"] * len(present)
        if content is not None:
            files["layer.tar"] = (size, lambda: self._reported(tar_stream(content, digests), size))
            layers.append("layer.tar")
        # the configuration comes after the layer, whose digest it holds
        files["config.json"] = (len(self._config_of(diff_ids(_UNKNOWN))), config)
        listing = json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": layers}]).encode()
        files["manifest.json"] = (len(listing), lambda: [listing])
        self._progress.step(f"{_LOADING}: {f'{size / 1e6:.1f} MB' if content else 'nothing new'}")
        load(self._engine, _tar_of(files))
        image = f"sha256:{hashlib.sha256(documents[0]).hexdigest()}"
        loaded = inspect_image(self._engine, image)
        wanted = [*self._config["rootfs"]["diff_ids"], *diff_ids(digests.diff_id)]
        if loaded is None or list(loaded["RootFS"].get("Layers") or []) != wanted:
            if loaded is not None:
                remove(self._engine, image)
            raise EngineError(500, "the daemon loaded the archive, but does not have the image")
        return image, digests

    def _config_of(self, diff_ids: Sequence[str]) -> bytes:
        history = HISTORY[: len(diff_ids)]
        config = add_layers(
            self._config, diff_ids, workdir=self._kept_workdir, labels=self._labels, history=history
        )
        return encode_config(config)

    def _reported(self, pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
        done = 0
        for piece in pieces:
            yield piece
            done += len(piece)
            self._progress.advance(_LOADING, done, size)

    # ---- by building

    def _build(self) -> str:
        """Return the id of the image, built: slower, since the daemon unpacks, and always the whole layer."""
        lines = ["FROM " + self._base["Id"], "ADD layer.tar /"]
        if self._kept_workdir:
            lines.append(f"WORKDIR {self._kept_workdir}")
        text = "\n".join(lines).encode() + b"\n"
        context = _tar_of(
            {
                "layer.tar": (tar_size(self._content.entries), lambda: tar_stream(self._content)),
                "Dockerfile": (len(text), lambda: [text]),
            }
        )
        self._progress.step("building the image, since the daemon does not accept a single layer")
        try:
            return build_quietly(self._engine, context, self._labels, self._progress)
        except BackendError as error:
            if is_out_of_space(error):
                raise out_of_space("build the image", error) from error
            raise BackendError(
                f"the Docker daemon at {self._engine.endpoint} cannot make an image with the code."
                f" Loading a layer: {self._refusal}. Building: {error.message}",
                hint="Check the daemon and its disk: `docker info` and the daemon's log tell more.",
            ) from error


def _tar_of(files: Mapping[str, File]) -> Iterator[bytes]:
    entries = tuple(LayerEntry(name, "file", 0o644, size=size) for name, (size, _) in files.items())
    return tar_stream(LayerContent(entries, lambda entry: files[entry.path][1]()))
