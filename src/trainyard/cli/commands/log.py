"""Print or follow the logs of a job.

Each line begins with its replica, ROLE/ID. All replicas are shown unless some are named.
"""

from __future__ import annotations

import sys

from trainyard.cli.console import note, wants_colour
from trainyard.cli.parser import complete_with
from trainyard.cli.replicaselection import parse_wanted, select, split_target
from trainyard.errors import EXIT_INTERRUPTED, EXIT_OK, BackendError, UsageError
from trainyard.specs.limits import MOST_LINES, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from trainyard.cli.parser import Parser
    from trainyard.runner import Runner
    from trainyard.schedulers.base import LogQuery


#: How long `log -f --collapse` waits, in seconds, for the same line of other replicas.
WINDOW = 1.0


def add_arguments(parser: ArgumentParser) -> None:
    target = parser.add_argument(
        "handle",
        nargs="?",
        metavar="HANDLE[/ROLE[/0,1]]",
        help="a job (the latest by default), optionally with a role and replicas",
    )
    complete_with(target, "job_completer")
    parser.add_argument(
        "replicas",
        nargs="*",
        metavar="ROLE/ID",
        help="only these: trainer, trainer/0, trainer/0,2, trainer/0-3",
    )
    parser.add_argument("-f", "--follow", "-t", action="store_true", help="follow until the job has ended")
    parser.add_argument("--tail", metavar="N", help="only the last N lines of each replica")
    parser.add_argument("--since", metavar="TIME", help="only lines since then: 10m, 2h, an ISO time, now")
    parser.add_argument("--until", metavar="TIME", help="only lines before then")
    parser.add_argument("--regex", metavar="REGEX", help="only lines that match this")
    parser.add_argument(
        "--streams",
        "--stream",
        choices=("stdout", "stderr", "combined"),
        help="one output stream instead of the scheduler's default",
    )
    parser.add_argument(
        "--collapse",
        action="store_true",
        help="print a line that several replicas have once, as ROLE[0-63]",
    )
    parser.add_argument(
        "--first-error",
        "--first_error",
        action="store_true",
        help="only the lines around the first error of the replica that failed first",
    )
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
    target, wanted = split_target("-" if args.handle is None else args.handle)
    wanted += [parse_wanted(text) for text in args.replicas]
    if sys.stdout is None:
        return EXIT_OK
    from trainyard.cli.logwriter import CollapsingLogWriter, JsonLogWriter, LogWriter
    from trainyard.runner import get_runner

    with get_runner() as runner:
        handle = runner.resolve_handle(target)
        chosen = select(runner.replicas(handle), wanted)
        if args.first_error:
            return _print_first_error(runner, handle, chosen)
        writer: CollapsingLogWriter | JsonLogWriter | LogWriter
        if args.collapse:
            writer = CollapsingLogWriter(sys.stdout.buffer, chosen, WINDOW if args.follow else None)
        elif args.json:
            writer = JsonLogWriter(sys.stdout.buffer)
        else:
            writer = LogWriter(sys.stdout.buffer, wants_colour(sys.stdout), not args.no_prefix)
        try:
            writer.write_all(runner.log_blocks(handle, chosen, query))
        except KeyboardInterrupt:
            if args.follow:
                note(f"\nno longer following {handle}")
            return EXIT_INTERRUPTED
        finally:
            writer.finish()
    return EXIT_OK


def _print_first_error(runner: Runner, handle: str, chosen: Sequence[tuple[str, int]]) -> int:
    from trainyard.cli.console import out
    from trainyard.cli.jobstatus import status_of
    from trainyard.diagnosis.failures import first_failures
    from trainyard.runner.explanation import explain_failed
    from trainyard.specs.status import RoleStatus
    from trainyard.terminal import clean

    status = status_of(runner, handle)
    failed = [each for each in first_failures(status) if (each.role, each.id) in chosen]
    if not failed:
        raise UsageError(f"no replica of {handle} has failed", hint="`trainyard status` shows their states.")
    status.roles = [RoleStatus(failed[0].role, failed)]
    failure = explain_failed(runner, handle, status)
    if failure.problem:
        raise BackendError(f"the log of {handle} cannot be read: {failure.problem}")
    for line in failure.log:
        out(clean(f"{failure.place} {line}"))
    return EXIT_OK


def _query(args: Namespace) -> LogQuery:
    from trainyard.schedulers.base import LogQuery, Stream

    try:
        last = None if args.tail is None else whole_number(args.tail, 0, MOST_LINES)
    except ValueError as error:
        hint = "--tail takes a number of lines. To follow a log, use -f (or --follow)."
        raise UsageError(f"--tail: {error}", hint=hint) from None
    if args.regex is not None:
        from trainyard.schedulers.lines import compile_regex

        compile_regex(args.regex)
    since = until = None
    if args.since or args.until:
        from trainyard.cli.units import parse_time

        since = parse_time(args.since) if args.since else None
        until = parse_time(args.until) if args.until else None
        if since and until and since >= until:
            raise UsageError(f"--since {args.since} must be before --until {args.until}")
    return LogQuery(
        args.regex,
        since,
        until,
        args.follow,
        Stream(args.streams) if args.streams else None,
        last,
    )
