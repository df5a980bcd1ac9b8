"""The argument parser: errors as `UsageError`, options that several commands take, times."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import textwrap
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NoReturn

from shunter.errors import UsageError
from shunter.limits import MOST_PORT, cut, whole_number
from shunter.schedulers.short_names import full_name
from shunter.specs.durations import has_units, parse_duration

#: A paragraph of examples, and what separates an example from its explanation.
_EXAMPLE, _GAP = re.compile(r"(?m)^(\s|shunter )"), re.compile(r" {2,}")
#: What other tools call these options.
OTHER_OPTIONS = {
    "-d": "--detach",
    "-e": "--env",
    "-v": "--mounts",
    "--volume": "--mounts",
    "-G": "--gpu",
    "--gpus-per-node": "--gpu",
    "--accelerators": "--gpu",
    "-J": "--name",
    "-N": "--nodes",
    "--ntasks": "--processes",
    "--ntasks-per-node": "--processes",
    "--nproc-per-node": "--processes",
    "--dependency": "--after",
    "--depends-on": "--after",
    "--wait-for": "--after",
    "--backend": "--scheduler",
    "--cluster": "--scheduler",
    "--cores": "--cpu",
    "--cpus-per-task": "--cpu",
    "--ram": "--mem",
    "--gres": "--gpu",
    "--walltime": "--time",
    "--timeout": "--time",
    "--max-time": "--time",
    "--follow": "--log",
    "--docker": "--image",
    "--container": "--image",
    "--requirements": "--environment",
    "--replicas": "--nodes",
}
_FLAG_WITH_VALUE = re.compile(r"argument (\S+): ignored explicit argument (.*)")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")


def _formatter(prog: str) -> argparse.HelpFormatter:
    width = min(max(shutil.get_terminal_size((80, 24)).columns, 40), 100)
    return _HelpFormatter(prog, max_help_position=28, width=width)


class _HelpFormatter(argparse.HelpFormatter):
    """Fills the paragraphs of a description, and leaves its examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            "\n".join(_example(line, width) for line in paragraph.splitlines())
            if _EXAMPLE.search(paragraph)
            else textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False)
            for paragraph in text.strip().split("\n\n")
        )


def _example(line: str, width: int) -> str:
    """Return a line of examples; if it is too long, what explains the example stands below it."""
    if len(line) <= width:
        return line
    return _GAP.sub("\n    ", line, count=1)


class Parser(ArgumentParser):
    """A parser that raises `UsageError` where argparse would write a message and exit.

    An option may be written with ``-`` or ``_`` between its words; only one spelling is shown.
    """

    def __init__(self, prog: str = "", description: str = "", **more: Any) -> None:
        # argparse makes the parsers of a plugin's subcommands from this class too
        options: dict[str, Any] = {"allow_abbrev": False, "formatter_class": _formatter, **more}
        super().__init__(prog=prog, description=description, **options)

    def add_argument(self, *names: Any, completer: str = "", group: Any = None, **options: Any) -> Any:
        """Declare an argument, as ``argparse.ArgumentParser.add_argument`` does.

        ``completer`` names the function of `shunter.cli.completers` that completes it; ``group`` is the group
        in whose part of the help it is shown.
        """
        if options.get("nargs") == "*":  # without a default, old versions of argparse call it required
            options.setdefault("default", None)
        add = super().add_argument if group is None else group.add_argument
        action: Any = add(*names, **options)
        for name in names:
            if name.startswith("--"):
                self._option_string_actions.setdefault("--" + name[2:].replace("-", "_"), action)
                self._option_string_actions.setdefault(name.replace("_", "-"), action)
        action.completer_name = completer
        return action

    def add_flag(self, *names: str, help: str) -> None:
        """Declare an option without a value."""
        self.add_argument(*names, action="store_true", help=help)

    def add_repeated(self, *names: str, help: str, **options: Any) -> None:
        """Declare an option whose values make a list."""
        more = "; may be given several times"
        self.add_argument(*names, action="append", default=[], help=help + more, **options)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error as a `UsageError`."""
        flag = _FLAG_WITH_VALUE.fullmatch(message)
        if flag:
            raise self._usage_error(f"{flag[1]} takes no value, and has {flag[2]}")
        raise self._usage_error(message)

    def _usage_error(self, message: str, hint: str = "shows what it takes.") -> UsageError:
        return UsageError(f"{self.prog}: {message}", hint=f"`{self.prog} --help` {hint}")

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
        if unknown:
            option = next((text for text in unknown if text.startswith("-") and text != "-"), "")
            unexpected = f"unexpected argument {unknown[0]!r}"
            error = self.unknown_option(option) if option else self._usage_error(unexpected)
            error.hint += self.without(argv, option or unknown[0])
            raise error
        return args

    def unknown_option(self, text: str) -> UsageError:
        """Return the error for an option that does not exist."""
        name, near = text.partition("=")[0], self.options_like(text)
        error = self._usage_error(f"unknown option {name}", "shows them all.")
        error.hint = f"Did you mean {' or '.join(near)}? {error.hint}" if near else error.hint
        return error

    def options_like(self, text: str) -> list[str]:
        """Return the options that an unknown one may mean."""
        name = text.partition("=")[0].replace("_", "-")
        shown = {option.lstrip("-"): option for action in self._actions for option in action.option_strings}
        other = OTHER_OPTIONS.get(name, "")
        if other.lstrip("-") in shown:
            return [other]
        if len(name) == 2:  # other tools have short forms
            return [option for option in shown.values() if option.startswith(f"-{name}")][:3]
        alike = 0.65 if name.startswith("--") else 0.7  # -it is not --wait
        return [shown[word] for word in get_close_matches(name.lstrip("-"), shown, n=2, cutoff=alike)]

    def without(self, argv: Sequence[str], text: str) -> str:
        """Return a line of a hint: the command without this word, and without a number that belongs to it."""
        at = next((k for k, word in enumerate(argv) if word == text), None)
        if at is None:
            return ""
        has_number = text.startswith("-") and "=" not in text and "".join(argv[at + 1 : at + 2]).isdecimal()
        rest = [*argv[:at], *argv[at + 1 + has_number :]]
        return f"\nWithout it: {shlex.join([*self.prog.split(), *rest])}"

    def index_of_argument(self, words: Sequence[str]) -> int:
        """Return the index of the first argument (or ``--``): not an option, nor an option's value."""
        index = 0
        while index < len(words):
            word = words[index]
            if word == "--" or not word.startswith("-"):
                return index
            action = self._option_string_actions.get(word.partition("=")[0])
            if action is None:
                raise self.unknown_option(word)
            index += 2 if action.nargs != 0 and "=" not in word else 1
        return len(words)

    def arguments(self) -> list[Any]:
        """Return the declarations of what is not an option, in order."""
        return self._get_positional_actions()

    def has_option(self, word: str) -> bool:
        """Tell whether a word is an option of this parser."""
        return word.partition("=")[0] in self._option_string_actions

    def with_value(self, words: Sequence[str]) -> list[str]:
        """Return the option of this parser that the first of these words is, and its value."""
        action = self._option_string_actions[words[0].partition("=")[0]]
        return list(words[: 1 if action.nargs == 0 or "=" in words[0] else 2])


# ---- options that several commands take


def add_common_options(parser: Parser) -> None:
    """Add the options that can be given before or after the name of any command."""
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )
    parser.add_argument(
        "--log_level",
        metavar="LEVEL",
        default=argparse.SUPPRESS,
        help="show log messages from this level on (also the variable LOGLEVEL)",
    )


def add_port_option(parser: Parser, default: int) -> None:
    """Add ``--port``, on which a server listens."""
    parser.add_argument(
        "--port",
        type=number_between(0, MOST_PORT),
        default=default,
        help=f"port; 0 for any free port (default: {default})",
    )


def add_json_option(parser: Parser) -> None:
    """Add ``--json``."""
    parser.add_flag("--json", help="print JSON")


def add_scheduler_options(parser: Parser, help: str) -> None:
    """Add ``-s`` and ``-cfg``."""
    parser.add_argument(
        "-s",
        "--scheduler",
        type=full_name,
        metavar="NAME",
        help=help,
        completer="scheduler_completer",
    )
    parser.add_repeated(
        "-cfg",
        "--scheduler_args",
        metavar="K=V,...",
        help="options of the scheduler",
        dest="cfg",
        completer="option_completer",
    )


def add_exit_code_option(parser: Parser, more: str = "") -> None:
    """Add ``--exit-code-from``."""
    parser.add_argument(
        "--exit-code-from",
        type=_exit_code_source,
        metavar="ROLE/ID|any",
        help="exit with this replica's code, or with the first that is not 0" + more,
    )


def _exit_code_source(text: str) -> str:
    role, slash, number = text.partition("/")
    if text != "any" and (not role or (slash and not number.isdecimal())):
        raise ArgumentTypeError(f"{text!r} is neither ROLE/ID, such as trainer/0, nor any")
    return text if slash or text == "any" else f"{text}/0"


def add_handle_argument(parser: Parser, nargs: str = "?") -> None:
    """Add the argument that names a job (``args.handle``), or several (``args.handles``)."""
    several = nargs in ("*", "+")
    parser.add_argument(
        "handles" if several else "handle",
        nargs=nargs,
        metavar="HANDLE",
        help="a job: its handle, the beginning of its id, or - for the latest"
        + ("" if nargs == "+" else " (the default)")
        + (", or a pattern of names or ids, in quotes: 'exp-*'" if several else ""),
        completer="job_completer",
    )


# ---- what users type


def number_between(least: int, most: int) -> Callable[[str], int]:
    """Return a function that reads a whole number within limits, as the ``type`` of an option."""

    def read(text: str) -> int:
        try:
            return whole_number(text, least, most)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def parse_time(text: str, now: float | None = None) -> datetime:
    """Return the time that a text means, with a time zone.

    It is a duration before now (``10m``), an ISO date or time (local unless it has a zone), a time of today
    (``14:30``), seconds since the epoch (``@1700000000``), or ``now``.

    Raises:
        UsageError: it is none of these.
    """
    stripped = text.strip()
    current = time.time() if now is None else now
    try:
        if stripped.lower() == "now":
            return datetime.fromtimestamp(current, UTC)
        if stripped.startswith("@"):
            return datetime.fromtimestamp(float(stripped[1:]), UTC)
        if has_units(stripped):
            return datetime.fromtimestamp(current - parse_duration(stripped), UTC)
        if _CLOCK.fullmatch(stripped):
            today = datetime.fromtimestamp(current).date().isoformat()  # the local date
            return datetime.fromisoformat(f"{today}T{stripped.zfill(5)}").astimezone()
        return datetime.fromisoformat(stripped).astimezone()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{cut(text)!r} is not a time",
            hint="Examples: 10m, 2h, 1h30m, 3d, 2026-03-01T12:00:00, 14:30 (today), now.",
        ) from None
