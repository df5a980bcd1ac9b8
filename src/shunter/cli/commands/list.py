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
from shunter.limits import MOST_LINES, whole_number
from shunter.redaction import is_masked
from shunter.runner import Runner, get_runner
from shunter.runner.config import check_keys, load_config
from shunter.runner.jobsearch import REFUSED_STATE, JobFilter
from shunter.runner.records import REFUSED, SUBMITTED
from shunter.schedulers.api import ListAppResponse
from shunter.specs.status import AppState, is_terminal
from shunter.terminal import clean, format_duration

DEFAULT_LIMIT = 50
LEAST_WIDTH = 12  # of a name that is cut
#: What `--json` shows of a job. Times are seconds since the epoch; None where they are not known.
FIELDS = (
    "app_id", "component", "created_at", "ended_at", "handle", "msg", "name", "phase", "scheduler",
    "started_at", "state", "submitted_at",
)  # fmt: skip
Row = dict[str, Any]


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
    if args.cfg and not args.scheduler:
        raise UsageError("-cfg needs -s: it sets options of a scheduler")
    since = parse_time(args.since).timestamp() if args.since else None
    job_filter = JobFilter(_states(args.state), since, args.name, args.all, args.scheduler, args.jobs)
    limit = args.limit if args.limit is not None else 0 if args.json else DEFAULT_LIMIT
    code = EXIT_OK
    with get_runner() as runner:
        cfg = runner.cfg_from_str(args.scheduler, *args.cfg) if args.cfg else None
        rows, total = _recorded(runner, job_filter, limit or None, cfg)
        if args.scheduler:
            try:
                others = [_listed_row(args.scheduler, job) for job in runner.unrecorded_jobs(job_filter, cfg)]
                total += len(others)
                # the latest first, as those of the history
                rows = sorted([*rows, *others], key=lambda row: -(_submission(row) or 0.0))
            except (BackendError, NotImplementedError) as error:
                warn(f"cannot list the jobs of {args.scheduler}, only those of the history: {error}")
                code = EXIT_BACKEND
    shown = rows[:limit] if limit else rows
    if args.json:
        print_json([row | {"state": row["state"].name} for row in shown])
    elif shown:
        out(_table(shown))
    if len(shown) < total:
        note(f"{len(shown)} of {total} jobs; --limit 0 shows all")
    if not total and not args.json:
        note("no such jobs" if job_filter.active or args.scheduler else "no jobs yet")
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
    known = [*AppState.__members__, REFUSED_STATE]
    names = {name.strip().upper() for name in text.split(",") if name.strip()}
    for name in sorted(names):
        if name not in known:
            raise UsageError(f"--state: unknown state {name!r}", hint=did_you_mean(name, known))
    return names


# ---- the jobs, as JSON values but for their states


def _recorded(
    runner: Runner, job_filter: JobFilter, limit: int | None, cfg: dict[str, Any] | None
) -> tuple[list[Row], int]:
    """Return up to ``limit`` submissions of the history, the latest first, and the number of all that match.

    ``cfg`` holds options of the filter's scheduler, which may restrict the jobs that it lists.
    """
    if job_filter.scheduler is None or not cfg:
        records, total = runner.search(job_filter, limit, by_time=job_filter.scheduler is not None)
    else:
        records = [
            record
            for record in runner.search(job_filter, by_time=True)[0]
            if all(_may_be(record.cfg.get(name), value) for name, value in cfg.items())
        ]
        total = len(records)
    return [{name: getattr(record, name) for name in FIELDS} for record in records], total


def _may_be(recorded: Any, asked: Any) -> bool:
    """Tell whether a job with this recorded value of an option is among those that are asked for.

    A value that the job took from its environment, or that holds a secret, is not recorded: it may be any.
    """
    if recorded is None or asked == "*" or is_masked(str(recorded)):
        return True
    return bool(recorded == asked or _last_part(recorded) == _last_part(asked))


def _last_part(value: Any) -> str:
    """Return the name that an ARN, or the host that a URL, ends with; other values as they are."""
    return str(value).rstrip("/").rpartition("/")[2]


def _listed_row(scheduler: str, job: ListAppResponse) -> Row:
    """Return the row of a job that only its scheduler knows."""
    row: Row = {field: getattr(job, field, None) for field in FIELDS}
    row |= {"handle": job.app_handle, "name": job.name or job.app_id}
    return row | {"scheduler": scheduler, "phase": SUBMITTED, "msg": ""}


def _submission(row: Row) -> float | None:
    """Return when a job was submitted, or its submission began."""
    submission: float | None = row["submitted_at"] or row["created_at"]
    return submission


# ---- as a table


def _table(rows: list[Row]) -> str:
    now = time.time()
    lines = []
    for row in rows:
        is_refused = row["phase"] == REFUSED
        state = REFUSED_STATE if is_refused else row["state"].name
        has_ended = is_refused or is_terminal(row["state"])
        took = "-"
        if row["started_at"] is not None and (row["ended_at"] is not None or not has_ended):
            took = format_duration((row["ended_at"] or now) - row["started_at"])
        job = row["handle"] or f"({row['scheduler']})"
        lines.append([clean(job), state, clean(row["name"]), _submission(row), took])
    return table(*_fitted(lines, terminal_size(1)[0] if is_tty(sys.stdout) else sys.maxsize), sys.stdout)


def _fitted(lines: list[list[Any]], columns: int) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return headers and rows that fit the terminal: short times, ids instead of handles, shortened names."""
    for first_header, date in (
        ("HANDLE", "%Y-%m-%d %H:%M:%S"),
        ("HANDLE", "%m-%d %H:%M"),
        ("ID", "%m-%d %H:%M"),
    ):
        headers = (first_header, "STATE", "NAME", "SUBMITTED", "TIME")
        rows = [
            [
                job.rpartition("/")[2] if first_header == "ID" else job,
                state,
                name,
                format_time(at, date),
                took,
            ]
            for job, state, name, at, took in lines
        ]
        if _width(headers, rows) <= columns:
            return headers, rows
    for cell in (headers.index("NAME"), 0):
        widest = max(len(row[cell]) for row in rows)
        room = max(widest - max(_width(headers, rows) - columns, 0), LEAST_WIDTH)
        for row in rows:
            if len(row[cell]) > room:
                row[cell] = row[cell][: room - 3] + "..."
    return headers, rows


def _width(headers: tuple[str, ...], rows: list[list[str]]) -> int:
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)
