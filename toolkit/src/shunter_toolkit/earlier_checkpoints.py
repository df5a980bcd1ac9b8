"""Brings the checkpoints of an earlier job into the folder of a new one: all or none, before the script.

The copy grows in a folder of the checkpoint folder, so that both are on one disk, and is moved into place
when it is complete. As long as that folder is there, the script has not started: whatever lies beside it is
of an attempt that was interrupted, and is replaced.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import Any

from . import channels, log
from .errors import ConfigError, StoreError
from .store import Place, copy_content

STAGING = ".earlier"
_NOT_COMPLETE = (".partial", STAGING)


def bring(earlier: dict[str, Any], folder: str) -> None:
    """Copy the checkpoints of an earlier job, unless the folder has some: then the job goes on from its own.

    Args:
        earlier: ``uri``, where they are; ``files``, how many they were when the job was submitted.
        folder: the job's folder for checkpoints.

    Raises:
        ConfigError: some or all are not there any more.
        StoreError: they cannot be copied.
    """
    staging = os.path.join(folder, STAGING)
    if os.listdir(folder) and not os.path.isdir(staging):
        return
    shutil.rmtree(staging, ignore_errors=True)
    os.mkdir(staging)
    uri, expected = earlier["uri"], earlier.get("files", 1)
    place = Place.of(uri)
    if place.bucket:
        channels.restore(place, staging)
    elif os.path.isdir(place.key):
        _copy_folder(place.key, staging, folder)
    count = sum(len(files) for _, _, files in os.walk(staging))
    if count < expected:
        shutil.rmtree(staging)
        raise ConfigError(
            f"The checkpoints to go on from, in {uri}, are not complete: there were {expected} files when "
            f"the job was submitted, and {count} are left. Was the earlier job deleted?"
        )
    for name in os.listdir(staging):
        target = os.path.join(folder, name)
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        os.replace(os.path.join(staging, name), target)
    os.rmdir(staging)
    log.info(f"Checkpoints: goes on from {count} files of {uri}")


def _copy_folder(source: str, target: str, final: str) -> None:
    """Copy regular files and links; a link into the source becomes one into the ``final`` folder."""

    def skipped(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name.endswith(_NOT_COMPLETE) or _is_odd(folder, name)]

    try:
        shutil.copytree(
            source, target, symlinks=True, ignore=skipped, copy_function=_copy_file, dirs_exist_ok=True
        )
        for folder, directories, files in os.walk(target):
            for name in [*directories, *files]:
                link = os.path.join(folder, name)
                if os.path.islink(link) and os.readlink(link).startswith(source + os.sep):
                    leads_to = os.path.join(final, os.path.relpath(os.readlink(link), source))
                    os.unlink(link)
                    os.symlink(leads_to, link)
    except (OSError, shutil.Error) as error:
        raise StoreError(f"Cannot copy the checkpoints of {source}: {error}") from error


def _is_odd(folder: str, name: str) -> bool:
    """Tell whether a name is that of a FIFO, a socket or a device."""
    mode = os.lstat(os.path.join(folder, name)).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))


def _copy_file(source: str, target: str) -> None:
    """Copy a file with its times and mode, and check that all of it arrived."""
    copy_content(source, target)
    shutil.copystat(source, target)
    if os.path.getsize(source) != os.path.getsize(target):
        raise OSError(f"{source} changed while it was copied")
