"""A tracker of files: in a directory, or wherever fsspec writes to. Layout and names are TorchX's.

::

    <root>/<run id in base32>/metadata/<time in ns>      {"metadata": {"loss": 0.1}}
    <root>/<run id in base32>/artifacts/<time in ns>     {"name": ..., "path": ..., "metadata": ...}
    <root>/<run id in base32>/sources/<source in base32> names of artifacts by line; an empty line: the run

Runs that either has written are read by both.
"""

from __future__ import annotations

import binascii
import json
import os
import time
from base64 import b32decode, b32encode
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from ..errors import ConfigError
from .runs import TrackerArtifact, TrackerBase, TrackerSource

LOCAL_PROTOCOLS = ("file", "local")
_last_name = 0


class LocalFiles:
    """The few operations of fsspec that the tracker needs, for files: they need no fsspec."""

    protocol = "file"

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory, and those above it."""
        os.makedirs(path, exist_ok=exist_ok)

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        return os.path.exists(path)

    def ls(self, path: str, detail: bool = True) -> list[str]:
        """Return the paths in a directory."""
        return [os.path.join(path, name) for name in os.listdir(path)]

    def open(self, path: str, mode: str = "rb") -> IO[bytes]:
        """Open a file."""
        return open(path, mode)

    def invalidate_cache(self) -> None:
        """Nothing is kept."""


class FsspecTracker(TrackerBase):
    """Keeps runs in files.

    Args:
        fs: a file system of fsspec, or `LocalFiles`.
        root_dir: directory of all runs. It is made when the first run notes something.
    """

    def __init__(self, fs: Any, root_dir: str) -> None:
        self.fs = fs
        self.root_dir = root_dir.rstrip("/") or "/"

    def __repr__(self) -> str:
        return f"<FsspecTracker: root_path={self.root_dir}>"

    def add_metadata(self, run_id: str, **metadata: object) -> None:
        """Note facts about a run: values that JSON knows."""
        self._persist(run_id, "metadata", {"metadata": metadata})

    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the facts about a run; empty if there are none."""
        found: dict[str, object] = {}
        for content in self._load(run_id, "metadata"):
            found.update(content.get("metadata") or {})
        return found

    def add_artifact(
        self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Note a file or directory that a run has made; the file itself is not copied."""
        self._persist(run_id, "artifacts", {"name": name, "path": path, "metadata": metadata})

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return the artifacts of a run by name; of several with one name the latest."""
        return {
            content["name"]: TrackerArtifact(content["name"], content["path"], content.get("metadata"))
            for content in self._load(run_id, "artifacts")
            if "name" in content and "path" in content
        }

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Note that a run builds on another one, or on one artifact of it."""
        directory = self._made(run_id, "sources")
        path = f"{directory}/{encoded(source_id)}"
        lines = self._lines(path) if self.fs.exists(path) else []
        if (artifact_name or "") not in lines:
            self._write(path, "".join(f"{line}\n" for line in [*lines, artifact_name or ""]))

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return what a run builds on; with a name only the artifacts of that name."""
        for path in self._files(run_id, "sources"):
            source_id = decoded(_last_part(path))
            for line in self._lines(path) if source_id is not None else ():
                if artifact_name is None or line == artifact_name:
                    yield TrackerSource(str(source_id), line or None)

    def run_ids(self, parent_run_id: str | None = None) -> list[str]:  # type: ignore[override]
        """Return the runs that are known; with a parent those that build on it."""
        self.fs.invalidate_cache()
        if not self.fs.exists(self.root_dir):
            return []
        found = [
            (path, decoded(_last_part(path))) for path in sorted(self.fs.ls(self.root_dir, detail=False))
        ]
        return [
            run_id
            for path, run_id in found
            if run_id is not None
            and (parent_run_id is None or self.fs.exists(f"{path}/sources/{encoded(parent_run_id)}"))
        ]

    def _directory(self, run_id: str, kind: str) -> str:
        return f"{self.root_dir.rstrip('/')}/{encoded(run_id)}/{kind}"

    def _made(self, run_id: str, kind: str) -> str:
        directory = self._directory(run_id, kind)
        self.fs.makedirs(directory, exist_ok=True)
        return directory

    def _persist(self, run_id: str, kind: str, content: Mapping[str, object]) -> None:
        text = json.dumps(content)  # before the file is made: what JSON does not know leaves nothing behind
        self._write(f"{self._made(run_id, kind)}/{generate_filename()}", text)

    def _write(self, path: str, text: str) -> None:
        with self.fs.open(path, "wb") as file:
            file.write(text.encode())

    def _lines(self, path: str) -> list[str]:
        with self.fs.open(path, "rb") as file:
            text: str = file.read().decode()
        return text.splitlines()

    def _files(self, run_id: str, kind: str) -> list[str]:
        directory = self._directory(run_id, kind)
        self.fs.invalidate_cache()
        if not self.fs.exists(directory):
            return []
        return sorted(self.fs.ls(directory, detail=False), key=lambda path: _order(_last_part(path)))

    def _load(self, run_id: str, kind: str) -> Iterator[Mapping[str, Any]]:
        for path in self._files(run_id, kind):
            with self.fs.open(path, "rb") as file:
                text = file.read()
            try:
                content = json.loads(text)
            except ValueError:  # a program was killed, or could not write a value
                continue
            if isinstance(content, dict):
                yield content


def generate_filename() -> str:
    """Return a name that sorts by time: nanoseconds since the epoch, never twice in a process."""
    global _last_name
    _last_name = max(time.time_ns(), _last_name + 1)
    return str(_last_name)


def encoded(run_id: str) -> str:
    """Return a run's id as the name of a directory."""
    return b32encode(run_id.encode()).decode()


def decoded(name: str) -> str | None:
    """Return the run's id that the name of a directory stands for; None for other names."""
    try:
        return b32decode(name.encode()).decode()
    except (binascii.Error, ValueError):
        return None


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _order(name: str) -> tuple[int, str]:
    return (int(name) if name.isdecimal() else 0, name)


# ---- from a configuration


def create(config_file: str | None) -> FsspecTracker:
    """Return the tracker of a configuration.

    Args:
        config_file: a file of lines ``key=value``: ``protocol``, ``root_path``; the rest, where dots nest, is
            for fsspec's file system; the file may be given as a file:// URL. Or the root itself, as a URL or
            a directory.

    Raises:
        ConfigError: it cannot be read, or says too little, or fsspec is not installed.
    """
    config = config_file and _path_of_file(config_file)
    if not config:
        raise ConfigError(
            "The tracker fsspec has no configuration: give the root of its runs (a directory or URL), or a "
            "file with protocol= and root_path=, as config in [tracker:fsspec] of .torchxconfig, or in "
            "[tracker.fsspec] of shunter.toml."
        )
    if "://" in config:
        protocol, _, rest = config.partition("://")
        settings: dict[str, Any] = {"protocol": protocol, "root_path": rest}
    elif os.path.isdir(os.path.expanduser(config)):
        settings = {"protocol": "file", "root_path": os.path.abspath(os.path.expanduser(config))}
    else:
        settings = read_config(config)
    missing = [name for name in ("protocol", "root_path") if not settings.get(name)]
    if missing:
        raise ConfigError(
            f"The configuration of the tracker fsspec in {config} has no {' and no '.join(missing)}."
        )
    root = str(settings.pop("root_path"))
    protocol = str(settings.pop("protocol"))
    if protocol in LOCAL_PROTOCOLS:
        return FsspecTracker(LocalFiles(), os.path.abspath(os.path.expanduser(root)))
    return FsspecTracker(_file_system(protocol, settings), root)


def _path_of_file(config: str) -> str:
    """Return the path of a file:// URL of a file that exists; anything else unchanged."""
    protocol, _, path = config.partition("://")
    return path if protocol in LOCAL_PROTOCOLS and os.path.isfile(path) else config


def _file_system(protocol: str, settings: Mapping[str, Any]) -> Any:
    try:
        import fsspec  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return fsspec.filesystem(protocol, **settings)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"The tracker fsspec cannot write to {protocol}:// here: {error} "
            f"(pip install 'fsspec[{protocol}]' in the job's Python)"
        ) from error


def read_config(path: str) -> dict[str, Any]:
    """Read lines ``key=value``; a dot in a key nests, lines without ``=`` and comments (#) are passed over.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Cannot read the configuration of the tracker fsspec at {path}: {error}. It must lie there in "
            "the job too: in the code that travels with it, on shared storage or in the image."
        ) from error
    found: dict[str, Any] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not equals or key.strip().startswith("#"):
            continue
        *groups, name = key.strip().split(".")
        place = found
        for group in groups:
            inner = place.setdefault(group, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{path}: {group!r} is a value and cannot have {key.strip()!r} in it.")
            place = inner
        place[name] = value.strip()
    return found
