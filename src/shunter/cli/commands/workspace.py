"""Show which code would be sent with a job: files, size, fingerprint, and what is left out and why.

shunter workspace show                  the current directory
shunter workspace show DIR              another directory
shunter workspace show DIR=SUB,DIR=SUB  several, as with run --workspace
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shunter.cli.console import BOLD, out, paint, print_json, table, warn
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
    parser.add_argument("action", nargs="?", default="show", metavar="show", help="what to do")
    parser.add_argument(
        "workspace", nargs="?", default=".", metavar="DIR", help="as with run --workspace (default: .)"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    if args.action != "show":
        raise UsageError(
            f"the action must be show, not {args.action!r}",
            hint="shunter workspace show [DIR]",
        )
    workspace = Workspace.from_str(args.workspace)
    if not workspace:
        raise UsageError("the workspace is empty", hint="Name a directory.")
    taken = snapshot(fetched(workspace))
    if args.json:
        print_json(_as_json(workspace, taken))
    else:
        _show(str(workspace), taken)
    return EXIT_OK


def _as_json(workspace: Any, taken: Snapshot) -> dict[str, Any]:
    manifest, report = taken.manifest, taken.report
    return {
        "projects": dict(workspace.projects),
        "fingerprint": manifest.fingerprint,
        "files": manifest.files,
        "size": manifest.size,
        "links": _count(taken, "link"),
        "directories": _count(taken, "dir"),
        "largest": [{"path": entry.path, "size": entry.size} for entry in largest(manifest)],
        "left_out": {reason: sorted(paths) for reason, paths in sorted(report.left_out.items())},
        "secrets": report.secrets,
        "problems": [{"path": path, "problem": what} for path, what in report.problems],
        "notes": report.notes,
    }


def _show(name: str, taken: Snapshot) -> None:
    manifest = taken.manifest
    links, folders = _count(taken, "link"), _count(taken, "dir")
    others = [f"{links} link{'' if links == 1 else 's'}"] if links else []
    others += [f"{folders} director{'y' if folders == 1 else 'ies'}"] if folders else []
    files = f"{manifest.files} file{'' if manifest.files == 1 else 's'}, {format_bytes(manifest.size)}"
    out(f"workspace    {clean(name)}")
    out(f"content      {', '.join([files, *others])}")
    out(f"fingerprint  {manifest.fingerprint}")
    out()
    rows = [[format_bytes(entry.size), entry.path] for entry in largest(manifest)]
    out(table(("SIZE", "LARGEST"), rows))
    _show_left_out(taken.report)
    for path, what in taken.report.problems[:_LISTED]:
        warn(clean(f"{path} {what}"))
    if len(taken.report.problems) > _LISTED:
        warn(f"and {len(taken.report.problems) - _LISTED} more problems, which --json lists")
    for note in replace(taken.report, problems=[]).warnings():
        warn(clean(note))


def _show_left_out(report: Report) -> None:
    if not report.left_out:
        return
    out()
    out(paint("left out", BOLD, sys.stdout))
    for reason, paths in sorted(report.left_out.items()):
        out(clean(f"  {len(paths)} by {_RULES.get(reason, reason)}: {_some(sorted(paths))}"))


def _some(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more


def largest(manifest: Manifest) -> list[Entry]:
    """Return the largest files, the largest first."""
    files = [entry for entry in manifest.entries if entry.kind == "file"]
    return sorted(files, key=lambda entry: (-entry.size, entry.path))[:LARGEST]


def _count(taken: Snapshot, kind: str) -> int:
    return sum(entry.kind == kind for entry in taken.manifest.entries)
