"""The files of a job, for its page: the results of its replicas, and the code that it was submitted with.

What is downloaded is never kept here: a thread reads it, and waits while the browser is slower.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import re
import tarfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter.errors import BackendError, ConfigError, UnknownAppException
from shunter.runner import Runner, get_runner
from shunter.runner.fetched_results import is_plain_path
from shunter.schedulers.kept_results import BLOCK, ResultFile, ResultPlace, no_such_file
from shunter.ui.runner_pool import NoAnswerError, RunnerPool
from shunter.workspace.code_store import Store
from shunter.workspace.manifest import Manifest

#: The place of the code, beside those of the replicas, which are ``ROLE/K``.
CODE = "code"
#: Seconds that a scheduler may take until it says what files there are.
FILES_PATIENCE = 60.0
#: Bytes of a text that are shown; a file with a zero byte in them is no text.
SHOWN_BYTES = 64 << 10
#: Formats that browsers show and that contain no scripts: SVG does.
IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_TAR_BLOCK = 512
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})?")


class KeptCode:
    """The code of a job as files, where the code store has it.

    Args:
        manifest: lists it.
        store: has the contents; of code that was shipped elsewhere only small files.
    """

    def __init__(self, manifest: Manifest, store: Store) -> None:
        self.left_out: list[str] = []
        self._manifest, self._store = manifest, store

    def files(self) -> list[ResultFile]:
        """Return the files whose content is kept."""
        self.left_out = []
        files = []
        for entry in self._manifest.entries:
            if entry.kind == "link":
                self.left_out.append(f"{entry.path} is a link")
            elif entry.kind == "file" and not os.path.exists(self._store.blob_path(entry)):
                self.left_out.append(f"{entry.path} is not kept on this machine")
            elif entry.kind == "file":
                files.append(ResultFile(entry.path, entry.size, sha256=entry.digest))
        return files

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the content of a file from a byte on."""
        entry = self._manifest.by_path.get(path)
        if entry is None or entry.kind != "file":
            raise no_such_file(path)
        with open(self._store.require(entry), "rb") as file:
            file.seek(offset)
            while block := file.read(BLOCK):
                yield block


def place_of(runner: Runner, handle: str, place: str) -> ResultPlace:
    """Return where files of a job are: the results of a replica ``ROLE/K``, or its `CODE`.

    Raises:
        UnknownAppException: there is no such job.
        ConfigError: the files are kept nowhere.
    """
    if place == CODE:
        record = runner.history.find(handle)
        manifest = Store().manifest(record.fingerprint) if record and record.fingerprint else None
        if manifest is None:
            raise ConfigError("the code of this job is not kept on this machine")
        return KeptCode(manifest, Store())
    role, _, number = place.rpartition("/")
    if not number.isdecimal() or len(number) > 7:
        raise UnknownAppException(f"there is no replica {place[:100]!r}")
    return runner.results(handle, role, int(number))


@dataclass
class FolderView:
    """What one folder of a place has.

    Attributes:
        path: the folder; "" for the top.
        folders: by name, the number of files below each and their size.
        files: the files in it.
        left_out: what is not listed and why, a sentence each.
        total: how many files are below it.
    """

    path: str
    folders: dict[str, tuple[int, int]] = field(default_factory=dict)
    files: list[ResultFile] = field(default_factory=list)
    left_out: Sequence[str] = ()
    total: int = 0


def folder_of(place: ResultPlace, path: str) -> FolderView:
    """Return what a folder of a place has."""
    view = FolderView(path)
    prefix = path + "/" if path else ""
    strange = []
    for file in place.files():
        if not file.path.startswith(prefix):
            continue
        if not is_plain_path(file.path):
            strange.append(f"{file.path!r} is not a plain name")
            continue
        view.total += 1
        name, is_below, _ = file.path[len(prefix) :].partition("/")
        if is_below:
            count, size = view.folders.get(name, (0, 0))
            view.folders[name] = (count + 1, size + file.size)
        else:
            view.files.append(file)
    view.left_out = [*place.left_out, *strange]
    view.folders = dict(sorted(view.folders.items()))
    view.files.sort(key=lambda file: file.path)
    return view


def find_file(place: ResultPlace, path: str) -> ResultFile:
    """Return a file of a place.

    Raises:
        ConfigError: it has no such file.
    """
    for file in place.files():
        if file.path == path:
            return file
    raise no_such_file(path)


def beginning_of(place: ResultPlace, file: ResultFile) -> bytes:
    """Return the first bytes of a file."""
    data = b""
    for block in place.read(file.path):
        data += block
        if len(data) >= SHOWN_BYTES:
            break
    return data[:SHOWN_BYTES]


@dataclass(frozen=True)
class FilePart:
    """What one answer has of a file.

    Attributes:
        file: the file.
        start, end: its bytes from ``start`` to before ``end``.
        status: the code of the answer.
        tag: tells this version of the file from later ones; "" if nothing does.
    """

    file: ResultFile
    start: int
    end: int
    status: int
    tag: str

    @classmethod
    def of(cls, file: ResultFile, asked: str, condition: str) -> FilePart:
        """Return the part that the headers Range and If-Range ask for, or else the whole."""
        version = f"{file.size} {file.modified} {file.sha256}"
        is_known = bool(file.sha256) or file.modified is not None
        tag = f'"{hashlib.sha256(version.encode()).hexdigest()[:20]}"' if is_known else ""
        match = _RANGE.fullmatch(asked)
        if match and tag and condition in ("", tag):
            start, end = int(match[1]), min(int(match[2] or file.size) + 1, file.size)
            if start < end:
                return cls(file, start, end, 206, tag)
        return cls(file, 0, file.size, 200, tag)

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer that tell the part."""
        headers = {"etag": self.tag, "accept-ranges": "bytes"} if self.tag else {}
        if self.status == 206:
            headers["content-range"] = f"bytes {self.start}-{self.end - 1}/{self.file.size}"
        return headers


def blocks_of(place: ResultPlace, file: ResultFile, start: int, end: int) -> Iterator[bytes]:
    """Yield a file's bytes from ``start`` to before ``end``, as long as it is what was listed.

    Raises:
        BackendError: it has become shorter, or was damaged on its way. Nobody takes what came for the whole.
    """
    digest = hashlib.sha256() if file.sha256 and (start, end) == (0, file.size) else None
    for block in place.read(file.path, start) if start < end else ():
        kept = block[: end - start]
        start += len(kept)
        if digest is not None:
            digest.update(kept)
            if start == end and digest.hexdigest() != file.sha256:
                break
        yield kept
        if start == end:
            return
    if start < end or (digest is not None and file.size):
        raise BackendError(f"{file.path} was damaged on its way, or became shorter meanwhile")


def tar_of(places: Sequence[tuple[str, ResultPlace]], folder: str = "") -> Iterator[bytes]:
    """Yield a tar archive of a folder's files; those of each place are below its name in the archive.

    Raises:
        ConfigError: there are no files.
        BackendError: a file cannot be read.
    """
    prefix = folder + "/" if folder else ""
    is_empty = True
    for name, place in places:
        for file in place.files():
            path = f"{name}/{file.path}"
            if not file.path.startswith(prefix) or not is_plain_path(path):
                continue
            is_empty = False
            info = tarfile.TarInfo(path)
            info.size, info.mtime = file.size, int(file.modified or 0)
            yield info.tobuf(tarfile.PAX_FORMAT)
            yield from blocks_of(place, file, 0, file.size)
            yield bytes(-file.size % _TAR_BLOCK)
    if is_empty:
        raise ConfigError("there are no files to download")
    yield bytes(2 * _TAR_BLOCK)


class Download:
    """Something that a thread reads with a runner, and that a browser takes block by block.

    Args:
        read: returns what it is and its blocks; both are made in the thread.
        pool: tells when the server ends.
    """

    def __init__(self, read: Callable[[Runner], tuple[Any, Iterator[bytes]]], pool: RunnerPool) -> None:
        self._read, self._pool = read, pool
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue(2)
        self._is_unwanted = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="ui-download").start()

    async def head(self) -> Any:
        """Return what it is, when its first block has been read.

        Raises:
            ShunterError: it cannot be read.
        """
        try:
            async with asyncio.timeout(FILES_PATIENCE):
                return await self._next()
        except TimeoutError:
            self.drop()
            raise NoAnswerError(f"the files were not listed within {FILES_PATIENCE:.0f} seconds") from None

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield the blocks; an error breaks the connection, so that nobody takes a part for the whole."""
        try:
            while (block := await self._next()) is not None:
                if self._pool.is_closing():
                    raise BackendError("the server ends")
                yield block
        finally:
            self.drop()

    def drop(self) -> None:
        """Read no more."""
        self._is_unwanted.set()
        while not self._queue.empty():  # so that the thread, which may wait for room, sees it
            self._queue.get_nowait()

    async def _next(self) -> Any:
        item = await self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _run(self) -> None:
        try:
            with get_runner() as runner:
                head, blocks = self._read(runner)
                first = next(blocks, b"")  # what cannot be read at all is known before an answer is begun
                for item in itertools.chain((head, first), blocks):
                    if self._is_unwanted.is_set():
                        return
                    self._put(item)
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: Any) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._queue.put(item), self._loop).result()
        except RuntimeError:  # the server has ended
            self._is_unwanted.set()
