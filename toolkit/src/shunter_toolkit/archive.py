"""Unpacks archives that may be hostile, and packs directories the same way every time."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterable
from typing import IO

from . import input_config
from .errors import CodeError

SIZE_VARIABLE = "SHUNTER_UNPACK_MAX_BYTES"
RATIO_VARIABLE = "SHUNTER_UNPACK_MAX_RATIO"
DEFAULT_MAX_BYTES = 16 << 30
DEFAULT_MAX_RATIO = 200
_FREE_OF_RATIO = 256 << 20  # bytes that any archive may unpack to, however small it is
_LONGEST_HEADER = 1 << 20  # tarfile reads a header whole, and content in smaller pieces


def extract(archive: str, folder: str) -> None:
    """Unpack a tar archive, compressed or not, into a folder.

    Nothing is written if any member would leave the folder: an absolute path, ``..``, a hard link to outside,
    a path through a symbolic link to outside, a device or a fifo; or if the archive unpacks to more than
    ``SHUNTER_UNPACK_MAX_BYTES`` (16 GiB) or, beyond 256 MiB, to more than ``SHUNTER_UNPACK_MAX_RATIO``
    (200) times its size. Symbolic links are kept wherever they lead. Ownership, set-id bits and other special
    bits are dropped. What was unpacked before an error is removed.

    Raises:
        CodeError: the archive cannot be read, it is too large, or it has such a member.
        ConfigError: one of the variables is not a number.
    """
    os.makedirs(folder, exist_ok=True)
    root = tempfile.mkdtemp(prefix=".unpacking-", dir=os.path.realpath(folder))
    try:
        _extract(archive, root)
        _move_content(root, folder)
    except (tarfile.TarError, EOFError, OSError, gzip.BadGzipFile, ValueError, RecursionError) as error:
        raise CodeError(
            f"Cannot unpack {archive}: {str(error) or type(error).__name__}. It must be a whole tar.gz "
            "archive, made for example with `tar czf sourcedir.tar.gz -C src .`."
        ) from None
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _extract(archive: str, root: str) -> None:
    with _open(archive) as plain:
        bounded = _Bounded(plain, archive)
        with bounded, tarfile.open(fileobj=bounded, mode="r:") as tar:
            for member in list(_checked(tar, root, archive, bounded)):
                _refuse_crossing(member, root, archive)
                tar.extract(member, root, set_attrs=True, **_FILTER)  # type: ignore[arg-type]


def _open(archive: str) -> IO[bytes]:
    """The content of an archive, decompressed as it is read."""
    with open(archive, "rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(archive)  # type: ignore[return-value]
    if start.startswith(b"BZh"):
        import bz2

        return bz2.open(archive)
    if start.startswith((b"\xfd7zXZ", b"\x5d\x00\x00")):
        import lzma

        return lzma.open(archive)
    return open(archive, "rb")


class _Bounded(io.RawIOBase):
    """The decompressed content of an archive; going beyond the allowed size raises an error."""

    def __init__(self, plain: IO[bytes], archive: str) -> None:
        super().__init__()
        self._plain = plain
        self._archive = archive
        self._size = os.path.getsize(archive)
        self._most = int(input_config.env_number(SIZE_VARIABLE, DEFAULT_MAX_BYTES, "bytes"))
        self._ratio = input_config.env_number(RATIO_VARIABLE, DEFAULT_MAX_RATIO, "times the archive's size")
        self._claimed = 0

    def claim(self, size: int) -> None:
        """Count the size that a member declares: holes in sparse files are not counted anywhere else."""
        self._claimed += size
        self._check(self._claimed)

    def readable(self) -> bool:
        """Return True: the content can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: any position can be reached; that decompresses everything before it."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Read some bytes."""
        if size is None or size < 0 or size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        data = self._plain.read(size)
        self._check(self._plain.tell())
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position, counted from the start."""
        self._check(offset)
        return self._plain.seek(offset, whence)

    def tell(self) -> int:
        """The current position."""
        return self._plain.tell()

    def _check(self, size: int) -> None:
        allowed, variable = self._most, SIZE_VARIABLE
        by_ratio = max(_FREE_OF_RATIO, int(self._ratio * self._size))
        if by_ratio < allowed:
            allowed, variable = by_ratio, RATIO_VARIABLE
        if size > allowed:
            raise CodeError(
                f"Refused to unpack {self._archive}: its {self._size} bytes unpack to more than {allowed} "
                f"bytes. Nothing was kept. If it is what it should be, raise {variable}."
            )


def _move_content(source: str, target: str) -> None:
    """Move the content of a folder into another, replacing what is there."""
    for name in os.listdir(source):
        old, new = os.path.join(source, name), os.path.join(target, name)
        if all(os.path.isdir(path) and not os.path.islink(path) for path in (old, new)):
            _move_content(old, new)
        else:
            os.replace(old, new)


# From 3.12 on tarfile warns when no filter is named; members are checked and reset above, so none is needed.
_FILTER = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}


def _checked(tar: tarfile.TarFile, root: str, archive: str, bounded: _Bounded) -> Iterable[tarfile.TarInfo]:
    for member in tar:
        bounded.claim(member.size)
        reason = _objection(member, root)
        if reason:
            raise CodeError(
                f"Refused to unpack {archive}: member {member.name!r} {reason}. Nothing was written. "
                "Make the archive from inside the source directory, with relative paths and links only."
            )
        member.mode = (member.mode & 0o777) | (0o700 if member.isdir() else 0o600)
        member.uid, member.gid = os.geteuid(), os.getegid()
        member.uname = member.gname = ""
        yield member


def _objection(member: tarfile.TarInfo, root: str) -> str:
    """What is wrong with a member; "" if nothing is."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "is a device or a fifo"
    if os.path.isabs(member.name) or not _inside(root, member.name):
        return "lies outside the directory"
    if member.islnk() and (os.path.isabs(member.linkname) or not _inside(root, member.linkname)):
        return f"is a link out of the directory, to {member.linkname!r}"
    return ""


def _inside(root: str, relative: str) -> bool:
    path = os.path.normpath(os.path.join(root, relative))
    return path == root or path.startswith(root + os.sep)


def _refuse_crossing(member: tarfile.TarInfo, root: str, archive: str) -> None:
    """Refuse to write through a link: each name is fine by itself, but not after the members before it."""
    parent = os.path.realpath(os.path.join(root, os.path.dirname(member.name)))
    linked = os.path.realpath(os.path.join(root, member.linkname)) if member.islnk() else root
    for path in (parent, linked):
        if path != root and not path.startswith(root + os.sep):
            raise CodeError(
                f"Refused to unpack {archive}: member {member.name!r} goes through a link out of the "
                "directory. Make the archive without such links."
            )
    target = os.path.join(root, member.name)
    if os.path.islink(target):
        os.unlink(target)  # a later member of that name replaces the link, and never what it points to


def pack(entries: Iterable[tuple[str, str]], archive: str, *, keeps_times: bool = False) -> None:
    """Write entries as a gzipped tar, which appears complete or not at all.

    The same content gives the same bytes: no owners, and no time stamps unless they are kept.

    Args:
        entries: name and path of each.
        archive: where to write it.
        keeps_times: whether files keep the time of their last change.
    """

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.mtime if keeps_times else 0
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    partial = f"{archive}.partial"
    try:
        with open(partial, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as zipped:  # noqa: SIM117
            with tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for name, path in entries:
                    tar.add(path, name, recursive=False, filter=anonymous)
        os.replace(partial, archive)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)  # it takes room that others need


def entries_of(folder: str) -> list[tuple[str, str]]:
    """Return what a folder holds as names and paths, sorted: files, links, folders; no fifos or devices."""
    found = []
    for where, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(where, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
                found.append((os.path.relpath(path, folder), path))
    return sorted(found)
