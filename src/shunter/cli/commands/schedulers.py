"""Show the schedulers and what each of them can do.

The answers come from the schedulers' code. `shunter runopts` shows their options.
"""

from __future__ import annotations

import sys
import textwrap
from argparse import Namespace
from functools import partial

from shunter.cli.console import print_result, table, table_width, terminal_size, warn
from shunter.cli.parser import Parser, add_json_option
from shunter.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from shunter.runner import get_runner
from shunter.schedulers.capabilities import COLUMNS, capabilities_of
from shunter.schedulers.short_names import full_name

Matrix = dict[str, dict[str, "bool | str"]]


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only these schedulers", completer="scheduler_completer"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    matrix: Matrix = {}
    code = EXIT_OK
    with get_runner() as runner:
        for name in map(full_name, args.names or runner.scheduler_backends()):
            try:
                matrix[name] = capabilities_of(runner.scheduler(name))
            except ConfigError as error:
                if args.names:
                    raise
                warn(error.message)  # an incompletely installed scheduler must not hide others
                code = code or (EXIT_OK if "not installed" in error.message else EXIT_CONFIG)
    width = max(map(len, COLUMNS))
    columns = terminal_size(1)[0]
    wrap = partial(textwrap.fill, width=columns, subsequent_indent=" " * (width + 2), break_on_hyphens=False)
    meanings = [wrap(f"{column:{width}}  {meaning}") for column, meaning in COLUMNS.items()]
    print_result(args.json, matrix, [_table(matrix, columns), "", *meanings])
    return code


def _table(matrix: Matrix, columns: int) -> str:
    """Return the matrix, a row for each capability; in parts where the terminal is not wide enough."""
    parts: list[list[str]] = [[]]
    for name in matrix:
        if parts[-1] and table_width(*_part(matrix, [*parts[-1], name])) > columns:
            parts.append([])
        parts[-1].append(name)
    return "\n\n".join(table(*_part(matrix, names), sys.stdout) for names in parts)


def _part(matrix: Matrix, names: list[str]) -> tuple[list[str], list[list[str]]]:
    rows = [[column, *(shown(matrix[name][column]) for name in names)] for column in COLUMNS]
    return ["", *names], rows


def shown(value: bool | str) -> str:
    """Return a capability in a word, or in a few."""
    return value if isinstance(value, str) else "yes" if value else "-"
