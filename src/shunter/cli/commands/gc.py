"""Remove leftovers of old jobs on this machine: logs, containers, images with their code, and code.

The code of jobs that are running, or ended recently, is kept. On a Docker daemon only leftovers of jobs in
this history are removed, or with --all those of all users.

With -s only leftovers on that scheduler are removed, such as job definitions of AWS Batch.

Without --yes the command only shows what it would remove.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shunter.cli.console import note, out, print_json, table
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
    schedulers = (args.scheduler,) if args.scheduler else LOCAL_SCHEDULERS
    store = Store()
    with get_runner() as runner:
        found = {name: _leftovers(runner, name, args, older_than) for name in schedulers}
        needed = None if args.scheduler else runner.history.needed_code(older_than)
        code = [] if needed is None else store.garbage(needed, older_than)
        freed = 0
        if args.yes:
            freed = sum(_remove(runner, name, args, items) for name, items in found.items() if items)
            freed += store.collect(needed, older_than) if needed is not None else 0
    if args.json:
        _print_json(found, code, freed if args.yes else None)
        return EXIT_OK
    _print(args, found, code, freed)
    return EXIT_OK


def _leftovers(runner: Runner, name: str, args: Namespace, older_than: float) -> list[Leftover]:
    try:
        scheduler = runner.scheduler(name)
        found = scheduler.leftovers(runner.cfg_from_str(name, *args.cfg), older_than)
        return found if args.all else _own(runner, name, found)
    except (BackendError, ConfigError):
        if args.scheduler:
            raise
        return []  # for example, there is no Docker daemon or no boto3


def _own(runner: Runner, name: str, found: list[Leftover]) -> list[Leftover]:
    """Leave out leftovers of other users and of other state directories."""
    shared = [item for item in found if item.shared]
    jobs = runner.history.known(name, {item.app_id for item in shared if item.app_id}, deleted=True)
    code = runner.history.known_code({item.fingerprint for item in shared if item.fingerprint})
    return [item for item in found if not item.shared or item.app_id in jobs or item.fingerprint in code]


def _remove(runner: Runner, name: str, args: Namespace, items: list[Leftover]) -> int:
    runner.jobs(scheduler=name)  # so that the history has their final states
    return runner.scheduler(name).remove_leftovers(runner.cfg_from_str(name, *args.cfg), items)


def _print_json(found: dict[str, list[Leftover]], code: list[str], freed: int | None) -> None:
    rows = [
        {
            "scheduler": name,
            "id": item.id,
            "app_id": item.app_id,
            "path": item.name,
            "size": item.size,
            "age": item.age,
            "results": item.results,
        }
        for name, items in found.items()
        for item in items
    ]
    removed = 0 if freed is None else len(rows)
    print_json({"found": rows, "workspaces": code, "removed": removed, "freed": freed or 0})


def _print(args: Namespace, found: dict[str, list[Leftover]], code: list[str], freed: int) -> None:
    items = [item for group in found.values() for item in group]
    if items:
        lines = [[i.app_id or "-", format_duration(i.age), format_bytes(i.size), _what(i)] for i in items]
        out(table(("JOB", "AGE", "SIZE", "WHAT"), lines))
    also = f" and the code of {len(code)} workspaces" if code else ""
    if args.yes:
        note(f"removed {_count(len(items))}{also}, {format_bytes(freed)}")
    elif items or code:
        total = format_bytes(sum(item.size for item in items))
        note(f"{_count(len(items))}, {total}{also}; nothing is removed without --yes")
    else:
        note(f"no job ended more than {args.older_than} ago")


def _what(item: Leftover) -> str:
    return f"{item.name}, with results" if item.results else item.name


def _count(number: int) -> str:
    return f"{number} leftover{'' if number == 1 else 's'}"
