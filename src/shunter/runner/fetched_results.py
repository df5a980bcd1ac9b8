"""Brings results of jobs to this machine: resumable, checked, and never outside of the target directory.

A file is written beside its place with a name that ends in ``.part`` and tells which version of the source it
is; a later attempt goes on at its size if the source is still the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import glob
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import IO

from shunter.errors import BackendError, ConfigError, ShunterError, StateStoreError, did_you_mean
from shunter.progress import Progress
from shunter.schedulers.kept_results import BLOCK, PreparesResults, ResultFile, ResultPlace
from shunter.terminal import clean

#: What became of a file.
FETCHED, UNCHANGED = "fetched", "unchanged"
#: Letters of the source's version in the name of a part, and bytes of the file's own name there.
_VERSION_LETTERS, _NAME_BYTES = 12, 200
#: Bytes at the end of a part that are compared with the source before the rest is fetched.
_COMPARED = 64 << 10


@dataclass(frozen=True)
class ResultSource:
    """Where results come from, and the folder of the target directory into which they go.

    Attributes:
        role: name of the role.
        replica: index of the replica.
        place: where its results are.
        folder: relative to the target directory; "" for that itself.
    """

    role: str
    replica: int
    place: ResultPlace
    folder: str = ""


@dataclass(frozen=True)
class Chosen:
    """A file that is to be fetched."""

    source: ResultSource
    file: ResultFile

    @property
    def name(self) -> str:
        """Its path below the target directory."""
        return os.path.join(self.source.folder, self.file.path)


@dataclass(frozen=True)
class FetchedFile:
    """A file that is on this machine now.

    Attributes:
        role: name of the role that it is from.
        replica: index of the replica.
        path: its path among the results.
        size: in bytes.
        file: where it is on this machine.
        state: ``fetched``, or ``unchanged`` if it was there already.
    """

    role: str
    replica: int
    path: str
    size: int
    file: str
    state: str


@dataclass
class Fetched:
    """What became of some results.

    Attributes:
        files: the files that are here now.
        left_out: what is not among the results and why, a sentence each: links to elsewhere.
        changed: paths of files that the job changed meanwhile: what is here is their state of that moment.
        problems: why files were not fetched.
    """

    files: list[FetchedFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    problems: list[ShunterError] = field(default_factory=list)

    def raise_for_problems(self) -> None:
        """Raise one error for all problems; does nothing if there are none."""
        if self.problems:
            first = self.problems[0]
            raise type(first)("\n".join(each.message for each in self.problems), hint=first.hint)


def sources_of(places: Sequence[tuple[str, int, ResultPlace]]) -> list[ResultSource]:
    """Return sources for places by role and replica; places that are equal are one source."""
    sources: list[ResultSource] = []
    for role, k, place in places:
        if not any(source.place == place for source in sources):
            sources.append(ResultSource(role, k, place, os.path.join(role, str(k))))
    if len(sources) == 1:
        return [ResultSource(sources[0].role, sources[0].replica, sources[0].place)]
    return sources


def chosen_files(
    sources: Sequence[ResultSource], patterns: Sequence[str] = (), progress: Progress | None = None
) -> list[Chosen]:
    """Return the files of sources that match one of the patterns; all without a pattern.

    Args:
        sources: where they are.
        patterns: as `fnmatch` has them, of whole paths: ``*.pt``, ``model/*``; or a directory, ``model``.
        progress: shows what has to be fetched to tell what there is.

    Raises:
        ConfigError: nothing matches, or there is nothing at all.
    """
    for place in (source.place for source in sources):
        if progress is not None and isinstance(place, PreparesResults):
            place.prepare(progress)
    files = [Chosen(source, file) for source in sources for file in source.place.files()]
    if not files:
        raise ConfigError(
            "the job has no results",
            hint="Scripts write them to the directories that SM_MODEL_DIR and SM_OUTPUT_DATA_DIR name; while "
            "a job runs they may come later.",
        )
    if not patterns:
        return files
    chosen = [each for each in files if any(_matches(each.file.path, pattern) for pattern in patterns)]
    if not chosen:
        raise ConfigError(
            f"no result matches {' or '.join(map(repr, patterns))}",
            hint=f"{did_you_mean(patterns[0], {each.file.path for each in files})} "
            "`shunter fetch --list JOB` shows what there is.",
        )
    return chosen


def is_plain_path(path: str) -> bool:
    """Tell whether a path leads to a file below a directory, and has no control characters."""
    return clean(path) == path and not any(part in ("", ".", "..") for part in path.split("/"))


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or path.startswith(pattern.rstrip("/") + "/")


def fetch(chosen: Sequence[Chosen], target: str, progress: Progress, *, force: bool = False) -> Fetched:
    """Bring files to a directory, which is made if need be. What cannot be fetched does not stop the others.

    Args:
        chosen: the files.
        target: the directory.
        progress: shows how many bytes have come.
        force: overwrite files that differ.

    Raises:
        ConfigError: the target cannot be a directory, or its disk has too little space.
    """
    result = Fetched()
    root = os.path.abspath(target)
    try:
        os.makedirs(root, exist_ok=True)
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise _cannot_write(root, error) from error
    missing = []
    for each in chosen:
        try:
            if _is_here(root, each, force=force):
                result.files.append(_fetched(each, root, UNCHANGED))
            else:
                missing.append(each)
        except ShunterError as error:
            result.problems.append(error)
    total = sum(each.file.size for each in missing)
    if total > free:
        raise ConfigError(
            f"cannot fetch {total} bytes to {target}: its disk has {free} bytes left",
            hint="Choose files by patterns, or another directory: --to DIR.",
        )
    progress.step(f"fetching {len(missing)} file{'' if len(missing) == 1 else 's'}")
    done = 0
    stale_parts = _StaleParts()
    for each in missing:
        try:
            state = _fetch(root, each, progress, done, total, stale_parts, force=force)
            result.files.append(_fetched(each, root, state))
        except ShunterError as error:
            result.problems.append(error)
        except OSError as error:
            result.problems.append(_cannot_write(os.path.join(root, each.name), error))
        done += each.file.size
    sources = list({id(each.source): each.source for each in chosen}.values())
    result.changed = _changed(missing)
    result.left_out = [text for source in sources for text in source.place.left_out]
    return result


def _fetched(each: Chosen, root: str, state: str) -> FetchedFile:
    path = os.path.join(root, each.name)
    return FetchedFile(each.source.role, each.source.replica, each.file.path, each.file.size, path, state)


def _is_here(root: str, each: Chosen, *, force: bool) -> bool:
    """Tell whether a file is here already, as far as that can be told before it is read.

    Raises:
        ConfigError: its name leads out of the directory, or it would replace another file.
    """
    if not is_plain_path(each.name):
        raise ConfigError(
            f"refused to fetch {each.file.path!r}: its name has control characters or leads out of the "
            "directory",
            hint="The job chose the name. The other files are fetched.",
        )
    path = os.path.join(root, each.name)
    parent = os.path.realpath(os.path.dirname(path))
    if os.path.commonpath([parent, os.path.realpath(root)]) != os.path.realpath(root):
        raise ConfigError(
            f"refused to write {path}: a link leads out of {root}",
            hint="Remove the link, or choose another --to.",
        )
    if not os.path.lexists(path):
        return False
    if os.path.isfile(path) and not os.path.islink(path):
        info, file = os.stat(path), each.file
        if file.modified is not None and (info.st_size, info.st_mtime_ns) == (file.size, _nanoseconds(file)):
            return True
        if force or info.st_size == file.size:  # then the content is compared
            return False
    elif os.path.islink(path) and force:
        return False
    raise _differs(path)


def _fetch(
    root: str,
    each: Chosen,
    progress: Progress,
    done: int,
    total: int,
    stale_parts: _StaleParts,
    *,
    force: bool,
) -> str:
    """Fetch a file; returns what became of it."""
    path = os.path.join(root, each.name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = _part_path(path, each.file)
    with _opened_part(part) as file:
        if os.path.lexists(path) and _is_here(root, each, force=force):  # another process has fetched it
            os.unlink(part)
            return UNCHANGED
        have, blocks = _rest(file, each)
        for block in blocks:
            kept = block[: each.file.size - have]  # a file that grows is fetched as it was listed
            file.write(kept)
            have += len(kept)
            progress.advance("results", done + have, total)
            if have == each.file.size:
                break
        if have < each.file.size:
            raise BackendError(
                f"{each.file.path} became shorter meanwhile: {have} of {each.file.size} bytes came",
                hint="The job may be writing it. Fetch it again.",
            )
        file.flush()
        if each.file.sha256 and _sha256_of(file) != each.file.sha256:
            os.unlink(part)
            raise BackendError(
                f"{each.file.path} was damaged on its way: its SHA-256 is wrong", hint="Fetch it again."
            )
        if each.file.modified is not None:
            os.utime(part, ns=(_nanoseconds(each.file), _nanoseconds(each.file)))
        state = FETCHED
        if os.path.lexists(path) and not force:
            if not filecmp.cmp(part, path, shallow=False):
                os.unlink(part)
                raise _differs(path)
            state = UNCHANGED
        for stale in stale_parts.of(path):
            if stale != part:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(stale)
        os.replace(part, path)
    return state


def _rest(part: IO[bytes], each: Chosen) -> tuple[int, Iterator[bytes]]:
    """Return how many bytes of a part are kept, and what comes behind them.

    Its last bytes are compared with the source: what was written before a machine went down may be lost.
    """
    have = part.seek(0, os.SEEK_END)
    if 0 < have <= each.file.size:
        start = max(0, have - _COMPARED)
        part.seek(start)
        end, came = part.read(), b""
        blocks = each.source.place.read(each.file.path, start)
        while len(came) < len(end) and (block := next(blocks, b"")):
            came += block
        if came.startswith(end):
            return have, itertools.chain([came[len(end) :]], blocks)
    part.truncate(0)
    part.seek(0)
    return 0, each.source.place.read(each.file.path) if each.file.size else iter(())


@contextlib.contextmanager
def _opened_part(part: str) -> Iterator[IO[bytes]]:
    """Open a part, and keep others from it: a process that fetches the same waits, and then has the file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with open(os.open(part, flags, 0o666), "r+b") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.exists(part) and os.path.samestat(os.fstat(file.fileno()), os.stat(part)):
                yield file
                return


class _StaleParts:
    """The parts that earlier fetches left; each folder is read once."""

    def __init__(self) -> None:
        self._by_stem: dict[str, dict[str, list[str]]] = {}

    def of(self, path: str) -> list[str]:
        """Return the parts of a file, of any version of its source."""
        folder = os.path.dirname(path)
        if folder not in self._by_stem:
            parts = self._by_stem[folder] = {}
            for part in glob.iglob(os.path.join(glob.escape(folder), f"*.{'?' * _VERSION_LETTERS}.part")):
                parts.setdefault(part[: -len(".part") - _VERSION_LETTERS - 1], []).append(part)
        return self._by_stem[folder].get(_part_stem(path), [])


def _part_stem(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, os.fsdecode(os.fsencode(name)[:_NAME_BYTES]))


def _part_path(path: str, file: ResultFile) -> str:
    version = hashlib.sha256(f"{file.size} {file.modified} {file.sha256} ".encode() + os.fsencode(path))
    return f"{_part_stem(path)}.{version.hexdigest()[:_VERSION_LETTERS]}.part"


def _nanoseconds(file: ResultFile) -> int:
    return int((file.modified or 0.0) * 1_000_000) * 1000


def _sha256_of(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def _changed(chosen: Sequence[Chosen]) -> list[str]:
    """Return the paths of files that the job has changed since they were listed."""
    changed = []
    for source in {id(each.source): each.source for each in chosen}.values():
        try:
            now = {file.path: file for file in source.place.files()}
        except ShunterError:  # what came has been checked by its size
            continue
        own = [each for each in chosen if each.source is source]
        changed += [each.name for each in own if now.get(each.file.path, each.file) != each.file]
    return changed


def _differs(path: str) -> ConfigError:
    return ConfigError(
        f"{path} exists and differs from the job's file",
        hint="--force overwrites it; --to DIR chooses another directory.",
    )


def _cannot_write(path: str, error: OSError) -> ShunterError:
    return StateStoreError(
        f"cannot write {path}: {error.strerror or error}", hint="Choose another directory: --to DIR."
    )
