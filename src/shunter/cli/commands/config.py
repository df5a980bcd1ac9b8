"""Show the configuration and what sets each value, or create a configuration file.

shunter config show                     everything
shunter config show local_cwd           one section: run, a scheduler, component.NAME, cli.NAME
shunter config init                     write a commented shunter.toml
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from typing import Any, NamedTuple

from shunter.cli.console import note, out, print_json, warn
from shunter.cli.parser import add_json_option
from shunter.errors import EXIT_OK, ConfigError, ShunterError, UsageError, did_you_mean
from shunter.paths import config_dir
from shunter.redaction import Redactor
from shunter.runner import get_runner
from shunter.runner.config import Config, Setting, effective_options, load_config
from shunter.schedulers.registry import get_default_scheduler_name, get_scheduler_factories
from shunter.specs.options import runopt
from shunter.terminal import clean

ACTIONS = ("show", "init")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="show", metavar="show | init", help="what to do")
    parser.add_argument("section", nargs="?", metavar="SECTION", help="show only this section")
    add_json_option(parser)
    parser.add_argument(
        "--user", action="store_true", help="init: write the file for all projects of this user"
    )
    parser.add_argument("--print", action="store_true", help="init: print the file instead of writing it")
    parser.add_argument("--force", action="store_true", help="init: overwrite a file that exists")


def run(args: Namespace) -> int:
    if args.action not in ACTIONS:
        raise UsageError(
            f"the action must be show or init, not {args.action!r}", hint=did_you_mean(args.action, ACTIONS)
        )
    return _init(args) if args.action == "init" else _show(args)


def _show(args: Namespace) -> int:
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
    if args.section or args.json:
        raise UsageError("config init takes neither a section nor --json")
    text = template()
    if args.print:
        out(text.rstrip("\n"))
        return EXIT_OK
    path = os.path.join(config_dir(), "config.toml") if args.user else "shunter.toml"
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


# ---- all sections, each value with its origin

NOT_SET = "(required, not set)"


class ShownValue(NamedTuple):
    """A value, masked if it is secret, and where it is set."""

    value: Any
    origin: str


Sections = dict[str, dict[str, ShownValue]]


def all_sections() -> Sections:
    """Return every section: ``run``, ``scheduler.X``, ``component.X``, ``cli.X``.

    Raises:
        ConfigError: a file is malformed or holds unknown settings; the message names the file.
    """
    config = load_config()
    sections: Sections = {
        "run": {"scheduler": ShownValue(get_default_scheduler_name(), "default")}
        | _shown_values(config.command("run"))
    }
    config.check_schedulers(get_scheduler_factories())
    for name, options in scheduler_options().items():
        sections[f"scheduler.{name}"] = _scheduler_section(config, name, options)
    for name in _named(config, "component"):
        sections[f"component.{name}"] = _shown_values(config.component(name))
    for name in _named(config, "cli"):
        if name != "run":
            sections[f"cli.{name}"] = _shown_values(config.command(name))
    config.warn_of_withheld()
    return sections


def scheduler_options() -> dict[str, Any]:
    """Return the options of every scheduler; warn of those that cannot be loaded."""
    options = {}
    with get_runner() as runner:
        for name in runner.scheduler_backends():
            try:
                options[name] = runner.scheduler_run_opts(name)
            except ShunterError as error:
                warn(f"{name}: {error.message}")
    return options


def _scheduler_section(config: Config, name: str, options: Any) -> dict[str, ShownValue]:
    section = _shown_values(effective_options(config, name, options, refuse_withheld=False), options)
    for key, opt in options:
        if opt.is_required and key not in section:
            section[key] = ShownValue(None, NOT_SET)
    return section


def _named(config: Config, table: str) -> list[str]:
    """Return the names of a table's subtables: ``[component."utils.echo"]``, ``[cli:list]``."""
    return sorted({name for source in config.sources for kind, name in source.tables if kind == table})


def _shown_values(settings: dict[str, Setting], options: Any = ()) -> dict[str, ShownValue]:
    values = Redactor().options({key: setting.value for key, setting in settings.items()}, options)
    return {key: ShownValue(values[key], setting.origin) for key, setting in settings.items()}


def as_text(sections: Sections) -> str:
    """Return sections as lines ``name = value   # origin``."""
    blocks = []
    for name, section in sections.items():
        lines = [f"[{name}]"]
        pairs = [
            (f"{key} = {clean(_shown(entry.value))}" if entry.origin != NOT_SET else key, entry.origin)
            for key, entry in section.items()
        ]
        width = min(max((len(left) for left, _ in pairs), default=0), 60)
        lines += [f"{left:{width}}  # {origin}" for left, origin in pairs]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _shown(value: Any) -> str:
    return "(none)" if value is None else _toml(value)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def template() -> str:
    """Return a configuration file with every option as a comment."""
    lines = [
        "# Configuration of shunter. `shunter config show` shows all values and where they are set.",
        "# It is overridden by variables (SHUNTER_SCHEDULER, SHUNTER_<SCHEDULER>_<OPTION>) and the",
        "# command line.",
        "",
        "[run]",
        '# scheduler = "local_cwd"  # where jobs run',
        '# component = "utils.echo"  # the component if none is named',
        '# workspace = "."  # the code that travels with the job',
        "# wait = true  # wait for the end of jobs",
        "# log = true  # follow their logs",
    ]
    for name, options in scheduler_options().items():
        lines += ["", f"[scheduler.{name}]"]
        for key, opt in options:
            lines += _option_lines(key, opt)
    lines += [
        "",
        "# Defaults for the arguments of components:",
        '# [component."utils.echo"]',
        '# msg = "hello"',
    ]
    return "\n".join(lines) + "\n"


def _option_lines(key: str, opt: runopt) -> list[str]:
    note = "required" if opt.is_required else f"default: {'none' if opt.default is None else opt.default}"
    example = _example(opt)
    return [f"# {opt.help} ({opt.opt_type_name}, {note})", f"# {key} = {example}"]


def _example(opt: runopt) -> str:
    if opt.default is not None and not opt.secret:
        return _toml(opt.default)
    examples = {
        "bool": "true",
        "int": "1",
        "float": "1.0",
        "list[str]": '["a", "b"]',
        "dict[str, str]": '{ k = "v" }',
    }
    return examples.get(opt.opt_type_name, '"..."')
