"""Which process is which, also after its number was given to another one, or the machine was booted anew."""

from __future__ import annotations

import os
from collections import namedtuple

HAS_PROC = os.path.exists("/proc/self/stat")


class Process(namedtuple("Process", "pid start boot")):
    """A process of this machine, for all time.

    ``start`` is in clock ticks since boot, 0 where the system does not tell; ``boot`` is the boot's id.
    """

    __slots__ = ()
    pid: int
    start: int
    boot: str

    def __str__(self) -> str:
        return f"{self.pid}:{self.start}:{self.boot}"

    @classmethod
    def parse(cls, text: str) -> Process | None:
        """Read what `str` wrote; None if it is something else."""
        pid, _, rest = text.partition(":")
        start, _, boot = rest.partition(":")
        return cls(int(pid), int(start), boot) if pid.isdigit() and start.isdigit() else None

    def is_alive(self) -> bool:
        """Tell whether this very process still runs. A zombie does not."""
        return identify(self.pid) == self


def boot_id() -> str:
    """Return what changes with every boot of this machine; "" where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def identify(pid: int | None = None) -> Process | None:
    """Return the identity of a running process (this one by default); None if there is none, or a zombie."""
    number = os.getpid() if pid is None else pid
    fields = stat_fields(number)
    if fields is None:
        return Process(number, 0, boot_id()) if not HAS_PROC and _exists(number) else None
    return None if fields[0] in "ZX" else Process(number, int(fields[19]), boot_id())


def myself() -> Process:
    """Return the identity of this process."""
    return identify() or Process(os.getpid(), 0, boot_id())


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the command, which may itself hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
