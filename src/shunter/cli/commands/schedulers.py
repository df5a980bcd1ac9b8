"""Show the schedulers and what each of them can do.

The answers come from the schedulers' code. `shunter runopts` shows their options.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from shunter.cli.console import is_tty, print_result, table, terminal_size, warn
from shunter.cli.parser import add_json_option, complete_with
from shunter.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from shunter.runner import get_runner
from shunter.schedulers.capabilities import COLUMNS, capabilities_of

Matrix = dict[str, dict[str, "bool | str"]]


def add_arguments(parser: ArgumentParser) -> None:
    names = parser.add_argument("names", nargs="*", metavar="NAME", help="only these schedulers")
    complete_with(names, "scheduler_completer")
    add_json_option(parser)


def run(args: Namespace) -> int:
    matrix: Matrix = {}
    code = EXIT_OK
    with get_runner() as runner:
        for name in args.names or runner.scheduler_backends():
            try:
                matrix[name] = capabilities_of(runner.scheduler(name))
            except ConfigError as error:
                if args.names:
                    raise
                warn(error.message)  # an incompletely installed scheduler must not hide others
                code = code or (EXIT_OK if "not installed" in error.message else EXIT_CONFIG)
    width = max(map(len, COLUMNS))
    meanings = [f"{column:{width}}  {meaning}" for column, meaning in COLUMNS.items()]
    columns = terminal_size(1)[0] if is_tty(sys.stdout) else sys.maxsize
    print_result(args.json, matrix, [_table(matrix, columns), "", *meanings])
    return code


def _table(matrix: Matrix, columns: int) -> str:
    """Return the matrix, a row for each capability; in parts where the terminal is not wide enough."""
    parts: list[list[str]] = []
    room = 0
    for name, values in matrix.items():
        width = 2 + max(len(name), *(len(shown(value)) for value in values.values()))
        if width > room or not parts:
            parts.append([])
            room = columns - max(map(len, COLUMNS))
        parts[-1].append(name)
        room -= width
    return "\n\n".join(
        table(
            ("", *names),
            [[column, *(shown(matrix[name][column]) for name in names)] for column in COLUMNS],
            sys.stdout,
        )
        for names in parts
    )


def shown(value: bool | str) -> str:
    """Return a capability in a word, or in a few."""
    return value if isinstance(value, str) else "yes" if value else "-"
