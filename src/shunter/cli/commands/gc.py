"""Remove leftovers of old jobs on this machine: logs, containers, images with their code, and code.

The code of jobs that are running, or ended recently, is kept. On a Docker daemon only leftovers of jobs in
this history are removed, or with --all those of all users.

With -s only leftovers on that scheduler are removed, such as job definitions of AWS Batch.

Without --yes the command only shows what it would remove.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from shunter.cli.console import counted, note, out, print_json, table
from shunter.cli.parser import add_json_option, add_scheduler_options
from shunter.cli.units import format_bytes, parse_duration
from shunter.errors import EXIT_OK, BackendError, ConfigError
from shunter.runner import Runner, get_runner
from shunter.schedulers.api import Leftover
from shunter.terminal import format_duration
from shunter.workspace.code_store import Store

# Their leftovers are on this machine.
LOCAL_SCHEDULERS = ("sweep", "local_cwd", "local_docker", "sagemaker_local")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        "--older_than",
        default="30d",
        metavar="TIME",
        help="only jobs that ended at least this long ago: 12h, 7d (default: 30d)",
    )
    add_scheduler_options(parser, "remove leftovers on this scheduler")
    parser.add_argument(
        "-a",
        "--all",
        action="store_true",
        help="also leftovers of other users of a shared daemon, and of other state directories",
    )
    parser.add_argument("--yes", action="store_true", help="remove them")
    add_json_option(parser)


def run(args: Namespace) -> int:
    older_than = parse_duration(args.older_than)
    store = Store()
    with get_runner() as runner:
        leftovers = {
            name: _leftovers(runner, name, args, older_than)
            for name in ([args.scheduler] if args.scheduler else LOCAL_SCHEDULERS)
        }
        needed = None if args.scheduler else runner.history.needed_code(older_than)
        code = [] if needed is None else store.garbage(needed, older_than)
        freed = 0
        if args.yes:
            freed = sum(_remove(runner, name, args, items) for name, items in leftovers.items() if items)
            freed += store.collect(needed, older_than) if needed is not None else 0
    if args.json:
        rows = [_as_json(name, item) for name, items in leftovers.items() for item in items]
        removed = len(rows) if args.yes else 0
        print_json({"found": rows, "workspaces": code, "removed": removed, "freed": freed})
    else:
        _show(args, [item for items in leftovers.values() for item in items], len(code), freed)
    return EXIT_OK


def _leftovers(runner: Runner, name: str, args: Namespace, older_than: float) -> list[Leftover]:
    try:
        leftovers = runner.scheduler(name).leftovers(runner.cfg_from_str(name, *args.cfg), older_than)
    except (BackendError, ConfigError):
        if args.scheduler:
            raise
        return []  # for example, there is no Docker daemon or no boto3
    if args.all:
        return leftovers
    # leave out leftovers of other users and of other state directories
    shared = [item for item in leftovers if item.shared]
    jobs = runner.history.known(name, {item.app_id for item in shared if item.app_id}, deleted=True)
    code = runner.history.known_code({item.fingerprint for item in shared if item.fingerprint})
    return [item for item in leftovers if not item.shared or item.app_id in jobs or item.fingerprint in code]


def _remove(runner: Runner, name: str, args: Namespace, items: list[Leftover]) -> int:
    runner.jobs(scheduler=name)  # so that the history has their final states
    return runner.scheduler(name).remove_leftovers(runner.cfg_from_str(name, *args.cfg), items)


def _as_json(scheduler: str, item: Leftover) -> dict[str, Any]:
    fields = {name: getattr(item, name) for name in ("id", "app_id", "size", "age", "results")}
    return {"scheduler": scheduler, "path": item.name, **fields}


def _show(args: Namespace, items: list[Leftover], workspaces: int, freed: int) -> None:
    if items:
        rows = [
            [
                item.app_id or "-",
                format_duration(item.age),
                format_bytes(item.size),
                f"{item.name}, with results" if item.results else item.name,
            ]
            for item in items
        ]
        out(table(("JOB", "AGE", "SIZE", "WHAT"), rows))
    number = counted(len(items), "leftover")
    code = f" and the code of {workspaces} workspaces" if workspaces else ""
    if args.yes:
        note(f"removed {number}{code}, {format_bytes(freed)}")
    elif items or workspaces:
        total = format_bytes(sum(item.size for item in items))
        note(f"{number}, {total}{code}; nothing is removed without --yes")
    else:
        note(f"no job ended more than {args.older_than} ago")
