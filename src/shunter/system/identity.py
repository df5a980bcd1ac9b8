"""The user, the machine, and identities of processes that stay unique when a pid is reused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from shunter import system


def user_name(uid: int | None = None) -> str:
    """Return a user's name, this process's user by default; the number as text for a user without a name.

    For this process's user the variables that `getpass.getuser` reads come first.
    """
    if uid is None:
        for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            if name := os.environ.get(variable):
                return name
        uid = os.getuid()
    return account_name(uid) or str(uid)


def account_name(uid: int) -> str:
    """Return the name of a user in the password database; "" without one, as in some containers."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def home(environ: Mapping[str, str] = os.environ) -> str:
    """Return the user's home directory."""
    return environ.get("HOME") or os.path.expanduser("~")


def host_name() -> str:
    """Return this machine's name."""
    return os.uname().nodename


def machine() -> dict[str, str]:
    """Return an id of this machine and its present boot."""
    return {"host": host_name(), "boot_id": system.boot_id()}


class Process(NamedTuple):
    """The identity of a process of this machine, which no later process shares.

    ``start`` is a number that grows with the time of the start, 0 where the system does not say. ``boot`` is
    the boot's id.
    """

    pid: int
    start: int
    boot: str

    def __str__(self) -> str:
        return f"{self.pid}:{self.start}:{self.boot}"

    @classmethod
    def parse(cls, text: str) -> Process | None:
        """Read what `str` wrote, or return None if the text is something else."""
        pid, _, rest = text.partition(":")
        start, _, boot = rest.partition(":")
        return cls(int(pid), int(start), boot) if pid.isdigit() and start.isdigit() else None

    @classmethod
    def from_json(cls, data: Any) -> Process | None:
        """Read a process, which is a list in JSON; None if this is something else."""
        if not isinstance(data, (list, tuple)) or list(map(type, data)) != [int, int, str]:
            return None
        return cls(*data)

    def is_alive(self) -> bool:
        """Tell whether exactly this process is still running. A zombie is not."""
        found = identify(self.pid)
        if found is None or found.boot != self.boot:
            return False
        return found.start == self.start or 0 in (found.start, self.start)


def identify(pid: int) -> Process | None:
    """Return the identity of a process, or None if it has ended."""
    start = system.start_of(pid)
    return None if start is None else Process(pid, start, system.boot_id())


def myself() -> Process:
    """Return the identity of this process."""
    return identify(os.getpid()) or Process(os.getpid(), 0, system.boot_id())
