"""Evidence that the kernel's out-of-memory killer ended a process, the strongest first.

The kernel log names the process that was killed; the memory cgroup counts kills in the job's own cgroup;
/proc/vmstat counts them on the whole machine. Other systems than Linux have none of these files.
"""

from __future__ import annotations

import os

_KERNEL_LOG = "/dev/kmsg"
_MOST_RECORDS = 10_000
_LONGEST_RECORD = 8192


class OomWatch:
    """Remembers the kernel's counters as they were when the job began."""

    def __init__(self) -> None:
        self._counters = _counters()
        self._before = {path: _read_counter(path, key) for path, key in self._counters}

    def evidence(self, pid: int) -> str:
        """Return the evidence that the kernel killed this process for lack of memory; "" without any."""
        if _kernel_log_has(f"Killed process {pid} "):
            return "the kernel log says so"
        for path, key in self._counters:
            count = _read_counter(path, key)
            if count > self._before[path]:
                self._before[path] += 1
                return f"{path} counted {key}"
        return ""


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


def _counters() -> list[tuple[str, str]]:
    """Return the files that count such kills, with the key to look for: own cgroup first, machine last."""
    counters: list[tuple[str, str]] = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            counters.append((f"/sys/fs/cgroup/memory{path}/memory.oom_control", "oom_kill"))
        elif not controllers:
            counters.append((f"/sys/fs/cgroup{path}/memory.events", "oom_kill"))
    counters.append(("/proc/vmstat", "oom_kill"))
    return [(path, key) for path, key in counters if os.path.exists(path)]


def _kernel_log_has(text: str) -> bool:
    """Tell whether the kernel log holds a text. False if it cannot be read."""
    mark = text.encode()
    try:
        log = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        for _ in range(_MOST_RECORDS):
            try:
                if mark in os.read(log, _LONGEST_RECORD):
                    return True
            except BrokenPipeError:  # records were overwritten meanwhile; the next read goes on
                continue
    except OSError:
        pass
    finally:
        os.close(log)
    return False
