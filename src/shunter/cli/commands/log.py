"""Print or follow the logs of a job, or of several.

Each line begins with its replica, ROLE/ID. All replicas are shown unless some are named. With `--grep`, and
where the first word is a pattern such as 'exp-*', there may be several jobs; lines begin with JOB/ROLE/ID.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from functools import partial

from shunter.cli.console import interrupt_message, out, wants_colour
from shunter.cli.job_names import parse_replicas, select_replicas, split_target
from shunter.cli.log_sources import LogSource, RankFilter, log_blocks
from shunter.cli.log_writers import CollapsingLogWriter, JsonLogWriter, LogWriter, bytes_of, time_text
from shunter.cli.parser import Parser, number_between, parse_time
from shunter.cli.shown_status import status_of
from shunter.diagnosis.failures import first_failures
from shunter.errors import EXIT_OK, BackendError, UsageError
from shunter.limits import MOST_LINES, MOST_REPLICAS
from shunter.runner import Runner, get_runner
from shunter.schedulers.api import LogQuery, Stream
from shunter.schedulers.lines import compile_regex
from shunter.specs.status import RoleStatus
from shunter.terminal import clean
from shunter.why.explanation import explain_failed

#: How long `log -f --collapse` waits, in seconds, for the same line of other replicas.
WINDOW = 1.0


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "handle",
        nargs="?",
        metavar="HANDLE[/ROLE[/0,1]]",
        help="a job (the latest by default), optionally with a role and replicas; or a pattern: 'exp-*'",
        completer="job_completer",
    )
    parser.add_argument(
        "replicas",
        nargs="*",
        metavar="ROLE/ID",
        help="only these: trainer, trainer/0, trainer/0,2, trainer/0-3; with --grep, more jobs",
    )
    parser.add_flag("-f", "--follow", "-t", help="follow until the job has ended")
    parser.add_argument(
        "-n",
        "--tail",
        "--lines",
        type=_line_count,
        metavar="N",
        help="only the last N lines of each replica; -f follows the log",
    )
    parser.add_argument("--since", metavar="TIME", help="only lines since then: 10m, 2h, an ISO time, now")
    parser.add_argument("--until", metavar="TIME", help="only lines before then")
    parser.add_argument("--regex", metavar="REGEX", help="only lines that match this")
    parser.add_argument(
        "--grep", metavar="REGEX", help="like --regex, for several jobs: every argument is a job"
    )
    parser.add_argument(
        "--rank",
        type=number_between(0, MOST_REPLICAS),
        metavar="R",
        help="only the process with this rank, counted over the chosen replicas",
    )
    parser.add_argument(
        "--streams",
        "--stream",
        choices=("stdout", "stderr", "combined"),
        help="one output stream instead of the scheduler's default",
    )
    parser.add_flag("--collapse", help="print identical lines of several replicas only once, as ROLE[0-63]")
    parser.add_flag(
        "--first-error", help="only the lines around the first error of the replica that failed first"
    )
    parser.add_flag("--timestamps", help="print the time at which each line was written, in local time")
    parser.add_flag("--utc", help="print times in UTC (implies --timestamps)")
    parser.add_flag("--no-prefix", help="print the lines as they were written")
    parser.add_flag("--json", help="print every line as a JSON object: role, replica, line")


def _line_count(text: str) -> int:
    try:
        return number_between(0, MOST_LINES)(text)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error}. To follow a log, use -f (or --follow)") from None


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
    if sys.stdout is None:
        return EXIT_OK
    with get_runner() as runner:
        jobs = _jobs(runner, args)
        if args.first_error:
            _print_first_error(runner, jobs)
            return EXIT_OK
        writer = _writer(args, jobs)
        shown = jobs[0].handle if len(jobs) == 1 else f"{len(jobs)} jobs"
        with interrupt_message(f"no longer following {shown}" if args.follow else "interrupted"):
            try:
                writer.write_all(log_blocks(runner, jobs, query))
            finally:
                writer.finish()
    return next((job.code for job in jobs if job.code), EXIT_OK)


def _query(args: Namespace) -> LogQuery:
    if args.regex is not None and args.grep is not None:
        raise UsageError("--regex and --grep are mutually exclusive")
    regex = args.regex if args.grep is None else args.grep
    if regex is not None:
        compile_regex(regex)
    since = parse_time(args.since) if args.since else None
    until = parse_time(args.until) if args.until else None
    if since and until and since >= until:
        raise UsageError(f"--since {args.since} must be before --until {args.until}")
    streams = Stream(args.streams) if args.streams else None
    return LogQuery(regex, since, until, args.follow, streams, args.tail, args.timestamps or args.utc)


def _jobs(runner: Runner, args: Namespace) -> list[LogSource]:
    """Find the jobs and replicas that are named."""
    target, choices = split_target("-" if args.handle is None else args.handle)
    targets = [(target, choices)]
    if args.grep is None:
        choices += [parse_replicas(text) for text in args.replicas]
    else:
        targets += [split_target(text) for text in args.replicas]
    jobs: dict[str, LogSource] = {}
    for target, choices in targets:
        for handle in runner.resolve_handles([target]):
            chosen = select_replicas(runner.replicas(handle), choices)
            job = jobs.setdefault(handle, LogSource(handle, []))
            job.replicas += [replica for replica in chosen if replica not in job.replicas]
    if args.rank is not None:
        for job in jobs.values():
            job.rank = RankFilter(args.rank, job.replicas, runner.describe(job.handle))
            job.replicas = job.rank.replicas
    return list(jobs.values())


def _writer(args: Namespace, jobs: list[LogSource]) -> CollapsingLogWriter | JsonLogWriter | LogWriter:
    stream = bytes_of(sys.stdout)
    stamp = partial(time_text, utc=args.utc) if args.timestamps or args.utc else None
    if args.collapse:
        prefixes = [f"{job.handle}/" if len(jobs) > 1 else "" for job in jobs]
        replicas = [(prefixes[i] + role, k) for i, job in enumerate(jobs) for role, k in job.replicas]
        return CollapsingLogWriter(stream, replicas, WINDOW if args.follow else None)
    if args.json:
        return JsonLogWriter(stream, stamp)
    return LogWriter(stream, wants_colour(sys.stdout), not args.no_prefix, stamp)


def _print_first_error(runner: Runner, jobs: list[LogSource]) -> None:
    if len(jobs) > 1:
        raise UsageError("--first-error takes one job")
    handle = jobs[0].handle
    status = status_of(runner, handle)
    failed = [r for r in first_failures(status) if (r.role, r.id) in jobs[0].replicas]
    if not failed:
        raise UsageError(f"no replica of {handle} has failed", hint="`shunter status` shows their states.")
    status.roles = [RoleStatus(failed[0].role, failed)]
    failure = explain_failed(runner, handle, status)
    if failure.problem:
        raise BackendError(f"the log of {handle} cannot be read: {failure.problem}")
    for line in failure.log:
        out(clean(f"{failure.place} {line}"))
