"""Unpacks archives that may be hostile, and packs directories the same way every time."""

from __future__ import annotations

import gzip
import os
import tarfile

from trainyard_toolkit.errors import CodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def extract(archive: str, folder: str) -> None:
    """Unpack a tar archive, compressed or not, into a folder.

    Nothing is written if any member would leave the folder: an absolute path, ``..``, a link that points out,
    a device or a fifo. Ownership, set-id bits and other special bits are dropped.

    Raises:
        CodeError: the archive cannot be read, or it has such a member.
    """
    root = os.path.realpath(folder)
    try:
        with tarfile.open(archive) as tar:
            members = list(_checked(tar, root, archive))
            for member in members:
                _refuse_crossing(member, root, archive)
                tar.extract(member, root, set_attrs=True, **_FILTER)  # type: ignore[arg-type]
    except (tarfile.TarError, EOFError, OSError, gzip.BadGzipFile, ValueError) as error:
        raise CodeError(
            f"Cannot unpack {archive}: {str(error) or type(error).__name__}. "
            "It must be a whole tar.gz archive, "
            "made for example with `tar czf sourcedir.tar.gz -C src .`."
        ) from None


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
    """What is wrong with a member, or nothing."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "is a device or a fifo"
    if os.path.isabs(member.name) or not _inside(root, member.name):
        return "lies outside the directory"
    if member.issym():
        target = os.path.join(os.path.dirname(member.name), member.linkname)
        if os.path.isabs(member.linkname) or not _inside(root, target):
            return f"is a link out of the directory, to {member.linkname!r}"
    if member.islnk() and (os.path.isabs(member.linkname) or not _inside(root, member.linkname)):
        return f"is a link out of the directory, to {member.linkname!r}"
    return ""


def _inside(root: str, relative: str) -> bool:
    path = os.path.normpath(os.path.join(root, relative))
    return path == root or path.startswith(root + os.sep)


def _refuse_crossing(member: tarfile.TarInfo, root: str, archive: str) -> None:
    """Refuse to write through a link: the names were fine one by one, but not in this order."""
    parent = os.path.realpath(os.path.join(root, os.path.dirname(member.name)))
    linked = os.path.realpath(os.path.join(root, member.linkname)) if member.islnk() else root
    for path in (parent, linked):
        if path != root and not path.startswith(root + os.sep):
            raise CodeError(
                f"Refused to unpack {archive}: member {member.name!r} goes through a link "
                "out of the directory. "
                "Make the archive without such links."
            )
    target = os.path.join(root, member.name)
    if os.path.islink(target):
        os.unlink(target)  # a later member of that name replaces the link, and never what it points to


def pack(folder: str, archive: str) -> None:
    """Write the content of a folder as a gzipped tar, its entries at the top level, in sorted order.

    The same content gives the same bytes: no time stamps, no owners. Written beside the target and renamed.
    """
    partial = f"{archive}.partial"
    with open(partial, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as zipped:
        _add_all(zipped, folder)
    os.replace(partial, archive)


def _add_all(target: gzip.GzipFile, folder: str) -> None:
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, name in _tree(folder):
            tar.add(path, name, recursive=False, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = 0
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _tree(folder: str) -> Iterable[tuple[str, str]]:
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(where, name)
            yield path, os.path.relpath(path, folder)
