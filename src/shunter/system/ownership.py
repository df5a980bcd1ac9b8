"""Whether a file that was found, rather than named, may be used at all, judged by its owner.

The rule is Git's: the file must belong to the user, to root or, for root under sudo, to the user who called
it. Files of others are used if Git's ``safe.directory`` lists the repository's top or the file's directory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from shunter.git import checkout_of, safe_directories
from shunter.system.identity import account_name


def search_places(directory: str) -> Iterator[str]:
    """Return a directory and those above it, up to the top of its repository or the home directory."""
    home = os.path.realpath(os.path.expanduser("~"))
    path = os.path.abspath(directory)
    while True:
        yield path
        parent = os.path.dirname(path)
        if parent == path or os.path.lexists(os.path.join(path, ".git")) or os.path.realpath(path) == home:
            return
        path = parent


def why_not_used(path: str, directory: str) -> str:
    """Return why a file may not be used; "" if it may, or does not exist.

    ``directory`` is where the user works: it may be writable by everybody, the directories above may not.
    """
    try:
        owners = {os.lstat(path).st_uid, os.stat(path).st_uid}
        place = os.stat(os.path.dirname(path))
    except OSError:
        return ""
    reason = ""
    strangers = owners - _trusted_users(os.environ)
    if strangers:
        uid = strangers.pop()
        reason = f"it belongs to {account_name(uid) or f'user {uid}'}, not to you or to root"
    elif (
        place.st_mode & stat.S_IWOTH
        and not place.st_mode & stat.S_ISVTX
        and os.path.realpath(os.path.dirname(path)) != os.path.realpath(directory)
    ):
        reason = f"everybody can write to the directory {os.path.dirname(path)}"
    return reason if reason and not _is_listed(os.path.dirname(path)) else ""


def _trusted_users(environ: Mapping[str, str]) -> set[int]:
    users = {os.geteuid(), 0}
    caller = environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and caller.isdecimal() and len(caller) < 11:
        users.add(int(caller))
    return users


def _is_listed(directory: str) -> bool:
    """Tell whether the user's configuration of Git lists a directory, or the checkout around it, as safe."""
    listed = safe_directories()
    if "*" in listed:
        return True
    tops = {os.path.realpath(directory), checkout_of(directory) or os.path.realpath(directory)}
    return any(top in listed or _below(top, listed) for top in tops)


def _below(top: str, listed: list[str]) -> bool:
    return any(entry.endswith("/*") and top.startswith(entry[:-1]) for entry in listed)
