"""Show in full what `run` would do: the job, its options and their sources, its code, the request.

It also shows what changed since the last job of the same name, and what the scheduler does not support. With
--live it also asks the scheduler whether such a job could run now.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from shunter.cli.commands import run as run_command
from shunter.cli.commands.describe import app_text
from shunter.cli.commands.doctor import check_line
from shunter.cli.commands.workspace import largest
from shunter.cli.console import BOLD, out, paint, print_json, table, warn
from shunter.cli.parser import Parser
from shunter.cli.runrequest import RunRequest
from shunter.cli.shown_plan import request_text, shown_request
from shunter.cli.units import format_bytes
from shunter.errors import EXIT_BACKEND, EXIT_OK, ComponentArgumentError
from shunter.git import commit_of
from shunter.runner import Runner, get_runner
from shunter.runner.records import JobRecord
from shunter.runner.submit import intent_of
from shunter.schedulers.api import Check
from shunter.schedulers.capabilities import capabilities_of
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.terminal import clean
from shunter.why.comparison import Comparison
from shunter.workspace.code_store import Store

MOST_SECRETS = 10  # files that are named

parse = run_command.parse


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--live", action="store_true", help="ask the scheduler whether such a job could run now"
    )
    run_command.add_arguments(parser)


def run(args: Namespace) -> int:
    """Run the command. With ``--live`` it fails if a check does."""
    with get_runner() as runner:
        try:
            request, info = run_command.planned(args, runner)
        except ComponentArgumentError as error:
            run_command.hint_at_misplaced(error, args, "plan")
            raise
        checks = _checks(runner, info) if args.live else []
        plan = _plan(runner, request, info, checks, args.json)
    for warning in info.warnings:
        warn(warning)
    if args.json:
        print_json({name: part for name, part in plan.items() if part is not None})
    else:
        _show(plan, checks)
    return EXIT_BACKEND if any(check.ok is False for check in checks) else EXIT_OK


def _checks(runner: Runner, info: AppDryRunInfo[Any]) -> list[Check]:
    scheduler = runner.scheduler(info.scheduler)
    return scheduler.doctor(info.cfg, info) or [Check(info.scheduler, None, "has no checks")]


def _plan(
    runner: Runner, request: RunRequest, info: AppDryRunInfo[Any], checks: Iterable[Check], as_json: bool
) -> dict[str, Any]:
    """Return the plan as JSON values, without secrets."""
    scheduler = runner.scheduler(info.scheduler)
    planned = intent_of(scheduler, info)
    sources = request.sources()
    last, changes = _changes(runner, planned, info)
    lacking = [name for name, how in capabilities_of(scheduler).items() if not how]
    return {
        "scheduler": info.scheduler,
        "app": planned.app,
        "options": {
            name: {"value": value, "source": sources.get(name, "default")}
            for name, value in planned.cfg.items()
        },
        "python": planned.python and f"{planned.python} ({info.python_origin})",
        "code": _code(info),
        "lacking": lacking,
        "last": last,
        "changes": changes,
        "request": shown_request(info) if as_json else request_text(info),
        "checks": [{"name": c.name, "ok": c.ok, "text": c.text, "hint": c.hint} for c in checks] or None,
    }


def _changes(runner: Runner, planned: JobRecord, info: AppDryRunInfo[Any]) -> tuple[str, list[str]]:
    """Return the id of the last job of this name ("" without one), and what would differ from it."""
    last = runner.history.latest(planned.name)
    if last is None:
        return "", []
    manifest = None if info.shipment is None else info.shipment.manifest
    return last.app_id, list(Comparison(last, planned, Store(), manifest).summary())


def _code(info: AppDryRunInfo[Any]) -> dict[str, Any] | None:
    if info.shipment is None or info.shipment.manifest is None:
        return None
    manifest, report = info.shipment.manifest, info.shipment.report
    commit, dirty = commit_of(os.getcwd())
    return {
        "fingerprint": manifest.fingerprint,
        "files": manifest.files,
        "size": manifest.size,
        "largest": [{"path": entry.path, "size": entry.size} for entry in largest(manifest)],
        "left_out": {reason: len(paths) for reason, paths in sorted(report.left_out.items())},
        "secrets": report.secrets,
        "commit": commit,
        "uncommitted_changes": dirty,
        "shipment": info.shipment.plan(),
    }


# ---- as text


def _show(plan: dict[str, Any], checks: Iterable[Check]) -> None:
    out(f"{plan['scheduler']}: nothing is submitted\n")
    out(app_text(plan["app"]))
    _heading("Options")
    rows = [
        [name, "" if option["value"] is None else str(option["value"]), option["source"]]
        for name, option in plan["options"].items()
        if option["source"] != "default"
    ]
    if rows:
        out(table(("OPTION", "VALUE", "SOURCE"), [[clean(cell) for cell in row] for row in rows]))
    others = len(plan["options"]) - len(rows)
    out(f"  {others} have their defaults; `shunter runopts {plan['scheduler']}` shows them")
    if plan["python"]:
        _heading("Python")
        out(f"  {clean(plan['python'])}")
    if plan["code"]:
        _show_code(plan["code"])
    if plan["lacking"]:
        _heading(f"{plan['scheduler']} does not have")
        out(f"  {', '.join(plan['lacking'])}; `shunter schedulers` explains them")
    _heading(f"Changed since {plan['last']}" if plan["last"] else "No earlier job has this name")
    for line in plan["changes"] or (["nothing"] if plan["last"] else []):
        out(f"  {clean(line)}")
    _heading("Request")
    out(plan["request"])
    if checks:
        _heading("Checks")
        out("\n".join(map(check_line, checks)))


def _show_code(code: dict[str, Any]) -> None:
    _heading("Code")
    state = {True: ", with changes that are not committed", False: "", None: ""}[code["uncommitted_changes"]]
    commit = f", commit {code['commit'][:12]}{state}" if code["commit"] else ""
    out(f"  {code['files']} files, {format_bytes(code['size'])}, @{code['fingerprint'][:12]}{commit}")
    for entry in code["largest"]:
        out(f"  {format_bytes(entry['size']):>10}  {clean(entry['path'])}")
    left_out = ", ".join(f"{count} by {reason}" for reason, count in code["left_out"].items())
    if left_out:
        out(f"  left out: {clean(left_out)}; `shunter workspace show` names them")
    if code["secrets"]:
        out(f"  left out, since they look like secrets: {clean(', '.join(code['secrets'][:MOST_SECRETS]))}")


def _heading(text: str) -> None:
    out("")
    out(paint(text, BOLD, sys.stdout))
