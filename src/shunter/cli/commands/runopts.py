"""Show the options of schedulers: name, type, default and meaning."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from shunter.cli.console import out, print_json, warn
from shunter.cli.parser import add_json_option, complete_with
from shunter.errors import EXIT_OK, ShunterError
from shunter.runner import get_runner
from shunter.specs.options import runopts


def add_arguments(parser: ArgumentParser) -> None:
    action = parser.add_argument(
        "scheduler", nargs="?", metavar="SCHEDULER", help="only this scheduler's options"
    )
    complete_with(action, "scheduler_completer")
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Run the command. Schedulers that cannot be loaded only cause a warning."""
    found: dict[str, runopts] = {}
    with get_runner() as runner:
        if args.scheduler:
            found[args.scheduler] = runner.scheduler_run_opts(args.scheduler)
        for name in [] if args.scheduler else runner.scheduler_backends():
            try:
                found[name] = runner.scheduler_run_opts(name)
            except ShunterError as error:
                warn(f"{name}: {error}")
    if args.json:
        print_json({name: as_json(options) for name, options in found.items()})
    else:
        out("\n\n".join(f"{name}:\n{_indented(repr(options))}" for name, options in found.items()))
    return EXIT_OK


def as_json(options: runopts) -> dict[str, dict[str, Any]]:
    """Return options as JSON values; a secret's default is not shown."""
    return {
        name: {
            "type": option.opt_type_name,
            "default": None if option.secret else option.default,
            "required": option.is_required,
            "secret": option.secret,
            "help": option.help,
        }
        for name, option in options
    }


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))
