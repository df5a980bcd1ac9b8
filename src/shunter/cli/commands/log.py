"""Print or follow the logs of a job, or of several.

Each line begins with its replica, ROLE/ID. All replicas are shown unless some are named. With `--grep`, and
where the first word is a pattern such as 'exp-*', there may be several jobs; lines begin with JOB/ROLE/ID.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from shunter.cli.console import note, out, wants_colour, warn
from shunter.cli.jobstatus import status_of
from shunter.cli.logsources import LogSource, LogSources
from shunter.cli.logwriter import CollapsingLogWriter, JsonLogWriter, LogWriter, Stamp, bytes_of
from shunter.cli.parser import Parser, complete_with
from shunter.cli.replicaselection import Wanted, parse_wanted, select, split_target
from shunter.cli.units import parse_time
from shunter.diagnosis.failures import first_failures
from shunter.errors import EXIT_INTERRUPTED, EXIT_OK, BackendError, UsageError
from shunter.runner import Runner, get_runner
from shunter.schedulers.api import LogQuery, Stream
from shunter.schedulers.lines import compile_regex
from shunter.specs.limits import MOST_LINES, MOST_REPLICAS, whole_number
from shunter.specs.status import RoleStatus
from shunter.terminal import clean
from shunter.why.explanation import explain_failed

#: How long `log -f --collapse` waits, in seconds, for the same line of other replicas.
WINDOW = 1.0


def add_arguments(parser: ArgumentParser) -> None:
    target = parser.add_argument(
        "handle",
        nargs="?",
        metavar="HANDLE[/ROLE[/0,1]]",
        help="a job (the latest by default), optionally with a role and replicas; or a pattern: 'exp-*'",
    )
    complete_with(target, "job_completer")
    parser.add_argument(
        "replicas",
        nargs="*",
        metavar="ROLE/ID",
        help="only these: trainer, trainer/0, trainer/0,2, trainer/0-3; with --grep, more jobs",
    )
    parser.add_argument("-f", "--follow", "-t", action="store_true", help="follow until the job has ended")
    parser.add_argument("--tail", metavar="N", help="only the last N lines of each replica")
    parser.add_argument("--since", metavar="TIME", help="only lines since then: 10m, 2h, an ISO time, now")
    parser.add_argument("--until", metavar="TIME", help="only lines before then")
    parser.add_argument("--regex", metavar="REGEX", help="only lines that match this")
    parser.add_argument(
        "--grep", metavar="REGEX", help="like --regex, for several jobs: every argument is a job"
    )
    parser.add_argument(
        "--rank", metavar="R", help="only the process with this rank, counted over the chosen replicas"
    )
    parser.add_argument(
        "--streams",
        "--stream",
        choices=("stdout", "stderr", "combined"),
        help="one output stream instead of the scheduler's default",
    )
    parser.add_argument(
        "--collapse",
        action="store_true",
        help="print identical lines of several replicas only once, as ROLE[0-63]",
    )
    parser.add_argument(
        "--first-error",
        "--first_error",
        action="store_true",
        help="only the lines around the first error of the replica that failed first",
    )
    parser.add_argument(
        "--timestamps",
        action="store_true",
        help="print the time at which each line was written, in local time",
    )
    parser.add_argument("--utc", action="store_true", help="print times in UTC (implies --timestamps)")
    parser.add_argument("--no-prefix", action="store_true", help="print the lines as they were written")
    parser.add_argument(
        "--json", action="store_true", help="print every line as a JSON object: role, replica, line"
    )


def parse(parser: Parser, argv: list[str]) -> Namespace:
    """Parse the arguments. ``-/ROLE`` is a role of the latest job, not an option."""
    args = parser.parse_arguments([word[1:] if word.startswith("-/") else word for word in argv])
    if args.handle is not None and f"-{args.handle}" in argv:
        args.handle = f"-{args.handle}"
    return args


def run(args: Namespace) -> int:
    query = _query(args)
    if args.collapse and (args.json or args.no_prefix):
        raise UsageError("--collapse needs the names of replicas: leave out --json and --no-prefix")
    if args.collapse and query.timed:
        raise UsageError(
            "--collapse merges lines that were written at different times: leave out --timestamps and --utc"
        )
    rank = _rank(args)
    words = _words(args)
    if sys.stdout is None:
        return EXIT_OK
    with get_runner() as runner:
        jobs = _jobs(runner, words)
        if args.first_error:
            if len(jobs) > 1:
                raise UsageError("--first-error takes one job")
            return _print_first_error(runner, jobs[0].handle, jobs[0].replicas)
        logs = LogSources(runner, jobs, query, rank)
        writer = _writer(args, jobs, query.timed)
        try:
            writer.write_all(logs.blocks())
        except KeyboardInterrupt:
            if args.follow:
                shown = jobs[0].handle if len(jobs) == 1 else f"{len(jobs)} jobs"
                note(f"\nno longer following {shown}")
            return EXIT_INTERRUPTED
        finally:
            writer.finish()
        for text in logs.notes():
            warn(text)
    return logs.code


def _words(args: Namespace) -> list[tuple[str, list[Wanted]]]:
    """Return the jobs that are named, each with the wanted replicas."""
    first, more = "-" if args.handle is None else args.handle, list(args.replicas)
    if args.grep is not None:
        return [split_target(text) for text in (first, *more)]
    target, wanted = split_target(first)
    return [(target, wanted + [parse_wanted(text) for text in more])]


def _jobs(runner: Runner, words: Sequence[tuple[str, list[Wanted]]]) -> list[LogSource]:
    """Find the jobs that are named."""
    jobs: dict[str, LogSource] = {}
    for target, wanted in words:
        for handle in runner.resolve_handles([target]):
            chosen = select(runner.replicas(handle), wanted)
            job = jobs.setdefault(handle, LogSource(handle, []))
            job.replicas += [replica for replica in chosen if replica not in job.replicas]
    return list(jobs.values())


def _writer(
    args: Namespace, jobs: Sequence[LogSource], timed: bool
) -> CollapsingLogWriter | JsonLogWriter | LogWriter:
    several = len(jobs) > 1
    shown = [
        (job.shown_role(role) if several else role, k, job.handle, role)
        for job in jobs
        for role, k in job.replicas
    ]
    stream, stamp = bytes_of(sys.stdout), Stamp(utc=args.utc) if timed else None
    if args.collapse:
        return CollapsingLogWriter(
            stream, [(name, k) for name, k, _, _ in shown], WINDOW if args.follow else None
        )
    if args.json:
        names = {name: (handle, role) for name, _, handle, role in shown} if several else {}
        return JsonLogWriter(stream, stamp, names)
    return LogWriter(stream, wants_colour(sys.stdout), not args.no_prefix, stamp)


def _rank(args: Namespace) -> int | None:
    try:
        return None if args.rank is None else whole_number(args.rank, 0, MOST_REPLICAS)
    except ValueError as error:
        raise UsageError(f"--rank: {error}") from None


def _print_first_error(runner: Runner, handle: str, chosen: Sequence[tuple[str, int]]) -> int:
    status = status_of(runner, handle)
    failed = [each for each in first_failures(status) if (each.role, each.id) in chosen]
    if not failed:
        raise UsageError(f"no replica of {handle} has failed", hint="`shunter status` shows their states.")
    status.roles = [RoleStatus(failed[0].role, failed)]
    failure = explain_failed(runner, handle, status)
    if failure.problem:
        raise BackendError(f"the log of {handle} cannot be read: {failure.problem}")
    for line in failure.log:
        out(clean(f"{failure.place} {line}"))
    return EXIT_OK


def _query(args: Namespace) -> LogQuery:
    try:
        last = None if args.tail is None else whole_number(args.tail, 0, MOST_LINES)
    except ValueError as error:
        hint = "--tail takes a number of lines. To follow a log, use -f (or --follow)."
        raise UsageError(f"--tail: {error}", hint=hint) from None
    if args.regex is not None and args.grep is not None:
        raise UsageError("--regex and --grep are mutually exclusive")
    regex = args.regex if args.grep is None else args.grep
    if regex is not None:
        compile_regex(regex)
    since = until = None
    if args.since or args.until:
        since = parse_time(args.since) if args.since else None
        until = parse_time(args.until) if args.until else None
        if since and until and since >= until:
            raise UsageError(f"--since {args.since} must be before --until {args.until}")
    return LogQuery(
        regex,
        since,
        until,
        args.follow,
        Stream(args.streams) if args.streams else None,
        last,
        args.timestamps or args.utc,
    )
