"""Show which code would be sent with a job: files, size, fingerprint, and what is left out and why.

shunter workspace show                  the current directory
shunter workspace show DIR              another directory
shunter workspace show DIR=SUB,DIR=SUB  several, as with run --workspace
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shunter.cli.console import BOLD, counted, paint, print_result, table, warn
from shunter.cli.parser import add_json_option
from shunter.cli.units import format_bytes
from shunter.errors import EXIT_OK, UsageError
from shunter.specs.workspace import Workspace
from shunter.terminal import clean
from shunter.workspace.fetching import fetched
from shunter.workspace.manifest import Entry, Manifest
from shunter.workspace.selection import Report
from shunter.workspace.snapshot import Snapshot, snapshot

LARGEST = 10
# How many paths of each rule are shown; --json has them all.
_NAMED = 5
_LISTED = 10
_RULES = {"git": "Git", "default": "shunter"}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", default="show", choices=["show"], metavar="show", help="what to do"
    )
    parser.add_argument(
        "workspace", nargs="?", default=".", metavar="DIR", help="as with run --workspace (default: .)"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    workspace = Workspace.from_str(args.workspace)
    if not workspace:
        raise UsageError("the workspace is empty", hint="Name a directory.")
    code = snapshot(fetched(workspace))
    print_result(args.json, _as_json(workspace, code), _lines(workspace, code))
    if not args.json:
        _warn(code.report)
    return EXIT_OK


def _as_json(workspace: Workspace, code: Snapshot) -> dict[str, Any]:
    manifest, report = code.manifest, code.report
    return {
        "projects": dict(workspace.projects),
        "fingerprint": manifest.fingerprint,
        "files": manifest.files,
        "size": manifest.size,
        "links": _number_of(manifest, "link"),
        "directories": _number_of(manifest, "dir"),
        "largest": [{"path": entry.path, "size": entry.size} for entry in largest(manifest)],
        "left_out": {reason: sorted(paths) for reason, paths in sorted(report.left_out.items())},
        "secrets": report.secrets,
        "problems": [{"path": path, "problem": problem} for path, problem in report.problems],
        "notes": report.notes,
    }


def _lines(workspace: Workspace, code: Snapshot) -> Iterator[str]:
    manifest, report = code.manifest, code.report
    content = [f"{counted(manifest.files, 'file')}, {format_bytes(manifest.size)}"]
    for kind, noun in (("link", "link"), ("dir", "directory")):
        if number := _number_of(manifest, kind):
            content.append(counted(number, noun))
    yield f"workspace    {clean(str(workspace))}"
    yield f"content      {', '.join(content)}"
    yield f"fingerprint  {manifest.fingerprint}\n"
    yield table(("SIZE", "LARGEST"), [[format_bytes(entry.size), entry.path] for entry in largest(manifest)])
    if report.left_out:
        yield f"\n{paint('left out', BOLD, sys.stdout)}"
    for reason, paths in sorted(report.left_out.items()):
        more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
        examples = ", ".join(sorted(paths)[:_NAMED])
        yield clean(f"  {len(paths)} by {_RULES.get(reason, reason)}: {examples}{more}")


def _warn(report: Report) -> None:
    for path, problem in report.problems[:_LISTED]:
        warn(clean(f"{path} {problem}"))
    if len(report.problems) > _LISTED:
        warn(f"and {len(report.problems) - _LISTED} more problems, which --json lists")
    for warning in replace(report, problems=[]).warnings():
        warn(clean(warning))


def largest(manifest: Manifest) -> list[Entry]:
    """Return the largest files, the largest first."""
    files = [entry for entry in manifest.entries if entry.kind == "file"]
    return sorted(files, key=lambda entry: (-entry.size, entry.path))[:LARGEST]


def _number_of(manifest: Manifest, kind: str) -> int:
    return sum(entry.kind == kind for entry in manifest.entries)
