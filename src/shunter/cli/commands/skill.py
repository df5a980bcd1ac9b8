"""Install the instructions for coding agents, SKILL.md, where agents look for them; or print them.

shunter skill install              for you: ~/.claude/skills and ~/.agents/skills
shunter skill install --project    for this project: .claude/skills and .agents/skills
shunter skill install --to DIR     as DIR/shunter/SKILL.md
shunter skill show                 print them

An older version is replaced. A file that somebody has changed is not, unless --force is given.
"""

from __future__ import annotations

import hashlib
import os
import re
from argparse import Namespace
from importlib.resources import files

from shunter import __version__
from shunter.cli.console import out
from shunter.cli.parser import Parser
from shunter.errors import ConfigError, UsageError
from shunter.paths import read_regular_file

#: Folders of skills that agents read, in the home directory and in projects.
FOLDERS = (".claude/skills", ".agents/skills")
#: The last line of an installed file: the digest of what is before it shows whether somebody changed it.
_MARK = re.compile(rb"\n<!-- shunter \S+ ([0-9a-f]{64}) -->\n\Z")


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "action", choices=["install", "show"], metavar="install|show", help="install or print SKILL.md"
    )
    parser.add_argument("--to", metavar="DIR", help="the folder of skills to install it into")
    parser.add_flag("--project", help="install it for the project in the current directory")
    parser.add_flag("--force", help="overwrite a file that somebody has changed")


def run(args: Namespace) -> None:
    text = files("shunter").joinpath("SKILL.md").read_text("utf-8")
    if args.action == "show":
        out(text.rstrip("\n"))
        return
    if args.to is not None and args.project:
        raise UsageError("--to and --project name different places", hint="Give one of them.")
    base = "." if args.project else os.path.expanduser("~")
    folders = [os.path.join(base, folder) for folder in FOLDERS] if args.to is None else [args.to]
    paths = [os.path.join(os.path.expanduser(folder), "shunter", "SKILL.md") for folder in folders]
    content = _marked(text)
    changed = [path for path in paths if not args.force and _is_changed(path)]
    if changed:
        raise ConfigError(
            f"somebody has changed {' and '.join(changed)}; nothing was installed",
            hint="Compare it with `shunter skill show`; --force overwrites it.",
        )
    for path in paths:
        verb = _install(path, content)
        out(f"{verb} {path}")


def _marked(text: str) -> bytes:
    data = text.encode()
    return data + f"\n<!-- shunter {__version__} {hashlib.sha256(data).hexdigest()} -->\n".encode()


def _is_changed(path: str) -> bool:
    """Tell whether there is a file that is not as some version of us has installed it."""
    content = _content(path)
    if content is None:
        return False
    mark = _MARK.search(content)
    return mark is None or hashlib.sha256(content[: mark.start()]).hexdigest() != mark[1].decode()


def _content(path: str) -> bytes | None:
    try:
        return read_regular_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _install(path: str, content: bytes) -> str:
    """Write a file, whole or not at all; returns what was done."""
    before = _content(path)
    if before == content:
        return "up to date:"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.new", "wb") as file:
            file.write(content)
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise ConfigError(
            f"cannot install {path}: {error.strerror or error}", hint="Choose another directory: --to DIR."
        ) from error
    return "installed" if before is None else "updated"
