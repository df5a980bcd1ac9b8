"""Show what changed between two jobs: code, arguments, options, environment, definition.

With one job, it is compared with the previous job of the same name.
"""

from __future__ import annotations

import difflib
import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from shunter.cli.console import BOLD, CYAN, GREEN, RED, paint, print_result
from shunter.cli.parser import Parser, add_handle_argument, add_json_option
from shunter.errors import EXIT_JOB_FAILED, EXIT_OK, UsageError
from shunter.runner import Runner, get_runner
from shunter.runner.jobsearch import recorded
from shunter.runner.records import JobRecord
from shunter.terminal import clean
from shunter.why.comparison import Comparison, FileChange
from shunter.workspace.code_store import Store

_MARKS = {"added": ("A", GREEN), "removed": ("D", RED), "modified": ("M", CYAN)}


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    parser.add_argument(
        "other",
        nargs="?",
        metavar="OTHER",
        help="the job to compare with; by default the previous one",
        completer="job_completer",
    )
    parser.add_flag("--stat", help="name the files that changed, without their lines")
    parser.add_flag("--exit-code", help="exit with 1 if anything differs")
    add_json_option(parser)


def run(args: Namespace) -> int:
    with get_runner() as runner:
        first, second = _records(runner, args)
        comparison = Comparison(first, second, Store())
        print_result(args.json, comparison.to_json(), _lines(comparison, with_content=not args.stat))
    return EXIT_JOB_FAILED if args.exit_code and comparison else EXIT_OK


def _records(runner: Runner, args: Namespace) -> tuple[JobRecord, JobRecord]:
    """Return the two jobs to compare; the earlier one first if only one is named."""
    named = runner.resolve_handle(args.handle)
    record = recorded(runner.history, named, "compare")
    if args.other:
        other = runner.resolve_handle(args.other)
        if named == other:
            raise UsageError(f"cannot compare {named} with itself")
        return record, recorded(runner.history, other, "compare")
    earlier = runner.history.before(record)
    if earlier is None:
        raise UsageError(
            f"no job named {record.name!r} was submitted before {named}",
            hint="Name the job to compare with: shunter diff JOB OTHER",
        )
    return earlier, record


def _lines(comparison: Comparison, *, with_content: bool) -> Iterator[str]:
    first, second = comparison.first, comparison.second
    yield f"{paint('-', RED, sys.stdout)} {first.handle}"
    yield f"{paint('+', GREEN, sys.stdout)} {second.handle}"
    fingerprints = dict.fromkeys(
        f"@{record.fingerprint[:12]}" for record in (first, second) if record.fingerprint
    )
    names = f" ({' -> '.join(fingerprints)})" if fingerprints else ""
    yield f"\n{paint('code', BOLD, sys.stdout)}: {comparison.code}{names}"
    for file in comparison.files:
        mark, colour = _MARKS[file.change]
        yield f"  {paint(mark, colour, sys.stdout)} {clean(file.path)}"
    for file in comparison.files if with_content else ():
        yield from _content(file)
    for section, differences in comparison.values.items():
        if differences:
            yield f"\n{paint(section, BOLD, sys.stdout)}"
        for name, (old, new) in differences.items():
            yield f"  {clean(name)}"
            if old is not None:
                yield paint(f"    - {_shown(old)}", RED, sys.stdout)
            if new is not None:
                yield paint(f"    + {_shown(new)}", GREEN, sys.stdout)
    if not comparison and comparison.code == "same":
        yield "\nnothing differs"


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return clean(shlex.join(value))
    return clean(value) if isinstance(value, str) else json.dumps(value)


def _content(file: FileChange) -> Iterator[str]:
    """Yield the lines of a file that changed, as `diff -u` shows them."""
    texts = file.texts()
    if texts is None:
        return
    before = "/dev/null" if file.change == "added" else clean(file.path)
    after = "/dev/null" if file.change == "removed" else clean(file.path)
    for index, line in enumerate(difflib.unified_diff(*texts, before, after, lineterm="")):
        if index == 0:
            yield ""
        colour = BOLD if index < 2 else {"+": GREEN, "-": RED, "@": CYAN}.get(line[:1], "")
        yield paint("\t".join(map(clean, line.split("\t"))), colour, sys.stdout)
