"""Images that a workspace's own Dockerfile makes."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.docker.credentials import credentials_for
from trainyard.docker.engine import Engine
from trainyard.docker.images import inspect_image, tag
from trainyard.errors import ConfigError
from trainyard.workspace.builder import (
    build_on_engine,
    build_with_buildkit,
    find_buildkit,
    registry_config,
)
from trainyard.workspace.dockerfile import DOCKERFILES, IMAGE_ARG, WORKSPACE_ARG, Dockerfile, parse
from trainyard.workspace.errors import WorkspaceChangedError
from trainyard.workspace.layer import LayerContent, LayerEntry, tar_stream
from trainyard.workspace.manifest import Entry
from trainyard.workspace.registry.reference import Reference

if TYPE_CHECKING:
    from trainyard.workspace.imagecache import ImageCache
    from trainyard.workspace.progress import Progress
    from trainyard.workspace.snapshot import Snapshot

_WILDCARD = re.compile(r"[*?\[]")
_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")


@dataclass(frozen=True)
class Context:
    """What is sent to a build.

    Attributes:
        dockerfile: path of the Dockerfile in it.
        text: its content.
        entries: everything, sorted.
        content: the same, with what reads it.
    """

    dockerfile: str
    text: str
    content: LayerContent

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all entries."""
        rows = "\n".join(repr(tuple(entry)) for entry in self.content.entries)
        return hashlib.sha256(rows.encode("utf-8", "surrogateescape")).hexdigest()


def find_context(taken: Snapshot, projects: Mapping[str, str]) -> Context | None:
    """Return what a workspace's own Dockerfile is built with; None if it has none.

    The Dockerfile and what it names, file by file, are part of it even where an ignore file leaves them out.

    Args:
        taken: the workspace.
        projects: its directories, and where they go.
    """
    roots = [source for source, to in projects.items() if not to]
    entries = taken.manifest.by_path
    added: dict[str, str] = {}
    for name in DOCKERFILES:
        path = next(
            (os.path.join(root, name) for root in roots if os.path.isfile(os.path.join(root, name))), ""
        )
        if name in entries or path:
            break
    else:
        return None
    if name not in entries:
        added[name] = path
    content = b"".join(taken.read(entries[name])) if name in entries else _read(path)
    text = content.decode("utf-8", "replace")
    for source in parse(text, {}).sources:
        added |= _named(source, roots, entries)
    skipped = {
        ".dockerignore",
        f"{name}.dockerignore",
    }  # the selection has been made: they would make another
    every = [entry for path, entry in entries.items() if path not in skipped]
    every += [_entry(path, source) for path, source in added.items()]
    by_path = {entry.path: entry for entry in every}

    def read(item: LayerEntry) -> Iterable[bytes]:
        if item.path in added:
            return _read_same(added[item.path], item.digest)
        return taken.read(by_path[item.path])

    items = (LayerEntry(e.path, e.kind, e.mode, 0, 0, e.size, e.digest, e.target) for e in every)
    return Context(name, text, LayerContent(tuple(sorted(items)), read))


def _named(source: str, roots: list[str], entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return files that a Dockerfile names and the selection has not: path in the context -> on disk."""
    path = posixpath.normpath(source.lstrip("/") or ".")
    if path in (".", "..") or path.startswith("../") or _WILDCARD.search(path):
        return {}
    if "$" in path or path in entries or any(known.startswith(f"{path}/") for known in entries):
        return {}
    for root in roots:
        there = os.path.join(root, path)
        if os.path.isfile(there):
            return {path: there}
        if os.path.isdir(there):
            return dict(_below(there, path))
    return {}


def _below(directory: str, path: str) -> Iterator[tuple[str, str]]:
    for folder, _, names in os.walk(directory):
        inside = os.path.relpath(folder, directory)
        for name in names:
            file = os.path.join(folder, name)
            if os.path.isfile(file):
                yield posixpath.normpath(posixpath.join(path, inside, name)), file


def _entry(path: str, source: str) -> Entry:
    content = _read(source)
    mode = os.stat(source).st_mode & 0o7777
    return Entry(path, "file", mode, len(content), hashlib.sha256(content).hexdigest())


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}, which the image is built with: {error.strerror}") from error


def _read_same(path: str, digest: str) -> list[bytes]:
    content = _read(path)
    if hashlib.sha256(content).hexdigest() != digest:
        raise WorkspaceChangedError(path)
    return [content]


def build(
    engine: Engine,
    context: Context,
    name: str,
    *,
    image: str,
    workspace: str,
    labels: Mapping[str, str],
    cache: ImageCache,
    progress: Progress,
    quiet: bool,
) -> dict[str, Any]:
    """Build the image, unless it is there; returns what `inspect_image` says of it.

    It is there if it has the name and none of the images that its Dockerfile names has changed since.

    Args:
        engine: the daemon.
        context: what it is built with.
        name: repository and tag that it gets; they stand for the context and all arguments.
        image: the role's image, build argument ``IMAGE``.
        workspace: the workspace in words, build argument ``WORKSPACE``.
        labels: labels that it gets.
        cache: where it is remembered which bases it was built from.
        progress: gets the output, unless ``quiet``.
        quiet: whether the output is shown only if the build fails.

    Raises:
        BackendError: the build failed.
        ConfigError: the Dockerfile needs BuildKit, and there is none.
    """
    arguments = {IMAGE_ARG: image, WORKSPACE_ARG: workspace}
    needs = parse(context.text, arguments)
    found = inspect_image(engine, name)
    built = cache.recall("built", engine.endpoint, name)
    if found is not None and built == [found["Id"], _ids(engine, needs)]:
        return found
    progress.step(f"building {context.dockerfile}")
    made = _build(engine, context, needs, arguments, labels, progress, quiet)
    result = inspect_image(engine, made)
    if result is None:
        raise ConfigError(
            f"{context.dockerfile} was built, but the daemon at {engine.endpoint} does not have the image",
            hint="Does the `docker` command use another daemon or builder? See `docker context ls`.",
        )
    tag(engine, made, name)
    cache.remember([result["Id"], _ids(engine, needs)], "built", engine.endpoint, name)
    return result


def _ids(engine: Engine, needs: Dockerfile) -> dict[str, str]:
    """Return the ids of the bases, as far as the daemon has them; BuildKit keeps what it pulled to itself."""
    found = {base: inspect_image(engine, base) for base in needs.bases}
    return {base: image["Id"] if image else "" for base, image in found.items()}


def _build(
    engine: Engine,
    context: Context,
    needs: Dockerfile,
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
    progress: Progress,
    quiet: bool,
) -> str:
    stream = tar_stream(context.content)
    buildkit = find_buildkit(engine)
    if buildkit is not None:
        command, environ = buildkit
        given = {**arguments, IMAGE_ARG: _nameable(engine, arguments[IMAGE_ARG])}
        return build_with_buildkit(
            command, environ, stream, context.dockerfile, given, labels, progress, quiet=quiet
        )
    if needs.buildkit:
        raise ConfigError(
            f"{context.dockerfile} needs BuildKit ({needs.buildkit}), which cannot be used here",
            hint="Install the docker command with its buildx plugin, or write the Dockerfile without it.",
        )
    auths = {}
    for base in needs.bases:
        if not _IMAGE_ID.fullmatch(base):
            host = Reference.parse(base).registry
            known = credentials_for(host)
            if known is not None:
                auths[host] = (known.username, known.password)
    header = registry_config(auths) if auths else None
    return build_on_engine(
        engine, stream, context.dockerfile, arguments, labels, progress, quiet=quiet, registry_config=header
    )


def _nameable(engine: Engine, image: str) -> str:
    """Return a name for an image: BuildKit takes an id for the name of an image in a registry."""
    if not _IMAGE_ID.fullmatch(image) or inspect_image(engine, image) is None:
        return image
    name = f"trainyard/base:{image.removeprefix('sha256:')}"
    tag(engine, image, name)
    return name
