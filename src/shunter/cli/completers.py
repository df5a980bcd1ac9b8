"""Shell completion: what can be typed at a place of the command line."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import warnings
from collections.abc import Sequence
from typing import Any

from shunter.cli.command_line import COMMANDS, load_command, plugin_commands
from shunter.cli.parser import Parser, add_common_options
from shunter.components.finder import component_names, names_in, parameters_for_completion
from shunter.runner import get_runner
from shunter.runner.history import History
from shunter.schedulers.registry import get_default_scheduler_name, get_scheduler_factories

MOST_JOBS = 200


def complete() -> int:
    """Answer a shell that asks for completions, by the protocol of argcomplete; never returns there."""
    from argcomplete.completers import FilesCompleter
    from argcomplete.finders import CompletionFinder

    class Finder(CompletionFinder):  # type: ignore[misc,unused-ignore]
        def filter_completions(self, completions: list[str]) -> list[str]:
            """Leave out names with control characters."""
            return [name for name in super().filter_completions(completions) if name.isprintable()]

    warnings.simplefilter("ignore")  # a warning would disturb the line being typed
    # argcomplete reads the line, up to the cursor, from these variables
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0) or None]
    parser = _component_parser(line) or _parser(_words(line))
    Finder(default_completer=FilesCompleter())(parser, always_complete_options=False)
    return 0


def _words(line: str) -> list[str]:
    """Return the words after the program's name."""
    try:
        return shlex.split(line)[1:]
    except ValueError:  # a quote that is still open
        return line.split()[1:]


def _parser(words: list[str]) -> Parser:
    """Return a parser of all commands; only the one on the line has its arguments."""
    parser = Parser("shunter")
    parser.add_flag("--version", help="print the version")
    add_common_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in [*COMMANDS, *plugin_commands()]:
        sub = commands.add_parser(name, help=COMMANDS.get(name, "(plugin)"))
        if name in words:
            load_command(name).add_arguments(sub)
            add_common_options(sub)
            for action in sub._actions:
                if completer := getattr(action, "completer_name", ""):
                    action.completer = globals()[completer]  # type: ignore[attr-defined]
    return parser


def _component_parser(line: str) -> Parser | None:
    """Return the parser of a component's arguments, once the cursor is behind its name; before that None.

    Nothing before the component is left on the line that argcomplete reads.
    """
    words = _words(line)
    if not words or words[0] not in ("run", "plan", "sweep"):
        return None
    command = Parser(words[0])
    load_command(words[0]).add_arguments(command)
    try:
        index = 1 + command.index_of_argument(words[1:])
        is_behind = index + 1 < len(words) or (index < len(words) and line.endswith(" "))
        if not is_behind or words[index] == "--":
            return None
        parameters = parameters_for_completion(words[index])
        starts = (match.start() for match in re.finditer(r"(?<=\s)\S", line))
        start = next(start for start in starts if len(shlex.split(line[:start])) == index + 1)
    except Exception:  # the line may be incomplete
        return None
    os.environ["COMP_LINE"] = line[start:]
    os.environ["COMP_POINT"] = str(len(line) - start)
    parser = Parser(words[index], add_help=False)
    for parameter in parameters:
        if parameter.is_varargs:
            continue
        # one spelling of each option is enough
        spellings = {option.replace("_", "-"): option for option in reversed(parameter.options)}
        parser.add_argument(
            *spellings.values(),
            dest=f"component_{parameter.name}",
            nargs="?" if parameter.is_flag else None,
            help=parameter.note or None,
            choices=list(parameter.choices) if parameter.choices and not parameter.is_flag else None,
        )
    parser.add_argument("arguments", nargs="...")
    return parser


# ---- completers, named where arguments are added


def job_completer(prefix: str, **_: Any) -> list[str]:
    """Return the ids of recent jobs, or their handles once a handle is begun."""
    history = History()
    records = [record for record in history.rows(MOST_JOBS) if record.handle]
    history.close()
    if "://" in prefix or any(record.handle.startswith(prefix) for record in records if prefix):
        return [record.handle for record in records]
    return [record.app_id for record in records]


def scheduler_completer(**_: Any) -> list[str]:
    """Return the names of schedulers."""
    return list(get_scheduler_factories())


def option_completer(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the options of the scheduler that is named, after those that are already given."""
    given, comma, _text = prefix.rpartition(",")
    with get_runner() as runner:
        name = getattr(parsed_args, "scheduler", None) or get_default_scheduler_name()
        return [f"{given}{comma}{option}=" for option, _opt in runner.scheduler_run_opts(name)]


def component_completer(prefix: str, **_: Any) -> list[str]:
    """Return the names of components, and Python files; behind the colon of ``file.py:``, its functions."""
    place, colon, _text = prefix.rpartition(":")
    if colon:
        return names_in(place)
    return [*component_names(), *(_files(prefix, ["py"]) if prefix else [])]


def component_argument_completer(prefix: str, **_: Any) -> list[str]:
    """Return the files whose paths begin with the prefix."""
    return _files(prefix)


def _files(prefix: str, suffixes: Sequence[str] = ()) -> list[str]:
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter(suffixes)(prefix))
