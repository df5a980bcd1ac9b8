"""Short jobs of this machine, from the command line to their end."""

from __future__ import annotations

from collections.abc import Iterator

from harness import Tool, Usage, Workplace, alternate
from report import Goal, Row, row_of, usage_rows

ECHO = ("--wait", "utils.echo", "--msg", "hello")
SHORT = ("--wait", "utils.binary", "--entrypoint", "/bin/sleep", "--", "0.05")


def measure(place: Workplace, ours: Tool, other: Tool, *, quick: bool) -> Iterator[Row]:
    yield from _end_to_end(place, ours, other, 5 if quick else 15)
    yield from _short_job(place, ours, other, 5 if quick else 11)


def _end_to_end(place: Workplace, ours: Tool, other: Tool, rounds: int) -> Iterator[Row]:
    used = _alternate(place, ours, other, ECHO, rounds)
    name = "run --wait utils.echo"
    yield from usage_rows(name, used["ours"], used["other"])
    yield row_of(name, "cpu ms, job and supervisor too", used, lambda usage: usage.all_cpu * 1000)
    yield row_of(name, "peak MiB", used, lambda usage: usage.peak_mib)


def _short_job(place: Workplace, ours: Tool, other: Tool, rounds: int) -> Iterator[Row]:
    used = _alternate(place, ours, other, SHORT, rounds)
    yield row_of(
        "run --wait, a job of 50 ms", "wall ms", used, lambda usage: usage.wall * 1000, goal=Goal(200, "ms")
    )


def _alternate(
    place: Workplace, ours: Tool, other: Tool, args: tuple[str, ...], rounds: int
) -> dict[str, list[Usage]]:
    sides = {
        "ours": lambda: place.run(ours.run_locally(*args)),
        "other": lambda: place.run(other.run_locally(*args)),
    }
    return alternate(sides, rounds)
