"""List jobs, the latest first.

Jobs come from the history of this machine; the states of jobs that have not ended are updated first. With -s
the scheduler is asked too, so that jobs started elsewhere are listed as well.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from shunter.cli.console import is_tty, note, out, print_json, table, terminal_size, warn
from shunter.cli.parser import add_json_option, add_scheduler_options, complete_with, number_between
from shunter.cli.units import format_time, parse_time
from shunter.errors import EXIT_BACKEND, EXIT_OK, BackendError, ConfigError, UsageError, did_you_mean
from shunter.runner import Runner, get_runner
from shunter.runner.config import check_keys, load_config
from shunter.runner.jobsearch import REFUSED_STATE, JobFilter
from shunter.runner.records import REFUSED, SUBMITTED, JobRecord
from shunter.schedulers.api import ListAppResponse
from shunter.specs.limits import MOST_LINES, whole_number
from shunter.specs.status import AppState, is_terminal
from shunter.terminal import clean, format_duration

DEFAULT_LIMIT = 50
LEAST_WIDTH = 12  # of a name that is cut


def add_arguments(parser: ArgumentParser) -> None:
    jobs = parser.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB",
        help="only these: a name, the beginning of an id or handle, or a pattern in quotes: 'exp-*'",
    )
    complete_with(jobs, "job_completer")
    add_scheduler_options(parser, "only jobs of this scheduler")
    parser.add_argument("--state", metavar="A,B", help="only jobs in these states, such as running,failed")
    parser.add_argument("--since", metavar="TIME", help="only jobs submitted since then: 2h, 3d, an ISO date")
    parser.add_argument(
        "--name", metavar="TEXT", help="only names or ids that contain this (or match its * and ?)"
    )
    parser.add_argument(
        "--limit",
        type=number_between(0, MOST_LINES),
        metavar="N",
        help=f"show at most N jobs, 0 for all (default: {DEFAULT_LIMIT} in a table, all in JSON)",
    )
    parser.add_argument(
        "-a",
        "--all",
        action="store_true",
        help="also refused or interrupted submissions, and jobs of other users",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    _apply_configuration(args)
    wanted = JobFilter(
        _states(args.state), _since(args.since), args.name, args.all, args.scheduler, args.jobs
    )
    if args.cfg and not args.scheduler:
        raise UsageError("-cfg needs -s: it sets options of a scheduler")
    limit = args.limit if args.limit is not None else 0 if args.json else DEFAULT_LIMIT
    code = EXIT_OK
    with get_runner() as runner:
        cfg = runner.cfg_from_str(args.scheduler, *args.cfg) if args.cfg else None
        rows, total = own_rows(runner, wanted, limit or None, cfg)
        if args.scheduler:
            try:
                jobs = runner.unrecorded_jobs(wanted, cfg)
                others = [Row.from_listed(args.scheduler, job) for job in jobs]
                total += len(others)
                # the latest first, as those of the history
                rows = sorted([*rows, *others], key=lambda row: -(row.submission or 0.0))
            except (BackendError, NotImplementedError) as error:
                warn(f"cannot list the jobs of {args.scheduler}, only those of the history: {error}")
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
    """Use the scheduler and limit of ``[cli.list]`` unless the command line sets them."""
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


def _states(text: str | None) -> set[str] | None:
    if not text:
        return None
    there = [*AppState.__members__, REFUSED_STATE]
    names = {name.strip().upper() for name in text.split(",") if name.strip()}
    for name in sorted(names):
        if name not in there:
            raise UsageError(f"--state: unknown state {name!r}", hint=did_you_mean(name, there))
    return names


def _since(text: str | None) -> float | None:
    if not text:
        return None
    return parse_time(text).timestamp()


def _table(rows: list[Row]) -> str:
    now = time.time()
    lines = []
    for row in rows:
        took = "-"
        if row.started_at is not None and (row.ended_at is not None or not row.ended):
            took = format_duration((row.ended_at or now) - row.started_at)
        job = row.handle or f"({row.scheduler})"
        lines.append([clean(job), row.shown_state, clean(row.name), row.submission, took])
    return table(*_fitted(lines, terminal_size(1)[0] if is_tty(sys.stdout) else None), sys.stdout)


def _fitted(lines: list[list[Any]], columns: int | None) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return headers and rows that fit the terminal: short times, ids instead of handles, shortened names."""

    def laid_out(date: str, handle: bool) -> list[list[str]]:
        return [
            [job if handle else job.rpartition("/")[2], state, name, format_time(submission, date), took]
            for job, state, name, submission, took in lines
        ]

    headers = ("HANDLE", "STATE", "NAME", "SUBMITTED", "TIME")
    whole = laid_out("%Y-%m-%d %H:%M:%S", True)
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


# ---- the rows


class Row:
    """One job of the list. Times are seconds since the epoch; None where they are not known."""

    app_id: str
    component: str | None
    created_at: float | None
    ended_at: float | None
    handle: str
    msg: str
    name: str
    phase: str
    scheduler: str
    started_at: float | None
    state: AppState
    submitted_at: float | None

    __slots__ = tuple(__annotations__)

    def __init__(self, source: JobRecord | ListAppResponse, **fields: Any) -> None:
        for name in self.__slots__:
            setattr(self, name, fields[name] if name in fields else getattr(source, name, None))

    @classmethod
    def from_listed(cls, scheduler: str, job: ListAppResponse) -> Row:
        """Return the row of a job that a scheduler lists."""
        name = job.name or job.app_id
        return cls(job, handle=job.app_handle, scheduler=scheduler, name=name, phase=SUBMITTED, msg="")

    @property
    def submission(self) -> float | None:
        """When it was submitted, or the submission began."""
        return self.submitted_at or self.created_at

    @property
    def shown_state(self) -> str:
        """The name of the state in tables."""
        return REFUSED_STATE if self.phase == REFUSED else self.state.name

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return is_terminal(self.state) or self.phase == REFUSED

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the state by its name."""
        return {name: getattr(self, name) for name in self.__slots__} | {"state": self.state.name}


def own_rows(
    runner: Runner, wanted: JobFilter, limit: int | None, cfg: dict[str, Any] | None = None
) -> tuple[list[Row], int]:
    """Return up to ``limit`` submissions of the history, the latest first, and the number of all that match.

    ``cfg`` holds options of the filter's scheduler, which may restrict the jobs that it lists.
    """
    if wanted.scheduler is None or not cfg:
        records, total = runner.search(wanted, limit, by_time=wanted.scheduler is not None)
    else:
        records = [
            record
            for record in runner.search(wanted, by_time=True)[0]
            if all(value in ("*", record.cfg.get(name, value)) for name, value in cfg.items())
        ]
        total = len(records)
    return [Row(record) for record in records], total
