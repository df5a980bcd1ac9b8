"""Show in full what `run` would do: the job, its options and their sources, its code, the request.

It also shows what changed since the last job of the same name, what that job used of what it asked for, and
what the scheduler does not support. With --live it also asks the scheduler whether such a job could run now.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import Any

from shunter.cli.commands import run as run_command
from shunter.cli.commands.describe import app_text
from shunter.cli.commands.doctor import check_line, checks_json
from shunter.cli.commands.workspace import code_json
from shunter.cli.console import BOLD, format_bytes, out, paint, print_json, table, warn
from shunter.cli.job_request import JobRequest, requested_job
from shunter.cli.parser import Parser
from shunter.cli.requested_component import parse_component
from shunter.cli.shown_plan import environment_lines, request_text, shown_request
from shunter.errors import EXIT_BACKEND, EXIT_OK
from shunter.git import commit_of
from shunter.redaction import Redactor
from shunter.runner import Runner
from shunter.runner.resource_use import proposals, use_texts, used_by
from shunter.runner.submit import intent_of, jsonable
from shunter.schedulers.api import Check
from shunter.schedulers.capabilities import capabilities_of
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.terminal import clean
from shunter.why.comparison import Comparison
from shunter.workspace.code_store import Store

MOST_SECRETS = 10  # files that are named

parse = parse_component


def add_arguments(parser: Parser) -> None:
    parser.add_flag("--live", help="ask the scheduler whether such a job could run now")
    run_command.add_arguments(parser)


def run(args: Namespace) -> int:
    """Run the command. With ``--live`` it fails if a check does."""
    checks: list[Check] = []
    with requested_job(args) as (runner, request):
        info = runner.plan(request.submission)
        if args.live:
            checks = runner.scheduler(info.scheduler).doctor(info.cfg, info)
            checks = checks or [Check(info.scheduler, None, "has no checks")]
        plan = _plan(runner, request, info, asks_schedulers=args.live)
    plan["request"] = shown_request(info) if args.json else request_text(info)
    plan["checks"] = checks_json(checks) or None
    for warning in info.warnings:
        warn(warning)
    if args.json:
        print_json({name: part for name, part in plan.items() if part is not None})
    else:
        _show(plan, checks)
    return EXIT_BACKEND if any(check.ok is False for check in checks) else EXIT_OK


def _plan(
    runner: Runner, request: JobRequest, info: AppDryRunInfo[Any], *, asks_schedulers: bool
) -> dict[str, Any]:
    """Return the plan as JSON values, without secrets."""
    scheduler = runner.scheduler(info.scheduler)
    planned = intent_of(scheduler, info)
    manifest = None if info.shipment is None else info.shipment.manifest
    last = runner.history.latest(planned.name)
    # what a remote job used is in its log: only --live asks schedulers
    used = used_by(runner, last.handle, reads_logs=asks_schedulers) if last is not None else {}
    arguments = Redactor().json({name: jsonable(each.value) for name, each in request.arguments.items()})
    code: dict[str, Any] | None = None
    if manifest is not None:
        code = code_json(manifest, info.shipment.report)
        code["left_out"] = {reason: len(paths) for reason, paths in code["left_out"].items()}
        code["commit"], code["uncommitted_changes"] = commit_of(os.getcwd())
        code["shipment"] = info.shipment.plan()
    return {
        "scheduler": info.scheduler,
        "app": planned.app,
        "arguments": {
            name: {"value": value, "source": request.arguments[name].origin}
            for name, value in arguments.items()
        },
        "options": {
            name: {"value": value, "source": request.origins.get(name, "default")}
            for name, value in planned.cfg.items()
        },
        "python": planned.python and f"{planned.python} ({info.python_origin})",
        "environments": Redactor().json(dict(info.environments)) or None,
        "code": code,
        "lacking": [name for name, how in capabilities_of(scheduler).items() if not how],
        "last": last.app_id if last is not None else "",
        "used": use_texts(last.app, used) if last is not None else [],
        "proposals": proposals(planned.app, used),
        "changes": list(Comparison(last, planned, Store(), manifest).summary()) if last is not None else [],
    }


# ---- as text


def _show(plan: dict[str, Any], checks: list[Check]) -> None:
    out(f"{plan['scheduler']}: nothing is submitted\n")
    out(app_text(plan["app"]))
    if plan["arguments"]:
        _heading("Parameters")
        out(table(("PARAMETER", "VALUE", "SOURCE"), _rows(plan["arguments"])))
    _heading("Options")
    rows = _rows(plan["options"])
    if rows:
        out(table(("OPTION", "VALUE", "SOURCE"), rows))
    others = len(plan["options"]) - len(rows)
    out(f"  {others} have their defaults; `shunter runopts {plan['scheduler']}` shows them")
    if plan["python"]:
        _heading("Python")
        out(f"  {clean(plan['python'])}")
    for name, facts in (plan["environments"] or {}).items():
        _heading(f"Environment of {name}")
        out("\n".join(f"  {clean(line)}" for line in environment_lines(facts)))
    if plan["code"]:
        _heading("Code")
        _show_code(plan["code"])
    if plan["lacking"]:
        _heading(f"{plan['scheduler']} does not have")
        out(f"  {', '.join(plan['lacking'])}; `shunter schedulers` explains them")
    _heading(f"Changed since {plan['last']}" if plan["last"] else "No earlier job has this name")
    for line in plan["changes"] or (["nothing"] if plan["last"] else []):
        out(f"  {clean(line)}")
    if plan["used"]:
        _heading(f"Resources of {plan['last']}")
        out("\n".join(f"  {clean(line)}" for line in [*plan["used"], *plan["proposals"]]))
    _heading("Request")
    out(plan["request"])
    if checks:
        _heading("Checks")
        out("\n".join(map(check_line, checks)))


def _rows(values: dict[str, Any]) -> list[list[str]]:
    """Return the rows of a table of values with their sources; defaults are left out."""
    return [
        [clean(name), "" if entry["value"] is None else clean(str(entry["value"])), clean(entry["source"])]
        for name, entry in values.items()
        if entry["source"] != "default"
    ]


def _show_code(code: dict[str, Any]) -> None:
    state = ", with changes that are not committed" if code["uncommitted_changes"] else ""
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
