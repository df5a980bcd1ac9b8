"""Bring the results of a job to this machine: its model, other output and checkpoints.

Patterns choose files by their paths: `shunter fetch JOB '*.pt' model`. A fetch that was interrupted goes on
where it ended. While a job runs, this brings what is there so far. The results of several replicas go to
ROLE/ID below the directory.
"""

from __future__ import annotations

import sys
from argparse import Namespace

from shunter.cli.console import (
    TerminalProgress,
    counted,
    format_bytes,
    format_time,
    interrupt_message,
    note,
    out,
    print_json,
    show_error,
    table,
    warn,
)
from shunter.cli.job_names import select_replicas, split_target
from shunter.cli.parser import Parser
from shunter.errors import EXIT_OK
from shunter.runner import get_runner
from shunter.runner.fetched_results import UNCHANGED, Chosen, Fetched, chosen_files, fetch
from shunter.specs.handles import parse_app_handle


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "handle",
        nargs="?",
        metavar="HANDLE[/ROLE[/IDS]]",
        help="a job: its handle, the beginning of its id, or - for the latest (the default); optionally with "
        "a role and replicas, such as /trainer/0,2",
        completer="job_completer",
    )
    parser.add_argument(
        "patterns", nargs="*", metavar="PATTERN", help="only files whose paths match, or in this directory"
    )
    parser.add_argument(
        "--to", metavar="DIR", help="directory for the files (default: one named by the job's id)"
    )
    parser.add_flag("--list", help="only show the files and their sizes")
    parser.add_flag("--force", help="overwrite files of the directory that differ")
    parser.add_flag("--json", help="print as JSON")


def run(args: Namespace) -> int:
    """Run the command. If a file cannot be fetched, the others still are."""
    with get_runner() as runner:
        job, choices = split_target(args.handle or "-")
        handle = runner.resolve_handle(job)
        replicas = select_replicas(runner.replicas(handle), choices) if choices else None
        sources = runner.result_sources(handle, replicas)
        progress = TerminalProgress(sys.stderr)
        with interrupt_message("interrupted; the same command goes on from here"):
            chosen = chosen_files(sources, args.patterns, progress)
        progress.clear()
        if args.list:
            _show(chosen, as_json=args.json)
            for text in (text for source in sources for text in source.place.left_out):
                note(f"left out: {text}")
            return EXIT_OK
        target = args.to or parse_app_handle(handle).app_id
        with interrupt_message("interrupted; the same command goes on from here"):
            fetched = fetch(chosen, target, progress, force=args.force)
        progress.clear()
    return _report(fetched, target, as_json=args.json)


def _show(chosen: list[Chosen], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "role": each.source.role,
                    "replica": each.source.replica,
                    "path": each.file.path,
                    "size": each.file.size,
                    "modified": each.file.modified,
                }
                for each in chosen
            ]
        )
        return
    rows = [(each.name, format_bytes(each.file.size), format_time(each.file.modified)) for each in chosen]
    out(table(("FILE", "SIZE", "CHANGED"), rows))


def _report(fetched: Fetched, target: str, *, as_json: bool) -> int:
    """Print what was fetched; returns the exit code, that of the first problem."""
    if as_json:
        print_json(
            {
                "to": target,
                "files": [vars(file) for file in fetched.files],
                "left_out": fetched.left_out,
                "changed": fetched.changed,
                "problems": [error.message for error in fetched.problems],
            }
        )
    else:
        for text in fetched.left_out:
            note(f"left out: {text}")
        new = [file for file in fetched.files if file.state != UNCHANGED]
        old = len(fetched.files) - len(new)
        size = format_bytes(sum(file.size for file in new))
        unchanged = f"; {counted(old, 'file')} {'was' if old == 1 else 'were'} there already" if old else ""
        out(f"fetched {counted(len(new), 'file')} ({size}) to {target}{unchanged}")
    if fetched.changed:
        warn(
            f"{counted(len(fetched.changed), 'file')} changed meanwhile, such as {fetched.changed[0]}: fetch "
            "again with --force when the job has ended"
        )
    for error in fetched.problems:
        show_error(error)
    return fetched.problems[0].exit_code if fetched.problems else EXIT_OK
