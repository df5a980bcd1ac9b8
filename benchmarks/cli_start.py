"""How long the command line takes to start: what every use of it costs."""

from __future__ import annotations

from collections.abc import Iterator

from harness import Tool, Usage, Workplace, alternate
from report import FLOOR, Goal, Row, row_of, usage_rows

DRY_RUN = ("run", "--dryrun", "-s", "local_cwd", "utils.echo", "--msg", "hello")
COMMANDS: dict[str, tuple[str, ...]] = {
    "--version": ("--version",),
    "--help": ("--help",),
    "runopts local_cwd": ("runopts", "local_cwd"),
    "runopts": ("runopts",),
    "run --dryrun utils.echo": DRY_RUN,
}
FLOOR_GOAL = Goal(4)


def measure(place: Workplace, ours: Tool, other: Tool, *, quick: bool) -> Iterator[Row]:
    rounds = 5 if quick else 21
    for name, args in COMMANDS.items():
        yield from _compare(place, ours, other, name, args, rounds)
    yield from _status(place, ours, rounds)


def _compare(
    place: Workplace, ours: Tool, other: Tool, name: str, args: tuple[str, ...], rounds: int
) -> Iterator[Row]:
    sides = {
        "ours": lambda: place.run(ours.command(*args)),
        "other": lambda: place.run(other.command(*args), codes=None),
        "floor": lambda: _nothing(place, ours),
    }
    used = alternate(sides, rounds)
    code = used["other"][-1].code
    note = f"TorchX ends with a traceback and exit code {code}" if code else ""
    yield from usage_rows(name, used["ours"], used["other"], note=note)
    goal = FLOOR_GOAL if name == "--version" else None
    yield from usage_rows(name, used["ours"], used["floor"], against=FLOOR, goal=goal)
    yield row_of(name, "peak MiB", used, lambda usage: usage.peak_mib)


def _status(place: Workplace, ours: Tool, rounds: int) -> Iterator[Row]:
    """TorchX has no row here: it does not know a local job of another process."""
    usage = place.run(ours.run_locally("--wait", "utils.echo", "--msg", "hello"))
    handle = usage.out.read_text().strip()
    sides = {
        "ours": lambda: place.run(ours.command("status", handle)),
        "floor": lambda: _nothing(place, ours),
    }
    used = alternate(sides, rounds)
    name = "status of a local job"
    yield from usage_rows(name, used["ours"], used["floor"], against=FLOOR, goal=FLOOR_GOAL)
    note = "TorchX cannot: a local job is known to the process that started it only"
    yield Row(name, "peak MiB", [usage.peak_mib for usage in used["ours"]], note=note)


def _nothing(place: Workplace, tool: Tool) -> Usage:
    return place.run([str(tool.python), "-c", "pass"])
