"""What a script uses, as lines of its log: that is what comes back from every platform.

A thread samples the processes below this one, and their cgroup if its memory is limited. Each line has what
was used so far, so that the last one is enough; the last is written when the script has ended. Readers of
the log leave these lines out.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass

from . import kernel, resources
from .process_table import processes, with_descendants

#: Begins each line. What is before it on the line is the script's.
MARK = b"@shunter-usage@ "
#: Set to 1 by launchers that leave the lines out of logs.
VARIABLE = "SHUNTER_USAGE"
#: Seconds between samples and between lines. Lines become rarer: after a day there are about a hundred.
SAMPLE_EVERY, LINE_EVERY, LINES_SHARE = 10.0, 60.0, 0.05
#: Scripts that have ended before (s) get no line: it would say little.
SHORTEST = 10.0
#: How many lines a log of weeks has.
MOST_LINES = 200
#: Samples may take no more than this share of a CPU: with very many processes they are taken less often.
LARGEST_SHARE = 0.001
#: Seconds that `nvidia-smi` may take.
_PATIENCE = 20.0
_NUMBER = rb"(-?\d{1,18}(?:\.\d{1,9})?)"
_LINE = re.compile(re.escape(MARK) + rb" ".join([_NUMBER] * 8) + rb"[ \t\r]*(?:\n|\Z)")
_GPU_QUERY = ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]


@dataclass
class Usage:
    """What a script has used until one point in time.

    Args:
        time: seconds since the epoch.
        seconds: how long it has run.
        cpu_seconds: of all its processes.
        memory: bytes; the most since the line before.
        most_memory: bytes; the most since its start.
        gpu_percent: how busy its GPUs are on average; -1 without any.
        mean_gpu_percent: the same, as the mean of all samples.
        most_gpu_memory: bytes on all of its GPUs; the most since its start.
    """

    time: float
    seconds: float
    cpu_seconds: float
    memory: int
    most_memory: int
    gpu_percent: float = -1.0
    mean_gpu_percent: float = -1.0
    most_gpu_memory: int = 0

    def line(self) -> bytes:
        """Return it as a line of the log."""
        words = [f"{value:.2f}" if isinstance(value, float) else str(value) for value in astuple(self)]
        return MARK + " ".join(words).encode() + b"\n"


def usage_in(data: bytes) -> Iterator[Usage]:
    """Yield what lines of a log say."""
    for match in _LINE.finditer(data):
        now, seconds, cpu, memory, most, gpu, mean_gpu, gpu_memory = map(float, match.groups())
        yield Usage(now, seconds, cpu, int(memory), int(most), gpu, mean_gpu, int(gpu_memory))


def without_usage(data: bytes) -> bytes:
    """Return lines of a log without these lines; an unfinished line before one goes on after it."""
    if MARK not in data:
        return data
    rest = _LINE.sub(b"", data)
    return rest + b"\n" if rest and not rest.endswith(b"\n") else rest


class UsageLog:
    """Writes what the processes below this one use to the log, from `start` until `end`."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._began = time.monotonic()
        self._cpu_before = _cpu_of_ended()
        self._memory_before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self._cpu = 0.0
        self._memory = self._most_memory = 0
        self._gpus: list[float] = []
        self._most_gpu_memory = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def start(self) -> None:
        """Begin. No process may be forked by this one after that."""
        self._thread.start()

    def end(self) -> None:
        """Write the last line, what all processes have used; nothing if there was no `start`."""
        if self._thread.ident is None:
            return
        self._is_over.set()
        self._thread.join(_PATIENCE)
        if time.monotonic() - self._began < SHORTEST:
            return
        self._cpu = max(self._cpu, _cpu_of_ended() - self._cpu_before)
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        if largest > self._memory_before:
            self._note_memory(largest * (1 if sys.platform == "darwin" else 1024))
        self._write()

    def _run(self) -> None:
        next_line = LINE_EVERY
        pause = SAMPLE_EVERY
        while not self._is_over.wait(pause):
            took = time.thread_time()
            self._sample()
            took = time.thread_time() - took
            pause = max(SAMPLE_EVERY, took / LARGEST_SHARE)
            elapsed = time.monotonic() - self._began
            if elapsed >= next_line:
                self._sample_gpus()
                if self._is_over.is_set() or not self._write():
                    return
                next_line = elapsed + max(LINE_EVERY, elapsed * LINES_SHARE)

    def _sample(self) -> None:
        cpu, memory = _tree_usage()
        self._cpu = max(self._cpu, cpu + _cpu_of_ended() - self._cpu_before)
        self._note_memory(resources.limited_memory() or memory)

    def _note_memory(self, memory: int) -> None:
        self._memory = max(self._memory, memory)
        self._most_memory = max(self._most_memory, memory)

    def _sample_gpus(self) -> None:
        usage = gpu_usage()
        if usage:
            self._gpus.append(sum(busy for busy, _ in usage) / len(usage))
            self._most_gpu_memory = max(self._most_gpu_memory, int(sum(memory for _, memory in usage)) << 20)

    def _write(self) -> bool:
        """Write a line; returns whether that was possible."""
        seconds = time.monotonic() - self._began
        usage = Usage(time.time(), seconds, self._cpu, self._memory, self._most_memory)
        if self._gpus:
            usage.gpu_percent = self._gpus[-1]
            usage.mean_gpu_percent = sum(self._gpus) / len(self._gpus)
            usage.most_gpu_memory = self._most_gpu_memory
        self._memory = 0
        try:
            os.write(self._descriptor, usage.line())
        except OSError:  # nobody reads the log any more
            return False
        return True


def asked_for(environ: Mapping[str, str]) -> UsageLog | None:
    """Return the log that the environment asks for; None for none."""
    return UsageLog() if environ.get(VARIABLE) == "1" and kernel.IS_LINUX else None


def _cpu_of_ended() -> float:
    """Return the CPU seconds of the children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _tree_usage() -> tuple[float, int]:
    """Return the CPU seconds and the resident bytes of all processes below this one."""
    table, own = processes(), os.getpid()
    below = [table[pid] for pid in with_descendants([own], table) if pid in table and pid != own]
    return sum(process.cpu_seconds for process in below), sum(process.memory for process in below)


def gpu_usage() -> list[tuple[float, float]]:
    """Return how busy each GPU of this job is, in percent, and how much memory of it is used, in MiB.

    Without `nvidia-smi`, or where it does not tell, the list is empty.
    """
    program, visible = shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES")
    if program is None or visible in ("", "-1"):
        return []
    try:
        chosen = ["-i", visible] if visible else []
        done = subprocess.run(
            [program, *chosen, *_GPU_QUERY],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
        )
        rows = [line.split(b",") for line in done.stdout.splitlines()]
        return [(float(row[0]), float(row[1])) for row in rows]
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):  # none, or it says N/A
        return []
