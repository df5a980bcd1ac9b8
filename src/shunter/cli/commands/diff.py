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

from shunter.cli.console import BOLD, CYAN, GREEN, RED, out, paint, print_json
from shunter.cli.parser import Parser, add_handle_argument, add_json_option, complete_with
from shunter.errors import EXIT_JOB_FAILED, EXIT_OK, UsageError
from shunter.runner import Runner, get_runner
from shunter.runner.jobsearch import recorded
from shunter.terminal import clean
from shunter.why.comparison import Comparison, FileChange
from shunter.workspace.code_store import Store

_MARKS = {"added": ("A", GREEN), "removed": ("D", RED), "modified": ("M", CYAN)}


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    other = parser.add_argument(
        "other", nargs="?", metavar="OTHER", help="the job to compare with; by default the previous one"
    )
    complete_with(other, "job_completer")
    parser.add_argument(
        "--stat", action="store_true", help="name the files that changed, without their lines"
    )
    parser.add_argument(
        "--exit-code", "--exit_code", action="store_true", help="exit with 1 if anything differs"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    with get_runner() as runner:
        comparison = _compare(runner, args)
        if args.json:
            print_json(comparison.to_json())
        else:
            for line in _lines(comparison, with_content=not args.stat):
                out(line)
    return EXIT_JOB_FAILED if args.exit_code and comparison else EXIT_OK


def _compare(runner: Runner, args: Namespace) -> Comparison:
    named = runner.resolve_handle(args.handle)
    record = recorded(runner.history, named, "compare")
    if args.other:
        other = runner.resolve_handle(args.other)
        if named == other:
            raise UsageError(f"cannot compare {named} with itself")
        return Comparison(record, recorded(runner.history, other, "compare"), Store())
    earlier = runner.history.before(record)
    if earlier is None:
        raise UsageError(
            f"no job named {record.name!r} was submitted before {named}",
            hint="Name the job to compare with: shunter diff JOB OTHER",
        )
    return Comparison(earlier, record, Store())


def _lines(comparison: Comparison, *, with_content: bool) -> Iterator[str]:
    yield f"{paint('-', RED, sys.stdout)} {comparison.first.handle}"
    yield f"{paint('+', GREEN, sys.stdout)} {comparison.second.handle}"
    fingerprints = [
        record.fingerprint[:12] for record in (comparison.first, comparison.second) if record.fingerprint
    ]
    names = " -> ".join(f"@{name}" for name in dict.fromkeys(fingerprints))
    yield from _heading("code", f"{comparison.code} ({names})" if names else comparison.code)
    for file in comparison.files:
        mark, colour = _MARKS[file.change]
        yield f"  {paint(mark, colour, sys.stdout)} {clean(file.path)}"
    if with_content:
        for file in comparison.files:
            yield from _content(file)
    for section, differences in comparison.values.items():
        if not differences:
            continue
        yield from _heading(section)
        for name, (old, new) in differences.items():
            yield from _pair(name, old, new)
    if not comparison and comparison.code == "same":
        yield "\nnothing differs"


def _heading(name: str, text: str = "") -> Iterator[str]:
    yield ""
    yield paint(name, BOLD, sys.stdout) + (f": {text}" if text else "")


def _pair(name: str, old: Any, new: Any) -> Iterator[str]:
    yield f"  {clean(name)}"
    if old is not None:
        yield paint(f"    - {_shown(old)}", RED, sys.stdout)
    if new is not None:
        yield paint(f"    + {_shown(new)}", GREEN, sys.stdout)


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return clean(shlex.join(value))
    return clean(value) if isinstance(value, str) else json.dumps(value)


def _content(file: FileChange) -> Iterator[str]:
    texts = file.texts()
    if texts is None:
        return
    header = {"added": ("/dev/null", file.path), "removed": (file.path, "/dev/null")}
    before, after = header.get(file.change, (file.path, file.path))
    lines = difflib.unified_diff(*texts, clean(before), clean(after), lineterm="")
    for index, line in enumerate(lines):
        if index == 0:
            yield ""
        colour = {"+": GREEN, "-": RED, "@": CYAN}.get(line[:1], "")
        yield paint("\t".join(map(clean, line.split("\t"))), BOLD if index < 2 else colour, sys.stdout)
