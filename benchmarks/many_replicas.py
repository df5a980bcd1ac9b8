"""How soon 200 replicas are up, by their own word, and what stands beside them meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import HERE, Tool, Usage, Workplace, alternate
from report import Goal, Row, row_of

REPLICAS = 200
LIFE = 2.0  # seconds: longer than it takes to start them all
STAMP = HERE / "programs" / "stamp.sh"


@dataclass(frozen=True)
class Started:
    """When the first and the last replica were up, in milliseconds, and what the command used."""

    first: float
    last: float
    usage: Usage


def measure(place: Workplace, ours: Tool, other: Tool, *, quick: bool) -> Iterator[Row]:
    sides = {"ours": lambda: _start(place, ours), "other": lambda: _start(place, other)}
    done = alternate(sides, 2 if quick else 9)
    name = f"{REPLICAS} replicas"
    yield row_of(name, "first up, ms", done, lambda one: one.first)
    yield row_of(name, "last up, ms", done, lambda one: one.last, Goal(0.5))
    yield row_of(name, "from first to last, ms", done, lambda one: one.last - one.first)
    yield row_of(name, "ended, ms", done, lambda one: one.usage.wall * 1000)
    yield row_of(name, "cpu ms, job and supervisor too", done, lambda one: one.usage.all_cpu * 1000)


def _start(place: Workplace, tool: Tool) -> Started:
    # A directory for each: ext4 makes files slowly for a minute after others have been removed.
    stamps = Path(tempfile.mkdtemp(prefix="stamps-", dir=place.path))
    component = ("utils.binary", "--entrypoint", str(STAMP), "--num_replicas", str(REPLICAS))
    usage = place.run(tool.run_locally("--wait", *component, "--", str(stamps), str(LIFE)))
    times = sorted(path.stat().st_mtime for path in stamps.iterdir())
    if len(times) != REPLICAS:
        raise RuntimeError(f"{tool.name} started {len(times)} of {REPLICAS} replicas")
    first, last = (1000 * (time - usage.started_at) for time in (times[0], times[-1]))
    return Started(first, last, usage)
