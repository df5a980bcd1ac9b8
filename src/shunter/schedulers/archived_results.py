"""Results in tar archives: ``model.tar.gz`` that a job sent, or what ``docker cp`` gives of a container."""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import tarfile
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import IO

from shunter.errors import BackendError
from shunter.schedulers.kept_results import BLOCK, INTERNAL, ResultFile, no_such_file, part_of

#: tarfile reads a header whole, so that a forged one could take all memory.
LONGEST_HEADER = 1 << 20
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError)


class ArchivedResults:
    """Results in one archive, compressed with gzip or not. Nothing is unpacked: members are read in place.

    Args:
        name: what the archive is called in messages. Two places of the same name and prefix are equal.
        open_file: opens the archive for reading. It is called when the results are first needed.
        prefix: the directory of its members among the results, such as ``output/data``; "" for none.
    """

    def __init__(self, name: str, open_file: Callable[[], IO[bytes]], prefix: str = "") -> None:
        self.name = name
        self.prefix = prefix
        self.left_out: list[str] = []
        self._open_file = open_file
        self._tar: tarfile.TarFile | None = None
        self._members: dict[str, tarfile.TarInfo] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArchivedResults):
            return False
        return (self.name, self.prefix) == (other.name, other.prefix)

    def __hash__(self) -> int:
        return hash((self.name, self.prefix))

    def files(self) -> list[ResultFile]:
        """Return the files in the order in which they are in the archive."""
        self._read_members()
        found = [
            ResultFile(path, member.size, float(member.mtime) or None)
            for path, member in self._members.items()
        ]
        return sorted(found, key=lambda file: self._members[file.path].offset)

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the content of a file from a byte on. Reading in the order of `files` is fastest."""
        part_of(path)
        self._read_members()
        assert self._tar is not None
        if path not in self._members:
            raise no_such_file(path)
        try:
            file = self._tar.extractfile(self._members[path])
            assert file is not None
            with file:
                file.seek(offset)
                while block := file.read(BLOCK):
                    yield block
        except (*_DAMAGED, OSError) as error:
            raise self._damaged(error) from error

    def _read_members(self) -> None:
        if self._tar is not None:
            return
        try:
            file = self._open_file()
            weakref.finalize(self, file.close)
            content = _Content(file)
            self._tar = tarfile.open(fileobj=content, mode="r:")  # noqa: SIM115
            members = {posixpath.normpath(member.name): member for member in self._tar}
            while content.read(BLOCK):  # gzip compares its checksum at the end
                pass
        except (*_DAMAGED, OSError) as error:
            self._tar = None
            raise self._damaged(error) from error
        for name, member in members.items():
            path = posixpath.join(self.prefix, name)
            parts = path.split("/")
            if member.isdir() or path == INTERNAL:
                continue
            if posixpath.isabs(name) or ".." in parts:
                self.left_out.append(f"{path} lies outside of the archive")
            elif (target := _content_of(name, members)) is None:
                self.left_out.append(f"{path} is a link that leads out of the results, or no file")
            elif not target.isdir():
                self._members[path] = target

    def _damaged(self, error: Exception) -> BackendError:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return BackendError(f"cannot read {self.name}: {words}")


def _content_of(name: str, members: dict[str, tarfile.TarInfo]) -> tarfile.TarInfo | None:
    """Return the member that has the content of a name, through links; None if it leads elsewhere."""
    for _ in range(len(members) if len(members) < 8 else 8):  # links to links
        member = members.get(name)
        if member is None or not (member.issym() or member.islnk()):
            return member if member is not None and (member.isreg() or member.isdir()) else None
        above = posixpath.dirname(name) if member.issym() else ""
        name = posixpath.normpath(posixpath.join(above, member.linkname))
    return None


class _Content(io.RawIOBase):
    """The decompressed content of an archive. To go back decompresses it again."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        start = file.read(2)
        file.seek(0)
        self._plain: IO[bytes] = gzip.GzipFile(fileobj=file) if start == b"\x1f\x8b" else file  # type: ignore[assignment]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0 or size > LONGEST_HEADER:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        return self._plain.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._plain.seek(offset, whence)

    def tell(self) -> int:
        return self._plain.tell()
