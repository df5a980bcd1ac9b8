"""What `--dryrun` and `plan` print of a job that is not submitted, without secrets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from shunter.cli.console import format_bytes, out, print_json, warn
from shunter.redaction import Redactor, secrets_in
from shunter.runner import Runner
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.serialize import to_json


def show_plan(runner: Runner, info: AppDryRunInfo[Any], as_json: bool) -> None:
    """Print a job that was not submitted, without secrets: its definition, options, code and request."""
    redactor = Redactor()
    cfg = redactor.options(info.cfg, runner.scheduler_run_opts(info.scheduler))
    app = redactor.json({} if info.app is None else to_json(info.app))
    request = shown_request(info) if as_json else request_text(info)
    code = None if info.shipment is None else info.shipment.plan()
    environments = redactor.json(dict(info.environments))
    for warning in info.warnings:
        warn(warning)
    if as_json:
        parts = {"scheduler": info.scheduler, "cfg": cfg, "app": app, "code": code, "request": request}
        if environments:
            parts["environments"] = environments
        print_json(parts if code else {name: part for name, part in parts.items() if name != "code"})
        return
    out(f"# job\n{json.dumps(app, indent=2)}\n")
    out(f"# options of {info.scheduler}\n{json.dumps(cfg, default=str, indent=2)}\n")
    if environments:
        out(f"# environments\n{json.dumps(environments, indent=2)}\n")
    if code:
        out(f"# code\n{json.dumps(code, indent=2)}\n")
    out(f"# request\n{request}")


def environment_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return what a person reads of a Python environment that travels with a role."""
    size = "its size is known once it is built"
    if facts["download"] is not None:
        size = f"at most {format_bytes(facts['download'])} to download, by its lock"
    lines = [f"{facts['source']}: {facts['place']}", size]
    if facts["built"]:
        lines = [f"{facts['source']}: is built, {format_bytes(facts['size'])}", facts["place"]]
    packages = ", ".join(facts["packages"])
    needs = f"Python {facts['requires_python']}" if facts["requires_python"] else ""
    return [*lines, *filter(None, [packages, needs])]


def request_text(info: AppDryRunInfo[Any]) -> str:
    """Return the scheduler's request as text for a person."""
    if not hasattr(info.request, "shown") and "__str__" in vars(type(info.request)):
        # a script, say, which JSON would make one long line; in quotes, secrets may be hard to tell
        secrets = secrets_in(None if info.app is None else to_json(info.app))
        return Redactor(secrets=secrets).text(str(info.request))
    request = shown_request(info)
    return request if isinstance(request, str) else json.dumps(request, default=str, indent=2)


def shown_request(info: AppDryRunInfo[Any]) -> Any:
    """Return the scheduler's request as JSON values if it can be, otherwise as text."""
    request = info.request
    if hasattr(request, "shown"):  # it hides its secrets itself
        return request.shown()
    if is_dataclass(request) and not isinstance(request, type):
        request = dataclasses.asdict(request)
    if isinstance(request, (dict, list)):
        return Redactor().json(request)
    return Redactor().text(repr(info))
