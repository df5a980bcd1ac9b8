"""Remove what old local jobs left behind: logs and records of jobs that ended long ago, and unneeded code.

Code is kept for jobs of the history that have not ended, or not so long ago.

With -s it removes what jobs left behind on that scheduler instead, such as job definitions of AWS Batch.

Without --yes it only shows what it would remove.
"""

from __future__ import annotations

import time

from trainyard.cli.console import note, out, print_json, table
from trainyard.cli.parser import add_json_option, add_scheduler_options
from trainyard.cli.progress import format_bytes
from trainyard.errors import EXIT_OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable

    from trainyard.runner.records import JobRecord


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--older-than",
        "--older_than",
        default="30d",
        metavar="TIME",
        help="only jobs that ended at least so long ago: 12h, 7d (default: 30d)",
    )
    add_scheduler_options(parser, "remove what jobs left behind on this scheduler")
    parser.add_argument("--yes", action="store_true", help="really remove them")
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Run the command."""
    from trainyard.cli.times import format_duration, parse_duration
    from trainyard.runner import get_runner
    from trainyard.schedulers.local import gc
    from trainyard.workspace.store import Store

    older_than = parse_duration(args.older_than)
    if args.scheduler:
        return _remote(args, older_than)
    items = gc.find(older_than)
    freed = 0
    with get_runner() as runner:
        if args.yes and items:
            runner.jobs(scheduler="local_cwd")  # so that the history knows how they ended
        needed = _needed(runner.history.rows(), older_than)
    workspaces = Store().garbage(needed, older_than)
    if args.yes:
        freed = gc.collect(items) + Store().collect(needed, older_than)
    if args.json:
        rows = [{"app_id": i.app_id, "path": i.path, "size": i.size, "age": i.age} for i in items]
        removed = len(items) if args.yes else 0
        print_json({"found": rows, "workspaces": workspaces, "removed": removed, "freed": freed})
        return EXIT_OK
    if items:
        lines = [
            [item.app_id, format_duration(item.age), format_bytes(item.size), item.path] for item in items
        ]
        out(table(("JOB", "AGE", "SIZE", "PATH"), lines))
    code = f" and the code of {len(workspaces)} workspaces" if workspaces else ""
    if args.yes:
        note(f"removed {len(items)} jobs{code}, {format_bytes(freed)}")
    elif items or workspaces:
        total = format_bytes(sum(item.size for item in items))
        note(f"{len(items)} jobs, {total}{code}; nothing is removed without --yes")
    else:
        note(f"no job ended more than {args.older_than} ago")
    return EXIT_OK


def _remote(args: Namespace, older_than: float) -> int:
    from trainyard.cli.times import format_duration
    from trainyard.runner import get_runner

    with get_runner() as runner:
        scheduler = runner.scheduler(args.scheduler)
        cfg = runner.cfg_from_str(args.scheduler, *args.cfg)
        found = scheduler.leftovers(cfg, older_than)
        if args.yes and found:
            scheduler.remove_leftovers(cfg, [item.id for item in found])
    if args.json:
        rows = [{"id": item.id, "name": item.name, "age": item.age} for item in found]
        print_json({"found": rows, "removed": len(found) if args.yes else 0})
        return EXIT_OK
    if found:
        out(table(("NAME", "AGE", "ID"), [[i.name, format_duration(i.age), i.id] for i in found]))
    if not found:
        note(f"nothing that is older than {args.older_than} and that no job needs")
    elif args.yes:
        note(f"removed {len(found)}")
    else:
        note(f"{len(found)}; nothing is removed without --yes")
    return EXIT_OK


def _needed(rows: Iterable[JobRecord], older_than: float) -> set[str]:
    """Return the fingerprints of code that jobs still need."""
    from trainyard.runner.records import INTENT, SUBMITTED
    from trainyard.specs.status import is_terminal

    now = time.time()
    return {
        row.fingerprint
        for row in rows
        if row.fingerprint
        and row.phase in (INTENT, SUBMITTED)
        and (not is_terminal(row.state) or now - (row.ended_at or row.created_at) < older_than)
    }
