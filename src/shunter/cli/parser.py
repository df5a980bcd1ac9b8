"""The argument parser: errors as `UsageError`, and options that several commands take."""

from __future__ import annotations

import argparse
import shutil
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from shunter.errors import UsageError
from shunter.limits import MOST_PORT, whole_number


def _formatter(prog: str) -> argparse.HelpFormatter:
    width = min(max(shutil.get_terminal_size((100, 24)).columns, 40), 100)
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=width)


class Parser(ArgumentParser):
    """A parser that raises `UsageError` where argparse would write a message and exit."""

    def __init__(self, prog: str = "", description: str = "", **more: Any) -> None:
        # argparse makes the parsers of a plugin's subcommands from this class too
        options: dict[str, Any] = {"allow_abbrev": False, "formatter_class": _formatter, **more}
        super().__init__(prog=prog, description=description, **options)

    def add_argument(self, *names: Any, **options: Any) -> Any:
        """Declare an argument, as ``argparse.ArgumentParser.add_argument`` does."""
        if options.get("nargs") == "*":  # without a default, old versions of argparse call it required
            options.setdefault("default", None)
        return super().add_argument(*names, **options)

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

    def index_of_argument(self, words: Sequence[str]) -> int:
        """Return the index of the first argument (or ``--``): not an option, nor an option's value."""
        index = 0
        while index < len(words):
            word = words[index]
            if word == "--" or not word.startswith("-"):
                return index
            takes_value = self.takes_value(word.partition("=")[0])
            if takes_value is None:
                raise self.unknown_option(word)
            index += 2 if takes_value and "=" not in word else 1
        return len(words)

    def takes_value(self, option: str) -> bool | None:
        """Tell whether an option takes a value; returns None for an unknown option."""
        action = self._option_string_actions.get(option)
        return None if action is None else action.nargs != 0


def add_common_options(parser: ArgumentParser) -> None:
    """Add the options that can be given before or after the name of any command."""
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )
    parser.add_argument(
        "--log_level",
        "--log-level",
        metavar="LEVEL",
        default=argparse.SUPPRESS,
        help="show log messages from this level on (also the variable LOGLEVEL)",
    )


def number_between(least: int, most: int) -> Callable[[str], int]:
    """Return a function that reads a whole number within limits, as the ``type`` of an option."""

    def read(text: str) -> int:
        try:
            return whole_number(text, least, most)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def add_port_option(parser: ArgumentParser, default: int) -> None:
    """Add ``--port``, on which a server listens."""
    parser.add_argument(
        "--port",
        type=number_between(0, MOST_PORT),
        default=default,
        help=f"port; 0 for any free port (default: {default})",
    )


def add_json_option(parser: ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_scheduler_options(parser: ArgumentParser, help: str, *, required: bool = False) -> None:
    """Add ``-s`` and ``-cfg``."""
    scheduler = parser.add_argument("-s", "--scheduler", metavar="NAME", required=required, help=help)
    complete_with(scheduler, "scheduler_completer")
    options = parser.add_argument(
        "-cfg",
        "--scheduler_args",
        "--scheduler-args",
        dest="cfg",
        action="append",
        default=[],
        metavar="K=V,...",
        help="options of the scheduler; may be given several times",
    )
    complete_with(options, "option_completer")


def add_exit_code_option(parser: ArgumentParser, more: str = "") -> None:
    """Add ``--exit-code-from``."""
    parser.add_argument(
        "--exit-code-from",
        "--exit_code_from",
        metavar="ROLE/ID|any",
        help="exit with this replica's code, or with the first that is not 0" + more,
    )


def add_handle_argument(parser: ArgumentParser, nargs: str = "?") -> None:
    """Add the argument that names a job (``args.handle``), or several (``args.handles``)."""
    several = nargs in ("*", "+")
    action = parser.add_argument(
        "handles" if several else "handle",
        nargs=nargs,
        metavar="HANDLE",
        help="a job: its handle, the beginning of its id, or - for the latest"
        + ("" if nargs == "+" else " (the default)")
        + (", or a pattern of names or ids, in quotes: 'exp-*'" if several else ""),
    )
    complete_with(action, "job_completer")


def complete_with(action: Any, completer: str) -> Any:
    """Name the function of `shunter.cli.completers` that completes an argument."""
    action.completer_name = completer
    return action
