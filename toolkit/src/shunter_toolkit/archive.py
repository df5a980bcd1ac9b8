"""Unpacks archives that may be hostile, and packs directories the same way every time."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterable

from .errors import CodeError


def extract(archive: str, folder: str) -> None:
    """Unpack a tar archive, compressed or not, into a folder.

    Nothing is written if any member would leave the folder: an absolute path, ``..``, a hard link to outside,
    a path through a symbolic link to outside, a device or a fifo. Symbolic links are kept wherever they lead.
    Ownership, set-id bits and other special bits are dropped. What was unpacked before an error is removed.

    Raises:
        CodeError: the archive cannot be read, or it has such a member.
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
    with tarfile.open(archive) as tar:
        for member in list(_checked(tar, root, archive)):
            _refuse_crossing(member, root, archive)
            tar.extract(member, root, set_attrs=True, **_FILTER)  # type: ignore[arg-type]


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


def _checked(tar: tarfile.TarFile, root: str, archive: str) -> Iterable[tarfile.TarInfo]:
    for member in tar:
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
