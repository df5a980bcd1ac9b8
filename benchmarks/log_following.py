"""Following the log of a job that writes as fast as a file is copied, and that every line arrives once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import Tool, Usage, Workplace, alternate
from lines import Verdict, judge, write_lines
from report import Goal, Row, row_of

MILLION = 1_000_000
REPLICAS = 8
RATE_GOAL = Goal(1 / 5)
FLAT_GOAL = Goal(1.1)
KINDS = ("lost", "doubled", "torn", "misplaced")


@dataclass(frozen=True)
class Followed:
    """One job followed to its end."""

    usage: Usage
    verdicts: list[Verdict]


def measure(place: Workplace, ours: Tool, other: Tool, *, quick: bool) -> Iterator[Row]:
    rounds = 1 if quick else 5
    for width in (97,) if quick else (9, 97):
        yield from _one_replica(place, ours, other, width, rounds)
    yield from _many_replicas(place, ours, other, rounds)


def _one_replica(place: Workplace, ours: Tool, other: Tool, width: int, rounds: int) -> Iterator[Row]:
    big, small = (_lines(place, count, width) for count in (MILLION, MILLION // 10))
    sides = {
        "ours": lambda: _follow(place, ours, big),
        "other": lambda: _follow(place, other, big),
        "ours, small": lambda: _follow(place, ours, small),
        "other, small": lambda: _follow(place, other, small),
    }
    done = alternate(sides, rounds, warm_ups=0)
    name = f"1,000,000 lines of {width} bytes followed"
    yield from _rows(name, done, RATE_GOAL)
    peaks = {side: [one.usage.peak_mib for one in results] for side, results in done.items()}
    yield Row(name, "peak MiB", peaks["ours"], peaks["other"])
    yield Row(
        "... and 100,000 of them: memory flat",
        "peak MiB",
        peaks["ours"],
        peaks["ours, small"],
        "shunter, 100,000",
        goal=FLAT_GOAL,
    )
    yield Row("... the same for TorchX", "peak MiB", peaks["other"], peaks["other, small"], "TorchX, 100,000")


def _many_replicas(place: Workplace, ours: Tool, other: Tool, rounds: int) -> Iterator[Row]:
    lines = _lines(place, MILLION // REPLICAS, 80)
    sides = {
        "ours": lambda: _follow(place, ours, lines, REPLICAS),
        "other": lambda: _follow(place, other, lines, REPLICAS),
    }
    done = alternate(sides, rounds, warm_ups=0)
    name = f"{REPLICAS} replicas, {MILLION // REPLICAS:,} lines of 80 bytes each"
    yield from _rows(name, done)


def _rows(name: str, done: dict[str, list[Followed]], goal: Goal | None = None) -> Iterator[Row]:
    yield row_of(name, "wall ms", done, lambda one: one.usage.wall * 1000, goal)
    yield row_of(name, "cpu ms, job and supervisor too", done, lambda one: one.usage.all_cpu * 1000)
    for kind in KINDS:
        ours, other = ([_total(one, kind) for one in done[side]] for side in ("ours", "other"))
        yield Row(name, f"lines {kind}", ours, other, goal=Goal(0, "lines"))


def _total(one: Followed, kind: str) -> float:
    return float(sum(getattr(verdict, kind) for verdict in one.verdicts))


def _follow(place: Workplace, tool: Tool, lines: Path, replicas: int = 1) -> Followed:
    """Follow a job to its end. Both write what they follow to stderr."""
    cat = shutil.which("cat") or "/bin/cat"
    usage = place.run(
        tool.run_locally("--log", "utils.sh", "--num_replicas", str(replicas), cat, str(lines)), timeout=300
    )
    return Followed(usage, judge(usage.err, lines, replicas))


def _lines(place: Workplace, count: int, width: int) -> Path:
    path = place.path / f"lines-{count}-{width}"
    if not path.exists():
        write_lines(path, count, width)
    return path
