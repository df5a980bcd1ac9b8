"""What jobs leave behind: files of the directories ``model``, ``output`` and ``checkpoints`` of a replica.

Names and content come from jobs, so they are not trusted: links that lead out of a job's directories are
never followed, and a path never has a part ``..``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shunter.errors import BackendError, ConfigError
from shunter.progress import Progress
from shunter.specs.training import RESULTS

#: What the toolkit keeps among the results while a job runs: space for its report, should the disk be full.
INTERNAL = "output/.failure.reserve"
#: How much of a file is read at a time.
BLOCK = 1 << 20


@dataclass(frozen=True)
class ResultFile:
    """A file that a replica left, or has written so far.

    Attributes:
        path: its place below the replica's base directory: ``model/weights.pt``, ``output/failure``.
        size: in bytes.
        modified: time of its last change, in seconds since the epoch; None if the source does not tell.
        sha256: the SHA-256 of its content in hexadecimal digits; "" if the source does not tell.
    """

    path: str
    size: int
    modified: float | None = None
    sha256: str = ""


class ResultPlace(Protocol):
    """Where the results of a replica are. Two places are equal if they hold the same files."""

    @property
    def left_out(self) -> list[str]:
        """What the last call of `files` left out and why, a sentence each, such as a link to elsewhere."""

    def files(self) -> list[ResultFile]:
        """Return the files that are there now, in the order in which they are best read.

        Raises:
            ConfigError: they are kept nowhere, which only reading the place has shown.
            BackendError: the place cannot be read.
        """

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the content of a file from a byte on.

        Raises:
            ConfigError: there is no such file, or its path leads out of the results.
            BackendError: it cannot be read.
        """


@runtime_checkable
class PreparesResults(Protocol):
    """A `ResultPlace` that has to fetch something before it can list its files, and does so once."""

    def prepare(self, progress: Progress) -> None:
        """Fetch it now, and show how much has come. Raises as `ResultPlace.files`."""


@runtime_checkable
class KeepsResults(Protocol):
    """A scheduler that can say where the results of its jobs are."""

    def results(self, app_id: str, role_name: str, k: int) -> ResultPlace:
        """Return where the results of a replica are.

        A job that runs has those that are there so far.

        Raises:
            UnknownAppException: there is no such job.
            UsageError: it has no such replica.
            ConfigError: its results are kept nowhere; the hint says what to do.
            BackendError: the scheduler does not answer.
        """


def part_of(path: str) -> str:
    """Return the first part of a result's path, one of `RESULTS`.

    Raises:
        ConfigError: the path is not that of a result.
    """
    parts = path.split("/")
    if parts[0] not in RESULTS or len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
        raise no_such_file(path)
    return parts[0]


def no_such_file(path: str) -> ConfigError:
    """Return the error for a result that does not exist."""
    return ConfigError(f"there is no result {path!r}", hint="`shunter fetch --list` shows what there is.")


def without_toolkit(app_id: str, role_name: str) -> ConfigError:
    """Return the error for a role that runs without the toolkit, whose results are not known."""
    return ConfigError(
        f"role {role_name!r} of {app_id} runs without the toolkit, so it keeps no results",
        hint="Run its script with train.script, and have it write to SM_MODEL_DIR or SM_OUTPUT_DATA_DIR.",
    )


class LocalResults:
    """Results in directories of this machine.

    Args:
        folders: the directory of each part: ``model``, ``output``, ``checkpoints``. None of them need exist.
    """

    def __init__(self, folders: Mapping[str, str]) -> None:
        self.folders = dict(folders)
        self.left_out: list[str] = []

    @property
    def checkpoints_at(self) -> str:
        """Where other jobs can read its checkpoints."""
        return self.folders.get("checkpoints", "")

    @classmethod
    def below(cls, base: str) -> LocalResults:
        """Return the results below a base directory."""
        return cls({part: os.path.join(base, part) for part in RESULTS})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalResults) and self.folders == other.folders

    __hash__ = None  # type: ignore[assignment]

    def files(self) -> list[ResultFile]:
        """Return the files; links to other results are files, links to elsewhere are left out."""
        self.left_out = []
        return [file for part in self.folders for file in self._files(part)]

    def _files(self, part: str) -> Iterator[ResultFile]:
        pending = [(part, self.folders[part])]
        while pending:
            name, folder = pending.pop()
            if os.path.islink(folder):
                self.left_out.append(f"{name} is a link that leads out of the results")
                continue
            try:
                with os.scandir(folder) as scanned:
                    entries = sorted(scanned, key=lambda entry: entry.name)
            except (FileNotFoundError, NotADirectoryError):  # never made, or removed meanwhile
                continue
            except OSError as error:
                self.left_out.append(f"{name} cannot be read: {error.strerror or error}")
                continue
            folders = []
            for entry in entries:
                path = f"{name}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append((path, entry.path))
                elif (file := self._file(path, entry)) is not None:
                    yield file
            pending += reversed(folders)

    def _file(self, path: str, entry: os.DirEntry[str]) -> ResultFile | None:
        if path == INTERNAL:
            return None
        if entry.is_symlink() and not self._is_inside(entry.path):
            self.left_out.append(f"{path} is a link that leads out of the results")
            return None
        try:
            info = os.stat(entry.path)
        except OSError:  # removed meanwhile, or a link to nothing
            return None
        if stat.S_ISREG(info.st_mode):
            return ResultFile(path, info.st_size, info.st_mtime)
        if not stat.S_ISDIR(info.st_mode):  # the files of a linked directory are listed where they are
            self.left_out.append(f"{path} is a FIFO, a socket or a device")
        return None

    def _is_inside(self, path: str) -> bool:
        real = os.path.realpath(path)
        roots = [_unlinked(folder) for folder in self.folders.values()]
        return any(real.startswith(root + os.sep) for root in roots)

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the content of a file from a byte on, if it is still one of the results."""
        part = part_of(path)
        if part not in self.folders:
            raise no_such_file(path)
        full = os.path.join(self.folders[part], path.partition("/")[2])
        try:
            descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                self._check(path, full, descriptor)
                file.seek(offset)
                while block := file.read(BLOCK):
                    yield block
        except (FileNotFoundError, NotADirectoryError):
            raise no_such_file(path) from None
        except OSError as error:
            raise BackendError(f"cannot read {full}: {error.strerror or error}") from error

    def _check(self, path: str, full: str, descriptor: int) -> None:
        """Check that what was opened is a result: the job may have put a link there after it was listed."""
        opened, real = os.fstat(descriptor), os.path.realpath(full)
        is_same = os.path.exists(real) and os.path.samestat(opened, os.stat(real))
        if not is_same or not self._is_inside(full) or not stat.S_ISREG(opened.st_mode):
            raise no_such_file(path)


def _unlinked(folder: str) -> str:
    """Return the real path of a directory as if it were no link itself: jobs can replace it by one."""
    above, name = os.path.split(folder)
    return os.path.join(os.path.realpath(above), name)


class JoinedResults:
    """Results of which each part is in another place.

    Args:
        places: the places, whose paths differ.
    """

    def __init__(self, places: Sequence[ResultPlace]) -> None:
        self.places = list(places)
        self._place_of: dict[str, ResultPlace] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JoinedResults) and self.places == other.places

    __hash__ = None  # type: ignore[assignment]

    def prepare(self, progress: Progress) -> None:
        """Fetch what the places need to list their files."""
        for place in self.places:
            if isinstance(place, PreparesResults):
                place.prepare(progress)

    @property
    def checkpoints_at(self) -> str:
        """Where other jobs can read its checkpoints; "" if nowhere."""
        return next(filter(None, (getattr(place, "checkpoints_at", "") for place in self.places)), "")

    @property
    def left_out(self) -> list[str]:
        """What the places left out."""
        return [text for place in self.places for text in place.left_out]

    def files(self) -> list[ResultFile]:
        """Return the files of all places; of several with one path, the first."""
        found: dict[str, ResultFile] = {}
        for place in self.places:
            for file in place.files():
                if file.path not in found:
                    found[file.path], self._place_of[file.path] = file, place
        return list(found.values())

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the content of a file of the place that has it."""
        part_of(path)
        if path not in self._place_of:
            self.files()
        if path not in self._place_of:
            raise no_such_file(path)
        return self._place_of[path].read(path, offset)
