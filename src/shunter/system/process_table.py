"""Facts about processes: from /proc on Linux, by psutil elsewhere.

On Linux a process's start is counted in clock ticks since boot, which never change. psutil gives a time,
which moves with the machine's clock, so a job's supervisor might be taken for another process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Sequence
from typing import NamedTuple

from shunter.system.platform_choice import IS_LINUX

#: Flag of a process in /proc/PID/stat, see include/linux/sched.h.
_PF_EXITING = 0x4
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class ProcessFacts(NamedTuple):
    """What the system tells about a process that has not ended.

    ``start`` distinguishes it from another process with the same pid; it is 0 if the system does not tell.
    ``status`` is "stopped" (by a signal), "ending" (its files are not closed yet) or "".
    """

    pid: int
    parent: int
    group: int
    session: int
    start: int
    status: str


class ProcessPlace(NamedTuple):
    """Where a process runs: directory, environment, and the kinds of its namespaces that we do not share."""

    pid: int
    cwd: str
    environ: dict[bytes, bytes]
    namespaces: list[str]


class ProcessUsage(NamedTuple):
    """What a process and its descendants use.

    ``cpu_seconds`` counts those that live. ``memory`` is resident, in bytes, shared pages counted for each
    process. ``read`` and ``written`` are bytes from and to storage; 0 where the system does not tell.
    """

    cpu_seconds: float
    memory: int
    read: int
    written: int


def boot_id() -> str:
    """Return what changes with every boot of this machine; "" if the system does not tell."""
    words = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]  # of macOS
    try:
        if os.path.exists(_BOOT_ID):
            with open(_BOOT_ID, encoding="ascii") as file:
                return file.read().strip()
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def process_facts(pid: int) -> ProcessFacts | None:
    """Return the facts about a process, or None if it has ended. A zombie has ended."""
    if not IS_LINUX:
        return _facts_by_psutil(pid)
    fields = stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    status = "stopped" if fields[0] in "Tt" else "ending" if int(fields[6]) & _PF_EXITING else ""
    return ProcessFacts(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), status)


def _facts_by_psutil(pid: int) -> ProcessFacts | None:
    import psutil

    try:
        process = psutil.Process(pid)
        status = process.status()
        if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        what = "stopped" if status == psutil.STATUS_STOPPED else ""
        start = int(process.create_time() * 100)
        return ProcessFacts(pid, process.ppid(), os.getpgid(pid), os.getsid(pid), start, what)
    except (psutil.Error, ProcessLookupError, PermissionError):
        return None


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the command, which may itself hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def start_of(pid: int) -> int | None:
    """Return when a process started, in the system's own unit, or None if it has ended."""
    facts = process_facts(pid)
    return None if facts is None else facts.start


def all_processes() -> list[ProcessFacts]:
    """Return the facts about all processes that have not ended."""
    import psutil

    return [facts for pid in psutil.pids() if (facts := process_facts(pid)) is not None]


def children_of(pid: int) -> list[ProcessFacts]:
    """Return the facts about the children of a process, in the order in which they started."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [process_facts(int(child)) for child in file.read().split()]
    except OSError:  # a system without this list, or the process has ended
        children = [*sorted(all_processes(), key=lambda facts: facts.start)]
    return [facts for facts in children if facts is not None and facts.parent == pid]


def process_usage(roots: Collection[int]) -> dict[int, ProcessUsage]:
    """Return what these processes use, each with its descendants; those that have ended are left out."""
    import psutil

    fields = [
        "ppid",
        "cpu_times",
        "memory_info",
        *(["io_counters"] if hasattr(psutil.Process, "io_counters") else []),
    ]
    processes = {process.pid: process.info for process in psutil.process_iter(fields)}
    root_of = {root: root for root in roots}
    totals = {root: [0.0, 0, 0, 0] for root in roots if root in processes}
    for pid, info in processes.items():
        path: list[int] = []
        at = pid
        while at in processes and at not in root_of and len(path) < len(processes):
            path.append(at)
            at = processes[at]["ppid"]
        root_of.update(dict.fromkeys(path, root_of.get(at, 0)))
        total = totals.get(root_of.get(pid, 0))
        if total is not None and info["cpu_times"] is not None:
            total[0] += info["cpu_times"].user + info["cpu_times"].system
            total[1] += info["memory_info"].rss
            if storage := info.get("io_counters"):  # None for another user's process
                total[2] += storage.read_bytes
                total[3] += storage.write_bytes
    return {root: ProcessUsage(total[0], *map(int, total[1:])) for root, total in totals.items()}


def has_mark(pids: Sequence[int], variable: str, directory: str) -> set[int]:
    """Return which processes have ``NAME=VALUE`` in their environment, or write output below a directory."""
    name, _, value = variable.partition("=")
    return {pid for pid in pids if _variable_of(pid, name) == value or _writes_below(pid, directory)}


def _variable_of(pid: int, name: str) -> str | None:
    import psutil

    try:
        environ: dict[str, str] = psutil.Process(pid).environ()
        return environ.get(name)
    except (psutil.Error, OSError):
        return None


def _writes_below(pid: int, directory: str) -> bool:
    """Tell whether the standard output or error of a process is a file below a directory."""
    for fd in (1, 2):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(f"{directory}/"):
                return True
        except OSError:
            continue
    return False


def process_place(pid: int) -> ProcessPlace | None:
    """Return where a process runs; None if it has ended, or this user may not know."""
    try:
        cwd = os.readlink(f"/proc/{pid}/cwd")
        ours, theirs = _namespaces_of("self"), _namespaces_of(str(pid))
        with open(f"/proc/{pid}/environ", "rb") as file:
            lines = file.read().split(b"\0")
    except OSError:
        return None
    environ = dict(line.split(b"=", 1) for line in lines if b"=" in line)
    return ProcessPlace(pid, cwd, environ, [name for name in theirs if theirs[name] != ours.get(name)])


def _namespaces_of(pid: str) -> dict[str, str]:
    directory = f"/proc/{pid}/ns"
    return {name: os.readlink(f"{directory}/{name}") for name in os.listdir(directory)}
