"""Show the configuration, each value with the file and line it comes from, or start a configuration file.

trainyard config show                     all of it
trainyard config show local_cwd           one section: run, a scheduler, component.NAME, cli.NAME
trainyard config init                     write a commented trainyard.toml
"""

from __future__ import annotations

import os

from trainyard.cli.console import note, out, print_json
from trainyard.cli.parser import add_json_option
from trainyard.errors import EXIT_OK, ConfigError, UsageError, did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

ACTIONS = ("show", "init")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("action", nargs="?", default="show", metavar="show | init", help="what to do")
    parser.add_argument("section", nargs="?", metavar="SECTION", help="show only this section")
    add_json_option(parser)
    parser.add_argument(
        "--user", action="store_true", help="init: write the file that holds for all projects"
    )
    parser.add_argument("--print", action="store_true", help="init: print the file instead of writing it")
    parser.add_argument("--force", action="store_true", help="init: overwrite a file that exists")


def run(args: Namespace) -> int:
    """Run the command."""
    if args.action not in ACTIONS:
        raise UsageError(
            f"config can show and init, not {args.action!r}", hint=did_you_mean(args.action, ACTIONS)
        )
    return _init(args) if args.action == "init" else _show(args)


def _show(args: Namespace) -> int:
    from trainyard.cli.configview import all_sections, as_text

    sections = all_sections()
    if args.section:
        name = args.section if args.section in sections else f"scheduler.{args.section}"
        if name not in sections:
            raise UsageError(
                f"the configuration has no section {args.section!r}",
                hint=did_you_mean(
                    args.section, [*sections, *(s.partition(".")[2] for s in sections if "." in s)]
                ),
            )
        sections = {name: sections[name]}
    if args.json:
        print_json(
            {
                name: {key: {"value": entry.value, "origin": entry.origin} for key, entry in section.items()}
                for name, section in sections.items()
            }
        )
    else:
        out(as_text(sections))
    return EXIT_OK


def _init(args: Namespace) -> int:
    from trainyard.cli.configview import template
    from trainyard.paths import config_dir

    if args.section or args.json:
        raise UsageError("config init takes neither a section nor --json")
    text = template()
    if args.print:
        out(text.rstrip("\n"))
        return EXIT_OK
    path = os.path.join(config_dir(), "config.toml") if args.user else "trainyard.toml"
    try:
        if args.user:
            os.makedirs(config_dir(), exist_ok=True)
        with open(path, "w" if args.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists", hint="--force overwrites it, --print only shows it.") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    note("wrote, with every option as a comment:")
    out(path)
    return EXIT_OK
