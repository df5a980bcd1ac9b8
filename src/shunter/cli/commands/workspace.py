"""Show which code would be sent with a job: files, size, fingerprint, and what is left out and why.

shunter workspace show                  the current directory
shunter workspace show DIR              another directory
shunter workspace show DIR=SUB,DIR=SUB  several, as with run --workspace
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shunter.cli.console import BOLD, counted, format_bytes, paint, print_result, table, warn
from shunter.cli.parser import Parser, add_json_option
from shunter.errors import UsageError
from shunter.specs.workspace import Workspace
from shunter.terminal import clean
from shunter.workspace.fetching import fetched
from shunter.workspace.manifest import Manifest
from shunter.workspace.shipment import Report
from shunter.workspace.snapshot import snapshot

LARGEST = 10
# How many paths of each rule are shown; --json has them all.
_NAMED = 5
_LISTED = 10
_RULES = {"git": "Git", "default": "shunter"}


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "action", nargs="?", default="show", choices=["show"], metavar="show", help="what to do"
    )
    parser.add_argument(
        "workspace", nargs="?", default=".", metavar="DIR", help="as with run --workspace (default: .)"
    )
    add_json_option(parser)


def run(args: Namespace) -> None:
    workspace = Workspace.from_str(args.workspace)
    if not workspace:
        raise UsageError("the workspace is empty", hint="Name a directory.")
    code = snapshot(fetched(workspace))
    data, report = code_json(code.manifest, code.report), code.report
    kinds = [entry.kind for entry in code.manifest.entries]
    data |= {
        "projects": dict(workspace.projects),
        "links": kinds.count("link"),
        "directories": kinds.count("dir"),
        "problems": [{"path": path, "problem": problem} for path, problem in report.problems],
        "notes": report.notes,
    }
    print_result(args.json, data, _lines(str(workspace), data))
    if args.json:
        return
    for path, problem in report.problems[:_LISTED]:
        warn(clean(f"{path} {problem}"))
    if len(report.problems) > _LISTED:
        warn(f"and {len(report.problems) - _LISTED} more problems, which --json lists")
    for warning in replace(report, problems=[]).warnings():
        warn(clean(warning))


def code_json(manifest: Manifest, report: Report) -> dict[str, Any]:
    """Return what code consists of, and what is left out, as JSON values."""
    files = [entry for entry in manifest.entries if entry.kind == "file"]
    largest = sorted(files, key=lambda entry: (-entry.size, entry.path))[:LARGEST]
    return {
        "fingerprint": manifest.fingerprint,
        "files": manifest.files,
        "size": manifest.size,
        "largest": [{"path": entry.path, "size": entry.size} for entry in largest],
        "left_out": {reason: sorted(paths) for reason, paths in sorted(report.left_out.items())},
        "secrets": report.secrets,
    }


def _lines(workspace: str, data: dict[str, Any]) -> Iterator[str]:
    content = [counted(data["files"], "file"), format_bytes(data["size"])]
    content += [counted(data["links"], "link")] if data["links"] else []
    content += [counted(data["directories"], "directory")] if data["directories"] else []
    yield f"workspace    {clean(workspace)}"
    yield f"content      {', '.join(content)}"
    yield f"fingerprint  {data['fingerprint']}\n"
    largest = [[format_bytes(file["size"]), file["path"]] for file in data["largest"]]
    yield table(("SIZE", "LARGEST"), largest)
    if data["left_out"]:
        yield f"\n{paint('left out', BOLD, sys.stdout)}"
    for reason, paths in data["left_out"].items():
        more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
        yield clean(f"  {len(paths)} by {_RULES.get(reason, reason)}: {', '.join(paths[:_NAMED])}{more}")
