"""Remove what old local jobs left behind: logs and records of jobs that ended long ago.

Without --yes it only shows what it would remove.
"""

from __future__ import annotations

from trainyard.cli.console import note, out, print_json, table
from trainyard.cli.parser import add_json_option
from trainyard.cli.progress import format_bytes
from trainyard.errors import EXIT_OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--older-than",
        "--older_than",
        default="30d",
        metavar="TIME",
        help="only jobs that ended at least so long ago: 12h, 7d (default: 30d)",
    )
    parser.add_argument("--yes", action="store_true", help="really remove them")
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Run the command."""
    from trainyard.cli.times import format_duration, parse_duration
    from trainyard.runner import get_runner
    from trainyard.schedulers.local import gc

    items = gc.find(parse_duration(args.older_than))
    freed = 0
    if args.yes and items:
        with get_runner() as runner:
            runner.jobs(scheduler="local_cwd")  # so that the history knows how they ended
        freed = gc.collect(items)
    if args.json:
        rows = [{"app_id": i.app_id, "path": i.path, "size": i.size, "age": i.age} for i in items]
        print_json({"found": rows, "removed": len(items) if args.yes else 0, "freed": freed})
        return EXIT_OK
    if items:
        lines = [
            [item.app_id, format_duration(item.age), format_bytes(item.size), item.path] for item in items
        ]
        out(table(("JOB", "AGE", "SIZE", "PATH"), lines))
    if args.yes:
        note(f"removed {len(items)} jobs, {format_bytes(freed)}")
    elif items:
        total = format_bytes(sum(item.size for item in items))
        note(f"{len(items)} jobs, {total}; nothing is removed without --yes")
    else:
        note(f"no job ended more than {args.older_than} ago")
    return EXIT_OK
