"""Was it the kernel's out-of-memory killer? Evidence, strongest first.

The kernel log names the process that was killed; the memory cgroup counts kills in the job's own cgroup;
/proc/vmstat counts them on the whole machine.
"""

from __future__ import annotations

import os

KERNEL_LOG = "/dev/kmsg"
KERNEL_LOG_BYTES = 8192
KERNEL_LOG_RECORDS = 10_000


class OomWatch:
    """Remembers the kernel's counters as they were when the job began."""

    def __init__(self) -> None:
        self._counters = _counter_files()
        self._before = {path: _read_counter(path, key) for path, key in self._counters}

    def evidence(self, pid: int) -> str:
        """Return what says that the kernel killed this process for want of memory; "" if nothing does."""
        if _kernel_log_names(pid):
            return "the kernel log says so"
        for path, key in self._counters:
            count = _read_counter(path, key)
            if count > self._before[path]:
                self._before[path] += 1
                return f"{path} counted {key}"
        return ""


def _counter_files() -> list[tuple[str, str]]:
    """Return the files that count kills, with the key to look for: own cgroup first, machine last."""
    found: list[tuple[str, str]] = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append((f"/sys/fs/cgroup/memory{path}/memory.oom_control", "oom_kill"))
        elif not controllers:
            found.append((f"/sys/fs/cgroup{path}/memory.events", "oom_kill"))
    found.append(("/proc/vmstat", "oom_kill"))
    return [(path, key) for path, key in found if os.path.exists(path)]


def _read_counter(path: str, key: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _kernel_log_names(pid: int) -> bool:
    mark = f"Killed process {pid} ".encode()
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        for _ in range(KERNEL_LOG_RECORDS):
            try:
                if mark in os.read(log, KERNEL_LOG_BYTES):
                    return True
            except BrokenPipeError:  # records were overwritten meanwhile; the next read goes on
                continue
    except OSError:
        pass
    finally:
        os.close(log)
    return False
