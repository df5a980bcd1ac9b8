"""Trust the configuration files of a project, as they are now.

shunter trust                 show what the project's files would choose, ask, and trust them
shunter trust DIR --yes       the same for another directory, without asking
shunter trust train.py        the same for the header of a script
shunter trust --list          list the files that are trusted
shunter trust --revoke        trust the files of this project no more

A project's files may set looks and defaults of jobs. Programs, credentials, addresses, destinations and
plug-ins that they name count only if you trust the files. A file that changes needs trust again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from argparse import Namespace

from shunter.cli.console import ask, is_tty, note, out, print_result
from shunter.cli.parser import Parser, add_json_option
from shunter.errors import EXIT_CONFIG, EXIT_OK, ConfigError, UsageError
from shunter.runner.config import load_config
from shunter.runner.config_files import Source, read_project_file
from shunter.runner.project_trust import SensitiveSetting, is_trusted, revoke, trust, trusted_files
from shunter.terminal import clean


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "place",
        nargs="?",
        default=".",
        metavar="DIR|SCRIPT",
        help="the project (default: here), or a script with a header",
    )
    parser.add_flag("--yes", help="do not ask")
    parser.add_flag("--list", help="list the files that are trusted")
    parser.add_flag("--revoke", help="trust the project's files no more")
    add_json_option(parser)


def run(args: Namespace) -> int:
    if args.list and (args.revoke or args.yes):
        raise UsageError("--list goes with neither --revoke nor --yes")
    if args.json and not args.list:
        raise UsageError("--json goes only with --list")
    if args.list:
        rows = [{"path": path, "trusted": _is_current(path)} for path in trusted_files()]
        texts = [clean(str(row["path"])) + ("" if row["trusted"] else "  (changed since)") for row in rows]
        print_result(args.json, rows, texts)
        if not rows and not args.json:
            note("no project is trusted")
        return EXIT_OK
    if args.revoke:
        _revoke(args.place)
        return EXIT_OK
    if os.path.isfile(args.place):
        return _trust(*_header_of(args.place), args.yes)
    if not os.path.isdir(args.place):
        raise ConfigError(f"there is no directory {args.place}", hint="Name the project's directory.")
    with contextlib.chdir(args.place):  # paths in the files are relative to it
        config = load_config()
        sources = [source for source in config.sources if source.project]
        settings = {source.path: config.sensitive_settings(source) for source in sources}
    if not sources:
        raise ConfigError(
            f"no project's configuration file was found from {os.path.abspath(args.place)} upwards",
            hint="A project has shunter.toml, [tool.shunter] in pyproject.toml, or .torchxconfig.",
        )
    return _trust(sources, settings, args.yes)


def _header_of(script: str) -> tuple[list[Source], dict[str, list[SensitiveSetting]]]:
    config = load_config()
    header = config.add_header(script)
    if header is None:
        raise ConfigError(
            f"{script} has no header with [tool.shunter]", hint=f"`shunter init {script}` writes one."
        )
    return [header], {header.path: config.sensitive_settings(header)}


def _trust(sources: list[Source], settings: dict[str, list[SensitiveSetting]], yes: bool) -> int:
    pending = []
    for source in sources:
        if not settings[source.path]:
            note(f"{source.path} needs no trust: it sets only defaults")
        elif is_trusted(source):
            note(f"{source.path} is trusted already")
        else:
            pending.append(source)
    for source in pending:
        out(clean(source.path))
        for name, setting, kind in settings[source.path]:
            value = json.dumps(setting.value, ensure_ascii=False, default=str)
            out(f"  {clean(name)} = {clean(value)}\n      {kind}")
    if pending and not yes and not _agrees():
        note("nothing was changed")
        return EXIT_CONFIG
    for source in pending:
        trust(source)
        note(f"trusted {source.path}, until it changes")
    return EXIT_OK


def _agrees() -> bool:
    if not is_tty(sys.stdin):
        raise UsageError(
            "nothing was changed: there is no terminal to ask on", hint="--yes trusts without asking."
        )
    return ask("Trust these files?")


def _revoke(directory: str) -> None:
    place = os.path.realpath(directory)
    paths = [path for path in trusted_files() if place in (os.path.dirname(path), path)]
    if not paths and os.path.isdir(directory):  # the files may be those of a directory above
        with contextlib.chdir(directory):
            paths = [source.real_path for source in load_config().sources if source.project]
    revoked = [path for path in paths if revoke(path)]
    for path in revoked:
        note(f"{path} is trusted no more")
    if not revoked:
        note(f"nothing in {place} was trusted")


def _is_current(path: str) -> bool:
    try:
        source = read_project_file(path)
    except ConfigError:
        return False
    return source is not None and is_trusted(source)
