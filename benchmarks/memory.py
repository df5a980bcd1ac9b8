"""How much memory stands beside a running job: the command that waits, and what supervises the job."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from harness import HERE, Tool, Workplace, alternate, wait_for_orphans, wait_until
from report import Row, row_of

STAMP = HERE / "programs" / "stamp.sh"
LIFE = "3"
SETTLE = 1.0  # seconds until everything that is there at the start only has gone
MIB = 1024


def measure(place: Workplace, ours: Tool, other: Tool, *, quick: bool) -> Iterator[Row]:
    sides = {"ours": lambda: _beside(place, ours), "other": lambda: _beside(place, other)}
    done = alternate(sides, 2 if quick else 5, warm_ups=0)
    name = "beside one running job, run --wait"
    yield row_of(name, "PSS MiB, all processes", done, lambda one: one["pss"])
    yield Row(
        "... without the command, which may end",
        "PSS MiB, all processes",
        [one["pss without command"] for one in done["ours"]],
        note="TorchX has nothing to compare: the command is what supervises the job",
    )
    yield row_of("supervisor", "peak MiB", done, lambda one: one["supervisor"])


def _beside(place: Workplace, tool: Tool) -> dict[str, float]:
    """Return the memory of a job's processes while it runs; the replica itself does not count."""
    stamps = place.new_dir("stamps")
    command = tool.run_locally("--wait", "utils.binary", "--entrypoint", str(STAMP), "--", str(stamps), LIFE)
    spawner = place.start(command, place.path / "out" / "stdout", place.path / "out" / "stderr")
    if not wait_until(lambda: any(stamps.iterdir())):
        raise RuntimeError(f"{tool.name} started no replica")
    time.sleep(SETTLE)
    replica = int(next(stamps.iterdir()).name)
    beside = _processes_beside(spawner.pid, replica)
    supervisor = _parent(replica)
    if _parent(supervisor) in beside and tool.name == "torchx":
        supervisor = beside[0]  # there, what supervises is the command
    peak = _field(f"/proc/{supervisor}/status", "VmHWM")
    pss = {pid: _field(f"/proc/{pid}/smaps_rollup", "Pss") for pid in beside}
    command_pid = beside[0]
    spawner.communicate()
    wait_for_orphans()
    return {
        "pss": sum(pss.values()),
        "pss without command": sum(pss.values()) - pss[command_pid],
        "supervisor": peak,
    }


def _processes_beside(spawner: int, replica: int) -> list[int]:
    """Return the processes that the benchmark started, but for the replica; the command comes first."""
    parents = {
        int(path.name): _parent(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()
    }

    def descends(pid: int, ancestor: int) -> bool:
        while pid and pid != ancestor:
            pid = parents.get(pid, 0)
        return pid == ancestor

    found = [
        pid
        for pid in parents
        if descends(pid, os.getpid()) and not descends(pid, replica) and pid not in (os.getpid(), spawner)
    ]
    return sorted(found, key=lambda pid: (parents[pid] != spawner, pid))


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _field(path: str, name: str) -> float:
    """Return a field in KiB of a file of /proc, in MiB."""
    match = re.search(rf"^{name}:\s*(\d+)", Path(path).read_text(), re.MULTILINE)
    return int(match[1]) / MIB if match else 0.0
