"""Write a job as one HTML file: state, why, charts, the end of its logs, definition, changes, code.

A browser opens it without a server and without a network; secrets are masked. Needs `pip install
'shunter[ui]'`.
"""

from __future__ import annotations

import os
from argparse import Namespace

from shunter.cli.console import out
from shunter.cli.parser import Parser, add_handle_argument
from shunter.cli.shown_status import status_of
from shunter.errors import ConfigError
from shunter.runner import get_runner
from shunter.runner.jobsearch import recorded


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    parser.add_argument("--to", metavar="FILE", help="where to write it (default: the job's id, with .html)")
    parser.add_flag("--force", help="overwrite a file that exists")


def run(args: Namespace) -> None:
    try:
        from shunter.ui.export_page import exported
    except ImportError as error:
        raise ConfigError(
            f"the file is made with packages that are not installed: {error.name}",
            hint="pip install 'shunter[ui]'",
        ) from None
    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        record = recorded(runner.history, handle, "export")
        path = args.to or f"{record.app_id}.html"
        if os.path.lexists(path) and not args.force:
            raise _exists(path)
        page = exported(runner, handle, status_of(runner, handle), record)
    try:
        with open(path, "w" if args.force else "x", encoding="utf-8", errors="replace") as file:
            file.write(page)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    out(path)


def _exists(path: str) -> ConfigError:
    return ConfigError(f"{path} exists", hint="--force overwrites it; --to FILE names another one.")
