"""Evidence that the kernel's out-of-memory killer ended a process, the strongest first.

The kernel log names the process that was killed; the memory cgroup counts kills in the job's own cgroup;
/proc/vmstat counts them on the whole machine.
"""

from __future__ import annotations

from shunter import system


class OomWatch:
    """Remembers the kernel's counters as they were when the job began."""

    def __init__(self) -> None:
        self._counters = system.out_of_memory_counters()
        self._before = {path: _read_counter(path, key) for path, key in self._counters}

    def evidence(self, pid: int) -> str:
        """Return the evidence that the kernel killed this process for lack of memory; "" without any."""
        if system.kernel_log_has(f"Killed process {pid} "):
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
