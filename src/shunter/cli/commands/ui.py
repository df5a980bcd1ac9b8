"""Serve a page on this machine that shows jobs: states, timelines, logs, charts, what differs, why they fail.

It prints a URL with a token that lets one browser in, answers on the loopback address only, and ends with
Ctrl-C; jobs keep running. Needs `pip install 'shunter[ui]'`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import webbrowser
from argparse import Namespace

from shunter.cli.console import is_tty, note, out, warn
from shunter.cli.parser import Parser, add_port_option
from shunter.errors import ConfigError, UsageError

DEFAULT_PORT = 4768


def add_arguments(parser: Parser) -> None:
    add_port_option(parser, DEFAULT_PORT)
    parser.add_flag("--open", help="open the page in a browser (the default on a desktop)")
    parser.add_flag("--no-browser", help="print the URL without opening a browser")


def run(args: Namespace) -> None:
    try:
        from shunter.ui.web_server import PageServer
    except ImportError as error:
        raise ConfigError(
            f"the page needs packages that are not installed: {error.name}",
            hint="pip install 'shunter[ui]'",
        ) from None
    if args.open and args.no_browser:
        raise UsageError("--open and --no-browser are mutually exclusive")
    server = PageServer(args.port)
    opens = args.open or (not args.no_browser and _has_desktop())

    def announce() -> None:
        out(server.url)
        sys.stdout.flush()
        note("serving; Ctrl-C ends the page, not the jobs")
        if opens:
            _open_browser(server.url)

    try:
        server.serve(announce)
    except KeyboardInterrupt:
        pass


def _has_desktop() -> bool:
    if not is_tty(sys.stdout) or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _open_browser(url: str) -> None:
    """Open the page through a file that only this user can read: arguments of programs are visible to all."""
    handle, path = tempfile.mkstemp(prefix="shunter-ui-", suffix=".html")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={url}"><a href="{url}">shunter</a>'
        )
    if not webbrowser.open(f"file://{path}"):
        warn("no browser could be opened: open the URL yourself")
    cleanup = threading.Timer(60.0, _remove, [path])
    cleanup.daemon = True
    cleanup.start()


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
