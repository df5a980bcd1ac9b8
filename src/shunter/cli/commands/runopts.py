"""Show the options of schedulers: name, type, default and meaning."""

from __future__ import annotations

import textwrap
from argparse import Namespace
from typing import Any

from shunter.cli.console import print_result, warn
from shunter.cli.parser import Parser, add_json_option
from shunter.errors import ShunterError
from shunter.runner import get_runner
from shunter.specs.options import runopts


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "scheduler",
        nargs="?",
        metavar="SCHEDULER",
        help="only this scheduler's options",
        completer="scheduler_completer",
    )
    add_json_option(parser)


def run(args: Namespace) -> None:
    """Run the command. Schedulers that cannot be loaded only cause a warning."""
    options: dict[str, runopts] = {}
    with get_runner() as runner:
        for name in [args.scheduler] if args.scheduler else runner.scheduler_backends():
            try:
                options[name] = runner.scheduler_run_opts(name)
            except ShunterError as error:
                if args.scheduler:
                    raise
                warn(f"{name}: {error}")
    texts = [f"{name}:\n{textwrap.indent(repr(opts), '    ')}" for name, opts in options.items()]
    print_result(args.json, {name: _as_json(opts) for name, opts in options.items()}, ["\n\n".join(texts)])


def _as_json(options: runopts) -> dict[str, dict[str, Any]]:
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
