"""What commands cost that read the history, by the number of jobs in it: 10, 1,000 and 10,000."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from harness import HERE, Tool, Usage, Workplace, alternate
from report import Goal, Row, usage_rows

FEW = 10
MANY = (1_000, 10_000)
NAMES = 5
FILL = HERE / "programs" / "fill_history.py"
GOAL = Goal(2)
CONSTANT = Goal(1.15)
# name -> arguments, goal of the ratio to 10 jobs; {id} is the id of the job that was submitted last
COMMANDS: dict[str, tuple[tuple[str, ...], Goal]] = {
    "list": (("list",), GOAL),
    "list --limit 10": (("list", "--limit", "10"), CONSTANT),
    "list --state failed --limit 10": (("list", "--state", "failed", "--limit", "10"), GOAL),
    "list --name --limit 10": (("list", "--name", "echo1-", "--limit", "10"), GOAL),
    "diff --stat": (("diff", "--stat", "{id}"), CONSTANT),
    "describe, by a short id": (("describe", "{short}"), CONSTANT),
    "an ambiguous id": (("describe", "echo"), GOAL),
}


def measure(place: Workplace, ours: Tool, other: Tool, *, quick: bool) -> Iterator[Row]:
    """TorchX has no row here: it keeps no history."""
    last = {number: _fill(place, ours, number) for number in (FEW, *MANY)}
    for name, (args, goal) in COMMANDS.items():
        sides = {str(number): partial(_run, place, ours, number, last[number], args) for number in last}
        used = alternate(sides, 5 if quick else 21)
        for number in MANY:
            subject = f"{name}, {number:,} jobs"
            yield from usage_rows(subject, used[str(number)], used[str(FEW)], f"{FEW} jobs", goal)


def _home(place: Workplace, number: int) -> str:
    return str(place.path / "home" / f"jobs-{number}")


def _in(home: str, command: list[str]) -> list[str]:
    return ["/usr/bin/env", f"TRAINYARD_HOME={home}", *command]


def _fill(place: Workplace, tool: Tool, number: int) -> str:
    """Make a history; return the id of its last job."""
    command = [str(tool.python), str(FILL), str(number), str(NAMES)]
    usage = place.run(_in(_home(place, number), command), timeout=300)
    return usage.out.read_text().strip().rpartition("/")[2]


def _run(place: Workplace, tool: Tool, number: int, last: str, args: tuple[str, ...]) -> Usage:
    words = [word.format(id=last, short=last[:-4]) for word in args]
    codes = (2,) if words[-1] == "echo" else (0,)
    return place.run(_in(_home(place, number), tool.command(*words)), codes=codes)
