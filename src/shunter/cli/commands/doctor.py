"""Check whether jobs could run on a scheduler: credentials, queue, roles, logs, permissions.

Options that are not given here come from the configuration, as for `run`.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from shunter import torchx_alias
from shunter.cli.console import note, print_result
from shunter.cli.parser import Parser, add_json_option, add_scheduler_options
from shunter.errors import EXIT_BACKEND, EXIT_OK
from shunter.runner import get_runner
from shunter.schedulers.responses import Check


def add_arguments(parser: Parser) -> None:
    add_scheduler_options(parser, "the scheduler (default: that of `shunter run`)")
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Run the command. It fails if a check fails."""
    with get_runner() as runner:
        chosen = runner.config.command("run").get("scheduler")
        configured = chosen.value if chosen is not None else runner.default_scheduler()
        scheduler = runner.scheduler(args.scheduler or configured)
        given = runner.cfg_from_str(scheduler.backend, *args.cfg)
        checks = scheduler.doctor({**scheduler.context.configured_options(), **given})
    checks = checks or [Check(scheduler.backend, None, f"{scheduler.backend} has no checks")]
    checks.append(_which_torchx())
    failed = sum(check.ok is False for check in checks)
    print_result(args.json, checks_json(checks), map(check_line, checks))
    if not args.json:
        note(f"{failed} of {len(checks)} checks failed" if failed else "jobs should run")
    return EXIT_BACKEND if failed else EXIT_OK


def _which_torchx() -> Check:
    """Tell what `import torchx` finds."""
    place = torchx_alias.installed_torchx()
    if torchx_alias.switched_off() or (place and not torchx_alias.comes_first()):
        finding = f"the TorchX in {place}" if place else "nothing"
        hint = f"{torchx_alias.VARIABLE}={torchx_alias.INSTEAD} puts shunter in its place." if place else ""
    else:
        finding, hint = "shunter", f"The TorchX in {place} is not used." if place else ""
    return Check("torchx", None, f"`import torchx` finds {finding}", hint)


def checks_json(checks: list[Check]) -> list[dict[str, Any]]:
    """Return findings as JSON values."""
    return [{"name": c.name, "ok": c.ok, "text": c.text, "hint": c.hint} for c in checks]


def check_line(check: Check) -> str:
    """Return a finding as text: its mark, and what to do about it."""
    mark = {True: "ok  ", False: "FAIL", None: "-   "}[check.ok]
    text = check.text.replace("\n", "\n    ")
    hint = f"\n    {check.hint}" if check.hint else ""
    return f"{mark} {check.name}: {text}{hint}"
