"""List jobs, the latest first.

Jobs come from the history of this machine; the states of jobs that have not ended are updated first. With -s
the scheduler is asked too, so that jobs started elsewhere are listed as well.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from typing import Any

from shunter.cli.console import (
    format_time,
    is_tty,
    note,
    print_result,
    table,
    table_width,
    terminal_size,
    warn,
)
from shunter.cli.parser import Parser, add_json_option, add_scheduler_options, number_between, parse_time
from shunter.errors import EXIT_BACKEND, EXIT_OK, BackendError, ConfigError, UsageError, did_you_mean
from shunter.limits import MOST_LINES, whole_number
from shunter.redaction import is_masked
from shunter.runner import get_runner
from shunter.runner.config import check_keys, load_config
from shunter.runner.jobsearch import REFUSED_STATE, JobFilter
from shunter.runner.records import REFUSED, SUBMITTED
from shunter.schedulers.api import ListAppResponse
from shunter.specs.status import AppState, is_terminal
from shunter.terminal import clean, format_duration

DEFAULT_LIMIT = 50
LEAST_WIDTH = 12  # of what is cut
HEADERS = ("HANDLE", "STATE", "NAME", "SUBMITTED", "TIME", "ARGUMENTS")
#: What `--json` shows of a job. Times are seconds since the epoch; None where they are not known.
FIELDS = (
    "app_id", "arguments", "component", "created_at", "ended_at", "handle", "msg", "name", "phase", "race",
    "scheduler", "started_at", "state", "submitted_at",
)  # fmt: skip
Row = dict[str, Any]


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB",
        help="only these: a name, the beginning of an id or handle, or a pattern in quotes: 'exp-*'",
        completer="job_completer",
    )
    add_scheduler_options(parser, "only jobs of this scheduler")
    parser.add_argument("--state", metavar="A,B", help="only jobs in these states, such as running,failed")
    parser.add_argument("--since", metavar="TIME", help="only jobs submitted since then: 2h, 3d, an ISO date")
    parser.add_argument(
        "--name", metavar="TEXT", help="only names or ids that contain this (or match its * and ?)"
    )
    parser.add_argument(
        "--limit",
        "-n",
        type=number_between(0, MOST_LINES),
        metavar="N",
        help=f"show at most N jobs, 0 for all (default: {DEFAULT_LIMIT} in a table, all in JSON)",
    )
    parser.add_flag("-a", "--all", help="also refused or interrupted submissions, and jobs of other users")
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
        cfg = runner.cfg_from_str(args.scheduler, *args.cfg) if args.cfg else {}
        records, total = runner.search(
            job_filter, None if cfg else limit or None, by_time=args.scheduler is not None
        )
        if cfg:  # options may restrict the jobs that the scheduler lists
            records = [r for r in records if all(_may_be(r.cfg.get(name), cfg[name]) for name in cfg)]
            total = len(records)
        rows = [{name: getattr(record, name) for name in FIELDS} for record in records]
        if args.scheduler:
            try:
                others = runner.unrecorded_jobs(job_filter, cfg or None)
                total += len(others)
                rows += [_listed_row(args.scheduler, job) for job in others]
                # the latest first, as those of the history
                rows.sort(key=lambda row: -(_submission(row) or 0.0))
            except (BackendError, NotImplementedError) as error:
                warn(f"cannot list the jobs of {args.scheduler}, only those of the history: {error}")
                code = EXIT_BACKEND
    shown = rows[:limit] if limit else rows
    data = [row | {"state": row["state"].name} for row in shown]
    print_result(args.json, data, [_table(shown)] if shown else [])
    if len(shown) < total:
        note(f"{len(shown)} of {total} jobs; --limit 0 shows all")
    if not total and not args.json:
        states = [name for name in args.jobs if name.upper() in AppState.__members__]
        if states:
            note(f"no job has that name; by state: shunter list --state {','.join(states)}")
            return code
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


def _may_be(recorded: Any, asked: Any) -> bool:
    """Tell whether a job with this recorded value of an option is among those that are asked for.

    A value that the job took from its environment, or that holds a secret, is not recorded: it may be any.
    Of an ARN or a URL the last part is enough.
    """
    if recorded is None or asked == "*" or is_masked(str(recorded)):
        return True
    last_parts = {str(value).rstrip("/").rpartition("/")[2] for value in (recorded, asked)}
    return len(last_parts) == 1


def _listed_row(scheduler: str, job: ListAppResponse) -> Row:
    """Return the row of a job that only its scheduler knows."""
    row: Row = {field: getattr(job, field, None) for field in FIELDS}
    row |= {"handle": job.app_handle, "name": job.name or job.app_id}
    return row | {"scheduler": scheduler, "phase": SUBMITTED, "msg": ""}


def _submission(row: Row) -> float | None:
    """Return when a job was submitted, or its submission began."""
    submission: float | None = row["submitted_at"] or row["created_at"]
    return submission


def _table(rows: list[Row]) -> str:
    """Return a table; on a terminal, what does not fit gets shorter.

    First the arguments, then times, ids for handles, names that the ids begin with, names, ids.
    """
    columns = terminal_size(1)[0] if is_tty(sys.stdout) else sys.maxsize
    headers, lines = list(HEADERS), [_cells(row, "%Y-%m-%d %H:%M:%S") for row in rows]
    _cut(headers, lines, "ARGUMENTS", columns)
    if table_width(headers, lines) <= columns:
        return table(headers, lines, sys.stdout)
    headers[0], lines = "ID", [_cells(row, "%m-%d %H:%M") for row in rows]
    for line in lines:
        line[0] = line[0].rpartition("/")[2]
    if all(line[0].startswith(line[headers.index("NAME")]) for line in lines):
        _drop(headers, lines, "NAME")
    _cut(headers, lines, "ARGUMENTS", columns)
    _cut(headers, lines, "NAME", columns)
    if table_width(headers, lines) > columns:
        _drop(headers, lines, "ARGUMENTS")
    _cut(headers, lines, "ID", columns)
    return table(headers, lines, sys.stdout)


def _cut(headers: list[str], lines: list[list[str]], header: str, columns: int) -> None:
    """Cut the texts of a column as far as the table is too wide, but not below `LEAST_WIDTH`."""
    if header not in headers:
        return
    cell, excess = headers.index(header), max(table_width(headers, lines) - columns, 0)
    room = max(max(len(line[cell]) for line in lines) - excess, LEAST_WIDTH)
    for line in lines:
        if len(line[cell]) > room:
            line[cell] = line[cell][: room - 3] + "..."


def _drop(headers: list[str], lines: list[list[str]], header: str) -> None:
    cell = headers.index(header)
    for line in (headers, *lines):
        del line[cell]


def _cells(row: Row, date: str) -> list[str]:
    is_refused = row["phase"] == REFUSED
    has_ended = is_refused or is_terminal(row["state"])
    took = "-"
    if row["started_at"] is not None and (row["ended_at"] is not None or not has_ended):
        took = format_duration((row["ended_at"] or time.time()) - row["started_at"])
    job = row["handle"] or f"({row['scheduler']})"
    state = REFUSED_STATE if is_refused else row["state"].name
    arguments = clean(row["arguments"] or "")
    return [clean(job), state, clean(row["name"]), format_time(_submission(row), date), took, arguments]
