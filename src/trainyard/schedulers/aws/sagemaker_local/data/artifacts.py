"""What a job leaves behind: the hosts' model and output directories, put together and sent.

The hosts' directories are merged by path. Where hosts wrote different files to the same path, the first
host's is found there, and those of the others under ``algo-N/path``: nothing is lost, and which is which
does not depend on who was last.
"""

from __future__ import annotations

import filecmp
import functools
import os
import stat
import tarfile

from trainyard.schedulers.aws.sagemaker_local.data.objects import Objects, Place, in_parallel


def merge(folders: dict[str, str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the files of several hosts as pairs of their path in the result and on this machine.

    The second part of the result are the paths to which hosts wrote different files.

    Args:
        folders: a directory for each host's name, in the order of the hosts.
    """
    merged: dict[str, str] = {}
    conflicts: list[str] = []
    for host, folder in folders.items():
        for path in _entries(folder):
            full = os.path.join(folder, path)
            if path not in merged:
                merged[path] = full
            elif not _is_same(merged[path], full):
                merged[f"{host}/{path}"] = full
                conflicts.append(path)
    return sorted(merged.items()), sorted(set(conflicts))


def pack(entries: list[tuple[str, str]], path: str) -> None:
    """Write entries as a gzipped tar."""
    try:
        with tarfile.open(path, "w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as archive:
            for name, full in entries:
                archive.add(full, name, recursive=False, filter=_owned_by_nobody)
    except OSError:
        if os.path.exists(path):
            os.unlink(path)  # it takes room that others need
        raise


def send(
    kind: str,
    entries: list[tuple[str, str]],
    target: Place,
    scratch: str,
    objects: Objects,
    *,
    is_packed: bool,
) -> str:
    """Send entries as ``KIND.tar.gz``, or as files below ``KIND/``; returns the URI.

    Raises:
        StoreFailure: they cannot be sent.
    """
    if is_packed:
        place = target.join(f"{kind}.tar.gz")
        if not place.bucket:
            objects.make(functools.partial(pack, entries), place)
            return place.uri
        archive = os.path.join(scratch, f"{kind}.tar.gz")
        pack(entries, archive)
        objects.store(archive, place)
        os.unlink(archive)
        return place.uri
    folder = target.join(kind)
    files = [(name, full) for name, full in entries if os.path.isfile(full)]
    in_parallel(lambda entry: objects.store(entry[1], folder.join(entry[0])), files)
    return f"{folder.uri}/"


def _owned_by_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _entries(folder: str) -> list[str]:
    """Return the paths of files, links and empty directories; fifos, sockets and devices are left out."""
    found = []
    for where, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        if where != folder and not folders and not names:
            found.append(os.path.relpath(where, folder))
        for name in [*names, *links]:
            full = os.path.join(where, name)
            mode = os.lstat(full).st_mode
            if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                found.append(os.path.relpath(full, folder))
    return sorted(found)


def _is_same(one: str, other: str) -> bool:
    if os.path.islink(one) or os.path.islink(other):
        return os.path.islink(one) and os.path.islink(other) and os.readlink(one) == os.readlink(other)
    if os.path.isdir(one) or os.path.isdir(other):
        return os.path.isdir(one) and os.path.isdir(other)
    return filecmp.cmp(one, other, shallow=False)
