"""Which process is which, also after its number was given to another one."""

from __future__ import annotations

import os


def boot_id() -> str:
    """Return the id of this boot of the machine; "" where the system keeps none."""
    return _read("/proc/sys/kernel/random/boot_id").strip()


def start_time(pid: int) -> str:
    """Return when a process started, in the kernel's ticks since boot; "" if there is no such process."""
    stat = _read(f"/proc/{pid}/stat")
    # the command's name, in parentheses, may itself hold spaces and parentheses
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def identify(pid: int | None = None) -> str:
    """Return ``pid:start:boot``, which names a process for all time on one machine."""
    number = os.getpid() if pid is None else pid
    return f"{number}:{start_time(number)}:{boot_id()}"


def is_alive(identity: str) -> bool:
    """Tell whether the process that `identify` named still runs (a zombie does not)."""
    pid, _, rest = identity.partition(":")
    start, _, boot = rest.partition(":")
    if not pid.isdigit() or boot != boot_id():
        return False
    if start:
        return start_time(int(pid)) == start and _state(int(pid)) not in ("Z", "X")
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _state(pid: int) -> str:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[0] if fields else "X"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
