"""List jobs, the latest first.

The history of this machine answers at once, and the states of jobs that have not ended are asked for. With
-s the scheduler itself is asked too, so that jobs started elsewhere are listed as well.
"""

from __future__ import annotations

import sys
import time

from trainyard.cli.console import is_terminal, note, out, print_json, table, terminal_size, warn
from trainyard.cli.parser import add_json_option, add_scheduler_options, number_between
from trainyard.errors import EXIT_BACKEND, EXIT_OK, BackendError, ConfigError, UsageError, did_you_mean
from trainyard.specs.limits import MOST_LINES, whole_number
from trainyard.terminal import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

    from trainyard.cli.joblist import Row
    from trainyard.runner import Runner

DEFAULT_LIMIT = 50
LEAST_WIDTH = 12  # of a name that is cut


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_scheduler_options(parser, "only jobs of this scheduler")
    parser.add_argument("--state", metavar="A,B", help="only jobs in these states, such as running,failed")
    parser.add_argument(
        "--since", metavar="TIME", help="only jobs submitted from then on: 2h, 3d, an ISO date"
    )
    parser.add_argument(
        "--name", metavar="TEXT", help="only names or ids that contain this (or match its * and ?)"
    )
    parser.add_argument(
        "--limit",
        type=number_between(0, MOST_LINES),
        metavar="N",
        help=f"at most so many, 0 for all (a table shows {DEFAULT_LIMIT} by default, JSON all)",
    )
    parser.add_argument(
        "-a",
        "--all",
        action="store_true",
        help="also submissions that were refused or interrupted, and jobs that others submitted",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Run the command."""
    from trainyard.cli.joblist import own_rows, rows_of_others
    from trainyard.runner import get_runner
    from trainyard.runner.jobsearch import JobFilter

    _apply_configuration(args)
    wanted = JobFilter(_states(args.state), _since(args.since), args.name, args.all, args.scheduler)
    if args.cfg and not args.scheduler:
        raise UsageError("-cfg holds options of a scheduler; name it with -s")
    limit = args.limit if args.limit is not None else 0 if args.json else DEFAULT_LIMIT
    code = EXIT_OK
    with get_runner() as runner:
        cfg = _cfg(runner, args)
        rows, total = own_rows(runner, wanted, limit or None, cfg)
        if args.scheduler:
            try:
                others = rows_of_others(runner, wanted, cfg)
                total += len(others)
                # the latest first, as those of the history
                rows = sorted([*rows, *others], key=lambda row: -(row.started_at or 0.0))
            except (BackendError, NotImplementedError) as error:
                warn(f"{args.scheduler} does not list its jobs; this is what the history knows: {error}")
                code = EXIT_BACKEND
    shown = rows[:limit] if limit else rows
    if args.json:
        print_json([row.to_json() for row in shown])
    elif shown:
        out(_table(shown))
    if len(shown) < total:
        note(f"{len(shown)} of {total} jobs; --limit 0 shows all")
    if not total and not args.json:
        note("no such jobs" if wanted.active or args.scheduler else "no jobs yet")
    return code


def _apply_configuration(args: Namespace) -> None:
    """Take the scheduler and the limit of ``[cli.list]`` where the command line has none."""
    from trainyard.runner.config import check_keys, load_config

    settings = load_config().command("list")
    check_keys(settings, ("scheduler", "limit"), "[cli.list]")
    if args.scheduler is None and "scheduler" in settings:
        args.scheduler = str(settings["scheduler"].value)
    if args.limit is None and "limit" in settings:
        limit = settings["limit"]
        try:
            args.limit = whole_number(str(limit.value), 0, MOST_LINES)
        except ValueError as error:
            raise ConfigError(f"{limit.origin}: limit: {error}") from None


def _cfg(runner: Runner, args: Namespace) -> dict[str, Any] | None:
    return dict(runner.cfg_from_str(args.scheduler, *args.cfg)) if args.cfg else None


def _states(text: str | None) -> set[str] | None:
    if not text:
        return None
    from trainyard.runner.jobsearch import REFUSED_STATE
    from trainyard.specs.status import AppState

    there = [*AppState.__members__, REFUSED_STATE]
    names = {name.strip().upper() for name in text.split(",") if name.strip()}
    for name in sorted(names):
        if name not in there:
            raise UsageError(f"--state: there is no state {name!r}", hint=did_you_mean(name, there))
    return names


def _since(text: str | None) -> float | None:
    if not text:
        return None
    from trainyard.cli.units import parse_time

    return parse_time(text).timestamp()


def _table(rows: list[Row]) -> str:
    from trainyard.cli.units import format_duration

    now = time.time()
    lines = []
    for row in rows:
        took = "-"
        if row.started_at is not None and (row.ended_at is not None or not row.ended):
            took = format_duration((row.ended_at or now) - row.started_at)
        job = row.handle or f"({row.scheduler})"
        lines.append([clean(job), row.shown_state, clean(row.name), row.started_at, took])
    return table(*_fitted(lines, terminal_size(1)[0] if is_terminal(sys.stdout) else None), sys.stdout)


def _fitted(lines: list[list[Any]], columns: int | None) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return headers and rows that fit the terminal: with short times, ids for handles, and cut names.

    An id stands for its job wherever a handle does. Without a terminal everything is whole.
    """
    from trainyard.cli.units import format_time

    def laid_out(date: str, handle: bool) -> list[list[str]]:
        return [
            [
                job if handle else job.rpartition("/")[2],
                state,
                name,
                format_time(started, date) if date else format_time(started),
                took,
            ]
            for job, state, name, started, took in lines
        ]

    headers = ("HANDLE", "STATE", "NAME", "SUBMITTED", "TIME")
    whole = laid_out("", True)
    if columns is None or _width(headers, whole) <= columns:
        return headers, whole
    short = laid_out("%m-%d %H:%M", True)
    if _width(headers, short) > columns:
        headers = ("ID", *headers[1:])
        short = laid_out("%m-%d %H:%M", False)
    for at in (headers.index("NAME"), 0):
        widest = max(len(row[at]) for row in short)
        room = max(widest - max(_width(headers, short) - columns, 0), LEAST_WIDTH)
        for row in short:
            if len(row[at]) > room:
                row[at] = row[at][: room - 3] + "..."
    return headers, short


def _width(headers: tuple[str, ...], rows: list[list[str]]) -> int:
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)
