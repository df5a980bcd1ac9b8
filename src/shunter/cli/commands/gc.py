"""Remove leftovers of old jobs on this machine: logs, containers, images with their code, and code.

The code of jobs that are running, or ended recently, is kept. On a Docker daemon only leftovers of jobs in
this history are removed, or with --all those of all users.

With -s only leftovers on that scheduler are removed, such as job definitions of AWS Batch.

Without --yes the command only shows what it would remove.
"""

from __future__ import annotations

import os
from argparse import Namespace

from shunter.cli.console import counted, format_bytes, note, out, print_json, table
from shunter.cli.parser import Parser, add_json_option, add_scheduler_options
from shunter.errors import BackendError, ConfigError
from shunter.lab.lab_file import kept_code
from shunter.paths import remove_tree
from shunter.runner import Runner, get_runner
from shunter.runner.calls import unused_calls
from shunter.schedulers.api import Leftover
from shunter.schedulers.fetched_archive import cut_transfers
from shunter.schedulers.supervisor.directories import size_of
from shunter.specs.durations import parse_duration
from shunter.terminal import format_duration
from shunter.workspace.code_store import Store

# Their leftovers are on this machine.
LOCAL_SCHEDULERS = ("sweep", "local_cwd", "local_docker", "sagemaker_local")


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--older-than",
        default="30d",
        metavar="TIME",
        help="only jobs that ended at least this long ago: 12h, 7d (default: 30d)",
    )
    add_scheduler_options(parser, "remove leftovers on this scheduler")
    parser.add_flag(
        "-a", "--all", help="also leftovers of other users of a shared daemon, and of other state directories"
    )
    parser.add_flag("--yes", help="remove them")
    add_json_option(parser)


def run(args: Namespace) -> None:
    older_than = parse_duration(args.older_than)
    store = Store()
    with get_runner() as runner:
        schedulers = [args.scheduler] if args.scheduler else LOCAL_SCHEDULERS
        leftovers = {name: _leftovers(runner, name, args, older_than) for name in schedulers}
        needed = None if args.scheduler else runner.history.needed_code(older_than) | kept_code()
        code = [] if needed is None else store.garbage(needed, older_than)
        calls = [] if args.scheduler else unused_calls(runner.history.needed_calls(older_than), older_than)
        archives = [] if args.scheduler else cut_transfers(older_than)
        freed = 0
        if args.yes:
            for name, items in leftovers.items():
                if items:
                    runner.jobs(scheduler=name)  # so that the history has their final states
                    cfg = runner.cfg_from_str(name, *args.cfg)
                    freed += runner.scheduler(name).remove_leftovers(cfg, items)
            freed += store.collect(needed, older_than) if needed is not None else 0
            for folder in calls:
                freed += size_of([folder])
                remove_tree(folder)
            for path in archives:
                freed += os.path.getsize(path)
                os.unlink(path)
    data, rows, size = [], [], 0
    for name, items in leftovers.items():
        for item in items:
            facts = {field: getattr(item, field) for field in ("id", "app_id", "size", "age", "results")}
            data.append({"scheduler": name, "path": item.name, **facts})
            what = f"{item.name}, with results" if item.results else item.name
            rows.append([item.app_id or "-", format_duration(item.age), format_bytes(item.size), what])
            size += item.size
    if args.json:
        removed = len(data) if args.yes else 0
        print_json(
            {
                "found": data,
                "workspaces": code,
                "calls": len(calls),
                "archives": len(archives),
                "removed": removed,
                "freed": freed,
            }
        )
        return
    if rows:
        out(table(("JOB", "AGE", "SIZE", "WHAT"), rows))
    found = counted(len(rows), "leftover")
    workspaces = f" and the code of {len(code)} workspaces" if code else ""
    workspaces += f" and the arguments of {counted(len(calls), 'call')}" if calls else ""
    workspaces += f" and {counted(len(archives), 'cut transfer')} of results" if archives else ""
    if args.yes:
        note(f"removed {found}{workspaces}, {format_bytes(freed)}")
    elif rows or workspaces:
        note(f"{found}, {format_bytes(size)}{workspaces}; nothing is removed without --yes")
    else:
        note(f"no job ended more than {args.older_than} ago")


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
