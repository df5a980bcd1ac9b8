"""The argparse parser, for help texts, errors and unusual command lines."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from shunter.errors import UsageError

# argparse imports `locale` and looks for a translation of every text; there are none
argparse._ = str  # type: ignore[attr-defined]


def _formatter(prog: str) -> argparse.HelpFormatter:
    # argparse makes a formatter for every option; without a width each imports shutil, which is slow
    width = min(terminal_columns(), 100)
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=width)


class FullParser(argparse.ArgumentParser):
    """A parser that raises `UsageError` where argparse would write a message and exit."""

    def __init__(self, prog: str = "", description: str = "", **more: Any) -> None:
        # argparse makes the parsers of a plugin's subcommands from this class too
        options: dict[str, Any] = {"allow_abbrev": False, "formatter_class": _formatter, **more}
        super().__init__(prog=prog, description=description, **options)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error as a `UsageError`."""
        raise UsageError(f"{self.prog}: {message}", hint=f"`{self.prog} --help` shows what it takes.")

    def parse_arguments(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments of a command.

        Raises:
            UsageError: they do not parse; for an unknown option, the hint names similar ones.
        """
        positionals = self._get_positional_actions()
        takes_all = any(action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in positionals)
        # intermixed: `log HANDLE -f ROLE/ID` has an option between its arguments
        parse = self.parse_known_args if takes_all else self.parse_known_intermixed_args
        args, unknown = parse(argv)
        options = [text for text in unknown if text.startswith("-") and text != "-"]
        if options:
            raise self.unknown_option(options[0])
        if unknown:
            raise UsageError(
                f"{self.prog}: unexpected argument {unknown[0]!r}",
                hint=f"`{self.prog} --help` shows what it takes.",
            )
        return args

    def unknown_option(self, text: str) -> UsageError:
        """Return the error for an option that does not exist."""
        name = text.partition("=")[0]
        known = [option for option in self._option_string_actions if option.startswith("-")]
        near = get_close_matches(name, known, n=2, cutoff=0.65)
        suggestion = f"Did you mean {' or '.join(near)}? " if near else ""
        return UsageError(
            f"{self.prog}: unknown option {name}",
            hint=f"{suggestion}`{self.prog} --help` shows them all.",
        )


def terminal_columns() -> int:
    """Return the width of help texts."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and len(columns) < 6:
        return max(int(columns), 40)
    try:
        return max(os.get_terminal_size(1).columns, 40)
    except OSError:
        return 100
