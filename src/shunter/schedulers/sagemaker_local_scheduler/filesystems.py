"""Directories of this machine that replace the service's file systems, EFS and FSx for Lustre."""

from __future__ import annotations

import os
import re
from typing import Any

from shunter._toolkit import store
from shunter.errors import ConfigError

VARIABLE = "SHUNTER_SAGEMAKER_FILE_SYSTEMS"
_ID = re.compile(r"fs-[0-9a-f]{8,}")
HINT = (
    "Name the directory of this machine to use for it: -cfg file_systems=fs-0123456789abcdef0:/mnt/data, or "
    f"{VARIABLE}=fs-0123456789abcdef0:/mnt/data, also for the endpoint; several are separated by ';'."
)


def parse(text: str) -> dict[str, str]:
    """Read ``fs-0123456789abcdef0:/mnt/data;...``; ``=`` and commas are accepted as separators too.

    Raises:
        ConfigError: the text has another form.
    """
    pairs = [re.split("[:=]", part, maxsplit=1) for part in re.split("[;,]", text) if part.strip()]
    return checked({pair[0].strip(): pair[-1].strip() if pair[1:] else "" for pair in pairs}, VARIABLE)


def checked(given: dict[str, str], origin: str) -> dict[str, str]:
    """Return directories for the ids of file systems, absolute.

    Raises:
        ConfigError: an id is not valid, or has no directory.
    """
    for name, path in given.items():
        if not _ID.fullmatch(name) or not path:
            raise ConfigError(
                f"{origin}: {name}:{path} is not an id of a file system and a directory",
                hint=f"{origin}=fs-0123456789abcdef0:/mnt/data",
            )
    return {name: os.path.abspath(os.path.expanduser(path)) for name, path in given.items()}


def problem_of(channel: dict[str, Any], file_systems: dict[str, str]) -> str:
    """Return why this machine does not have a channel's directory; "" if it does, or none is needed."""
    source = channel["DataSource"].get("FileSystemDataSource")
    if source is None:
        return ""
    try:
        directory_of(source, file_systems)
    except store.StoreError as error:
        return f"the channel {channel['ChannelName']!r}: {error}"
    return ""


def directory_of(source: dict[str, Any], file_systems: dict[str, str]) -> str:
    """Return the directory of this machine that a data source names.

    A path on a Lustre file system begins with the mount name, which is not part of paths below a mounted
    directory: if the directory has no such path, it is looked up without the mount name.

    Raises:
        store.StoreError: no directory replaces the file system, or it lacks that path.
    """
    identity, path = source["FileSystemId"], source["DirectoryPath"]
    kind = "FSx for Lustre" if source["FileSystemType"] == "FSxLustre" else source["FileSystemType"]
    root = file_systems.get(identity)
    if root is None:
        raise store.StoreError(f"no directory of this machine stands for {identity} ({kind}). {HINT}")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise store.StoreError(f"the DirectoryPath {path!r} would leave the file system {identity}")
    tries = [parts]
    if source["FileSystemType"] == "FSxLustre" and parts:
        tries.append(parts[1:])
    for some in tries:
        found = os.path.join(root, *some)
        if os.path.isdir(found):
            return found
    raise store.StoreError(
        f"{root}, which is used for {identity}, has no directory {path}. Create it, or use another "
        f"directory for {identity}."
    )
