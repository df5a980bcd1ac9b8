"""List components, show the help of one, or lint some.

shunter components                     list all
shunter components dist.ddp            show the help of one
shunter components lint FILE[:fn]      report all problems of a file's components, or of one
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator

from shunter.cli.console import BOLD, counted, note, paint, print_result, warn
from shunter.cli.parser import Parser, add_json_option
from shunter.components.file_linter import LinterMessage, SourceFile, component_functions, validate
from shunter.components.finder import get_component, list_components
from shunter.errors import EXIT_CONFIG, EXIT_OK, ConfigError, UsageError


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME | lint",
        help="a component, or the word lint",
        completer="component_completer",
    )
    parser.add_argument("files", nargs="*", metavar="FILE[:fn]", help="after lint: what to check")
    add_json_option(parser)


def run(args: Namespace) -> int:
    if args.name == "lint":
        return _lint(args.files, args.json)
    if args.files:
        raise UsageError(f"unexpected argument {args.files[0]!r}", hint="Name one component at a time.")
    if args.name:
        component = get_component(args.name)
        text = component.help_text()
        print_result(args.json, {"name": component.name, "help": text}, [text.rstrip("\n")])
        return EXIT_OK
    infos = list_components()
    fields = ("name", "summary", "origin", "error")
    data = [{field: getattr(info, field) for field in fields} for info in infos]
    width = max((len(info.name) for info in infos), default=0)
    lines = [f"{paint(info.name.ljust(width), BOLD, sys.stdout)}  {info.summary}".rstrip() for info in infos]
    print_result(args.json, data, lines)
    for info in infos:
        if info.error and not args.json:
            warn(f"{info.name}: {info.error}")
    return EXIT_OK


def _lint(targets: list[str], as_json: bool) -> int:
    if not targets:
        raise UsageError("nothing to lint", hint="Example: shunter components lint my_components.py:train")
    problems = [
        {
            "path": path,
            "function": function,
            "line": message.line,
            "column": message.char + 1,
            "severity": message.severity,
            "message": message.description,
        }
        for path, function, message in (problem for target in targets for problem in _problems_of(target))
    ]
    form = "{path}:{line}:{column}: {severity}: {message}"
    print_result(as_json, problems, [form.format(**problem) for problem in problems])
    if not as_json:
        note(counted(len(problems), "problem") if problems else "no problems")
    return EXIT_CONFIG if problems else EXIT_OK


def _problems_of(target: str) -> Iterator[tuple[str, str, LinterMessage]]:
    path, _, function = target.partition(":")
    if not os.path.isfile(path):
        raise ConfigError(f"there is no file {path}", hint="Give the path of a Python file, or FILE:fn.")
    unreadable = SourceFile(path).message
    if unreadable is not None:
        yield path, function, unreadable
        return
    functions = [function] if function else component_functions(path)
    if not functions:
        raise ConfigError(
            f"{path} has no component: no public function is annotated to return an AppDef",
            hint=f"To see the problems of a function, name it: {path}:NAME",
        )
    for name in functions:
        yield from ((path, name, message) for message in validate(path, name))
