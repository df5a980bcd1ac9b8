"""The argument parser: what commands declare, and options that several of them take.

`Parser` reads an ordinary command line itself. For anything else (help, an error) it builds an `argparse`
parser with the same arguments: importing `argparse` and declaring the arguments of `run` takes longer than
reading the configuration.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError

from shunter.cli.full_parser import FullParser
from shunter.specs.limits import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Protocol

    class AnyParser(Protocol):
        """A `Parser`, or one of argparse."""

        def add_argument(self, *names: str, **options: Any) -> Any:
            """Declare an argument."""
else:

    class Namespace:
        """The values of the arguments."""


_NONE: Any = object()
#: Arguments of `Parser.add_argument` that `Parser` understands; with any other, argparse is used.
_PLAIN = frozenset({"action", "choices", "default", "dest", "help", "metavar", "nargs", "required", "type"})
_PLAIN_ACTIONS = ("store", "store_true", "append")
SUPPRESS = "==SUPPRESS=="  # argparse's own mark for an option without a default


class Argument:
    """One argument, as it was declared."""

    def __init__(self, names: tuple[str, ...], options: dict[str, Any]) -> None:
        self.names = names
        self.options = options
        self.completer_name = ""
        self.is_option = names[0].startswith("-")
        self.action: str = options.get("action", "store")
        self.takes_value = self.action != "store_true"
        long = next((name for name in names if name.startswith("--")), names[0])
        self.dest: str = options.get("dest") or long.lstrip("-").replace("-", "_")
        self.nargs = options.get("nargs")
        self.default = options.get("default", False if self.action == "store_true" else None)
        self.is_plain = (
            options.keys() <= _PLAIN
            and self.action in _PLAIN_ACTIONS
            and self.nargs in ((None,) if self.is_option else (None, "?", "*", "+", "..."))
            and not (isinstance(self.default, str) and "type" in options and self.default != SUPPRESS)
        )

    def value_of(self, word: str) -> Any:
        """Return the value that a word stands for; `_NONE` if it is wrong."""
        try:
            value = self.options["type"](word) if "type" in self.options else word
        except Exception:  # argparse will raise it again, and say what is wrong
            return _NONE
        choices = self.options.get("choices")
        return _NONE if choices is not None and value not in choices else value


class Parser:
    """A parser that raises `UsageError` where argparse would write a message and exit.

    Methods of ``argparse.ArgumentParser`` that it lacks are taken from one that it creates.
    """

    def __init__(self, prog: str, description: str = "") -> None:
        self.prog = prog
        self._description = description
        self._arguments: list[Argument] = []
        self._options: dict[str, Argument] = {}
        self._full: Any = None

    def add_argument(self, *names: str, **options: Any) -> Any:
        """Declare an argument, as ``argparse.ArgumentParser.add_argument`` does."""
        if self._full is not None:
            return self._full.add_argument(*names, **options)
        argument = Argument(names, options)
        self._arguments.append(argument)
        if argument.is_option:
            self._options.update(dict.fromkeys(names, argument))
        return argument

    def __getattr__(self, name: str) -> Any:
        return getattr(self.full(), name)

    def full(self) -> argparse.ArgumentParser:
        """Return a parser of argparse with the same arguments, which takes over."""
        if self._full is None:
            self._full = FullParser(self.prog, self._description)
            for argument in self._arguments:
                options = argument.options
                if argument.default == SUPPRESS:  # argparse asks for this very object
                    options = {**options, "default": argparse.SUPPRESS}
                action = self._full.add_argument(*argument.names, **options)
                if argument.completer_name:
                    action.completer_name = argument.completer_name
        return self._full  # type: ignore[no-any-return]

    def parse_arguments(self, argv: Sequence[str]) -> Namespace:
        """Parse the arguments of a command.

        Raises:
            UsageError: they do not parse; for an unknown option, the hint names similar ones.
        """
        plain = self._read(argv) if self._full is None else None
        return self.full().parse_arguments(argv) if plain is None else plain  # type: ignore[attr-defined]

    def _read(self, argv: Iterable[str]) -> Namespace | None:
        """Read an ordinary command line; None for any other."""
        if not all(argument.is_plain for argument in self._arguments):
            return None
        values: dict[str, Any] = {
            argument.dest: argument.default for argument in self._arguments if argument.default != SUPPRESS
        }
        given, words = set(), []
        rest = iter(argv)
        for word in rest:
            if not word.startswith("-") or word == "-":
                words.append(word)
                continue
            name, equals, text = word.partition("=")
            argument = self._options.get(name)
            if argument is None or (equals and not (argument.takes_value and name.startswith("--"))):
                return None
            value: Any = True
            if argument.takes_value:
                text = text if equals else next(rest, "-")
                value = _NONE if text.startswith("-") and not equals else argument.value_of(text)
            if value is _NONE:
                return None
            if argument.action == "append":
                value = [*(values[argument.dest] or ()), value]
            values[argument.dest] = value
            given.add(argument.dest)
        if not self._set_positionals(words, values):
            return None
        if any(a.is_option and a.options.get("required") and a.dest not in given for a in self._arguments):
            return None
        result = Namespace()
        vars(result).update(values)
        return result

    def _set_positionals(self, words: list[str], values: dict[str, Any]) -> bool:
        """Give the words that are not options to the positional arguments; False if they do not fit."""
        for argument in self._arguments:
            if argument.is_option:
                continue
            count = 1 if argument.nargs in (None, "?") else len(words)
            some, words = words[:count], words[count:]
            if not some:
                if argument.nargs in (None, "+"):
                    return False
                values[argument.dest] = [] if argument.nargs == "..." else argument.default
                if argument.nargs == "*" and argument.default is None:
                    values[argument.dest] = []
                continue
            if argument.nargs == "...":
                return False
            found = [argument.value_of(word) for word in some]
            if _NONE in found:
                return False
            values[argument.dest] = found[0] if argument.nargs in (None, "?") else found
        return not words

    def index_of_argument(self, words: Sequence[str]) -> int:
        """Return the index of the first argument (or ``--``): not an option, nor an option's value."""
        index = 0
        while index < len(words):
            word = words[index]
            if word == "--" or not word.startswith("-"):
                return index
            takes_value = self.takes_value(word.partition("=")[0])
            if takes_value is None:
                raise self.full().unknown_option(word)  # type: ignore[attr-defined]
            index += 2 if takes_value and "=" not in word else 1
        return len(words)

    def takes_value(self, option: str) -> bool | None:
        """Tell whether an option takes a value; returns None for an unknown option."""
        if option in ("-h", "--help"):
            return False
        if self._full is not None:
            action = self._full._option_string_actions.get(option)
            return None if action is None else action.nargs != 0
        argument = self._options.get(option)
        return None if argument is None else argument.takes_value


def add_common_options(parser: AnyParser) -> None:
    """Add the options that can be given before or after the name of any command."""
    parser.add_argument(
        "--debug", action="store_true", default=SUPPRESS, help="show the traceback of an error"
    )
    parser.add_argument(
        "--log_level",
        "--log-level",
        metavar="LEVEL",
        default=SUPPRESS,
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


def add_json_option(parser: AnyParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_scheduler_options(parser: AnyParser, help: str, *, required: bool = False) -> None:
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


def add_exit_code_option(parser: AnyParser, more: str = "") -> None:
    """Add ``--exit-code-from``."""
    parser.add_argument(
        "--exit-code-from",
        "--exit_code_from",
        metavar="ROLE/ID|any",
        help="exit with this replica's code, or with the first that is not 0" + more,
    )


def add_handle_argument(parser: AnyParser, nargs: str = "?") -> None:
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
