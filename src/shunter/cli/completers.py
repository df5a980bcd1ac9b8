"""Shell completion: what can be typed at a place of the command line."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import warnings
from typing import Any

from shunter.cli.catalog import COMMANDS, load_command, plugin_commands
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
            return [one for one in super().filter_completions(completions) if one.isprintable()]

    warnings.simplefilter("ignore")  # a warning would disturb the line being typed
    parser = _parser(_words(_line()))
    finder = Finder(default_completer=FilesCompleter())
    finder(parser, always_complete_options=False, exclude=_second_spellings(parser))
    return 0


def _second_spellings(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options that differ from another only by ``-`` for ``_``: one of them is enough."""
    seconds = []
    for action in parser._actions:
        seen: set[str] = set()
        for option in action.option_strings:
            spelling = option.replace("_", "-")
            if spelling in seen:
                seconds.append(option)
            seen.add(spelling)
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                seconds += _second_spellings(sub)
    return seconds


def _line() -> str:
    """Return the command line up to the cursor."""
    return os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0) or None]


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is still open
        words = line.split()
    return words[1:]


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """Return a parser of all commands; only the one on the line has its arguments."""
    parser = argparse.ArgumentParser(prog="shunter", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    add_common_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    plugins = plugin_commands()
    for name in [*COMMANDS, *plugins]:
        summary = COMMANDS.get(name) or "(plugin)"
        sub = commands.add_parser(name, help=summary, allow_abbrev=False)
        if name in words:
            load_command(name).add_arguments(sub)
            add_common_options(sub)
            for action in sub._actions:
                if hasattr(action, "completer_name"):
                    action.completer = globals()[action.completer_name]  # type: ignore[attr-defined]
            if name in ("run", "plan", "sweep") and words[0] == name:
                _add_component_options(sub, name, words[1:])
    return parser


def _add_component_options(parser: argparse.ArgumentParser, command: str, words: list[str]) -> None:
    """Replace the arguments of a command by those of the component, once the cursor is behind its name."""
    scanner = Parser(f"shunter {command}")
    load_command(command).add_arguments(scanner)
    line = _line()
    try:
        index = scanner.index_of_argument(words)
        behind = index < len(words) - 1 or (index < len(words) and line.endswith(" "))
        if not behind or words[index] == "--":
            return
        options = parameters_for_completion(words[index])
    except Exception:  # the component's name may be incomplete
        return
    _forget_options(parser)
    _cut_line(line, index + 2)
    for parameter in options:
        if parameter.is_varargs:
            continue
        action = parser.add_argument(
            *dict.fromkeys([*parameter.options, *parameter.aliases]),
            dest=f"component_{parameter.name}",
            nargs="?" if parameter.is_flag else None,
            help=parameter.note or None,
        )
        if parameter.choices and not parameter.is_flag:
            action.choices = list(parameter.choices)


def _cut_line(line: str, count: int) -> None:
    """Leave out the options of `run` itself, which its parser does not have any more.

    ``line`` is the command line up to the cursor, with ``count`` words before the component.
    """
    starts = (match.start() for match in re.finditer(r"(?<=\s)\S", line))
    start = next(start for start in starts if len(shlex.split(line[:start])) == count)
    os.environ["COMP_LINE"] = f"shunter run {line[start:]}"
    os.environ["COMP_POINT"] = str(len(os.environ["COMP_LINE"]))


def _forget_options(parser: argparse.ArgumentParser) -> None:
    for action in list(parser._actions):
        if action.option_strings:
            for option in action.option_strings:
                parser._option_string_actions.pop(option, None)
            action.help = argparse.SUPPRESS


# ---- completers, named by `parser.complete_with`


def job_completer(prefix: str, parsed_args: argparse.Namespace, **kwargs: object) -> list[str]:
    """Return the ids of recent jobs, or their handles once a handle is begun."""
    history = History()
    records = [record for record in history.rows(MOST_JOBS) if record.handle]
    history.close()
    if "://" in prefix or any(record.handle.startswith(prefix) for record in records if prefix):
        return [record.handle for record in records]
    return [record.app_id for record in records]


def scheduler_completer(prefix: str, parsed_args: argparse.Namespace, **kwargs: object) -> list[str]:
    """Return the names of schedulers."""
    return list(get_scheduler_factories())


def option_completer(prefix: str, parsed_args: argparse.Namespace, **kwargs: object) -> list[str]:
    """Return the options of the scheduler that is named, after those that are already given."""
    given, comma, _ = prefix.rpartition(",")
    with get_runner() as runner:
        name = getattr(parsed_args, "scheduler", None) or get_default_scheduler_name()
        return [f"{given}{comma}{option}=" for option, _ in runner.scheduler_run_opts(name)]


def component_completer(prefix: str, parsed_args: argparse.Namespace, **kwargs: object) -> list[str]:
    """Return the names of components, and Python files; behind the colon of ``file.py:``, its functions."""
    place, colon, _ = prefix.rpartition(":")
    if colon:
        return names_in(place)
    return [*component_names(), *_python_files(prefix)]


def component_argument_completer(prefix: str, parsed_args: argparse.Namespace, **kwargs: object) -> list[str]:
    """Return the files whose paths begin with the prefix."""
    from argcomplete.completers import FilesCompleter

    found: Any = FilesCompleter()(prefix)
    return list(found)


def _python_files(prefix: str) -> list[str]:
    base = prefix[: prefix.rfind("/") + 1]
    try:
        entries = sorted(os.scandir(os.path.expanduser(base) or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    shown = [entry for entry in entries if not entry.name.startswith(".")]
    files = [base + entry.name for entry in shown if entry.name.endswith(".py")]
    return files + [f"{base}{entry.name}/" for entry in shown if prefix and entry.is_dir()]
