"""Images with code through a Docker daemon: it adds a layer to an image that it has.

The daemon unpacks the layer over the image, so directories that are there keep their owners and modes, and
links among them are followed. A small change is built over the last image that was made whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shunter.docker.command import DockerCommand
from shunter.docker.images import inspect_image
from shunter.progress import Progress
from shunter.workspace.images.docker_build import BuildOutput, nameable, run_build
from shunter.workspace.images.image_cache import Anchor, ImageCache
from shunter.workspace.images.image_config import DEFAULT_WORKING_DIR, working_dir
from shunter.workspace.images.image_content import Cargo
from shunter.workspace.images.layer import (
    LayerContent,
    LayerEntry,
    changed_entries,
    is_small,
    tar_size,
    tar_stream,
)

_LABEL = "sending the layer to Docker"


class DaemonPatch:
    """Makes one image in a daemon: an image that it has, with code on top.

    Args:
        docker: the command for the daemon.
        base: what `inspect_image` says of the image below.
        cargo: what goes on top.
        labels: labels that the image gets.
        roots: names the workspace's directories, so that only layers of the same ones are compared.
        cache: what is remembered from the last time.
        progress: receives how far it is.
    """

    def __init__(
        self,
        docker: DockerCommand,
        base: Mapping[str, Any],
        cargo: Cargo,
        labels: Mapping[str, str],
        roots: str,
        cache: ImageCache,
        progress: Progress,
    ) -> None:
        self._docker = docker
        self._base = base
        self._labels = labels
        self._cache = cache
        self._progress = progress
        self._workdir = working_dir({"config": base.get("Config")})
        # BuildKit looks in registries for an image whose platform is not the daemon's, unless it is named
        parts = [str(base.get(name) or "") for name in ("Os", "Architecture", "Variant")]
        self._platform = "/".join(parts).rstrip("/") if all(parts[:2]) else None
        # an image's own is left as it is: a name with a $ cannot be written unchanged
        self._sets_workdir = cargo.entries is not None and self._workdir == DEFAULT_WORKING_DIR
        self._key = (base["Id"], self._workdir, roots, f"daemon {docker.endpoint}")
        self._content = cargo.compose(self._workdir)

    def make(self, name: str) -> str:
        """Return the image's id (``sha256:...``). It gets its name, repository and tag, at the very end.

        Raises:
            WorkspaceChangedError: a file is no longer what it was when it was hashed; nothing was made.
            BackendError: the daemon could not.
        """
        entries = self._content.entries
        anchor = self._cache.anchor(*self._key)
        below = inspect_image(self._docker, anchor.image) if anchor is not None else None
        if anchor is not None and below is not None:
            changed = changed_entries(anchor.entries, entries)
            if changed is not None and is_small(changed, entries):
                return self._build(anchor.image, replace(self._content, entries=changed), name)
        image = self._build(str(self._base["Id"]), self._content, name)
        self._cache.set_anchor(Anchor(entries, image), *self._key)
        return image

    def _build(self, base: str, content: LayerContent, name: str) -> str:
        lines = [f"FROM {nameable(self._docker, base)}", "ADD layer.tar /"]
        lines += [f"WORKDIR {self._workdir}"] if self._sets_workdir else []
        text = "\n".join(lines).encode() + b"\n"
        size = tar_size(content.entries)
        files = {"Dockerfile": len(text), "layer.tar": size}
        context = LayerContent(
            tuple(LayerEntry(path, "file", 0o644, size=length) for path, length in files.items()),
            lambda entry: (text,) if entry.path == "Dockerfile" else self._reported(content, size),
        )
        self._progress.step(f"{_LABEL}: {size / 1e6:.1f} MB")
        output = BuildOutput(self._progress)
        built = run_build(
            self._docker, tar_stream(context), name, self._labels, output=output, platform=self._platform
        )
        return str(built["Id"])

    def _reported(self, content: LayerContent, size: int) -> Iterator[bytes]:
        done = 0
        for piece in tar_stream(content):
            yield piece
            done += len(piece)
            self._progress.advance(_LABEL, done, size)
