"""Show the configuration and what sets each value, or create a configuration file.

shunter config show                     everything
shunter config show local_cwd           one section: run, a scheduler, component.NAME, cli.NAME
shunter config show ./train.py          what holds for a script: its header, and what it leaves to the files
shunter config init                     write a commented shunter.toml
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from shunter.cli.console import note, out, print_result, warn
from shunter.cli.parser import Parser, add_json_option
from shunter.components.finder import is_script
from shunter.errors import ConfigError, ShunterError, UsageError, did_you_mean
from shunter.paths import config_dir
from shunter.redaction import Redactor
from shunter.runner import get_runner
from shunter.runner.config import Setting, effective_options, load_config
from shunter.runner.config_files import read_script_header
from shunter.schedulers.registry import get_default_scheduler_name, get_scheduler_factories
from shunter.specs.options import runopt, runopts
from shunter.terminal import clean

#: The origin of a required option that nothing sets.
NOT_SET = "(required, not set)"
_EXAMPLES = {
    "bool": "true",
    "int": "1",
    "float": "1.0",
    "list[str]": '["a", "b"]',
    "dict[str, str]": '{ k = "v" }',
}
_TEMPLATE = """\
# Configuration of shunter. `shunter config show` shows all values and where they are set.
# It is overridden by variables (SHUNTER_SCHEDULER, SHUNTER_<SCHEDULER>_<OPTION>) and the
# command line.

[run]
# scheduler = "local_cwd"  # where jobs run
# component = "utils.echo"  # the component if none is named
# workspace = "."  # the code that travels with the job
# wait = true  # wait for the end of jobs
# log = true  # follow their logs
{schedulers}
# Defaults for the arguments of components:
# [component."utils.echo"]
# msg = "hello"
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        default="show",
        choices=("show", "init"),
        metavar="show | init",
        help="what to do",
    )
    parser.add_argument(
        "section", nargs="?", metavar="SECTION", help="show only this section, or what holds for a script"
    )
    add_json_option(parser)
    parser.add_flag("--user", help="init: write the file for all projects of this user")
    parser.add_flag("--print", help="init: print the file instead of writing it")
    parser.add_flag("--force", help="init: overwrite a file that exists")


def run(args: Namespace) -> None:
    if args.action == "init":
        _init(args)
        return
    is_script_named = bool(args.section) and is_script(args.section) and os.path.isfile(args.section)
    sections = _all_sections(args.section if is_script_named else "")
    if is_script_named:
        sections = _sections_of_script(sections, args.section)
    elif args.section:
        name = args.section if args.section in sections else f"scheduler.{args.section}"
        if name not in sections:
            names = [*sections, *(name.partition(".")[2] for name in sections if "." in name)]
            raise UsageError(
                f"the configuration has no section {args.section!r}", hint=did_you_mean(args.section, names)
            )
        sections = {name: sections[name]}
    data = {
        name: {key: {"value": entry.value, "origin": entry.origin} for key, entry in section.items()}
        for name, section in sections.items()
    }
    blocks = ["\n".join([f"[{name}]", *_lines(section)]) for name, section in sections.items()]
    print_result(args.json, data, ["\n\n".join(blocks)])


def _init(args: Namespace) -> None:
    if args.section or args.json:
        raise UsageError("config init takes neither a section nor --json")
    schedulers = ""
    for name, options in _scheduler_options().items():
        lines = [line for key, option in options for line in _option_lines(key, option)]
        schedulers += "\n".join(["", f"[scheduler.{name}]", *lines, ""])
    text = _TEMPLATE.format(schedulers=schedulers)
    if args.print:
        out(text.rstrip("\n"))
        return
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


def _sections_of_script(
    sections: dict[str, dict[str, Setting]], script: str
) -> dict[str, dict[str, Setting]]:
    """Return the sections that hold for a script, and of its schedulers' options only those that are set."""
    header = read_script_header(script)
    schedulers = {sections["run"]["scheduler"].value}
    schedulers |= {name for table, name in (header.tables if header else ()) if table == "scheduler"}
    names = ["component.train.script", f"component.{script}", *(f"scheduler.{name}" for name in schedulers)]
    shown = {name: section for name, section in sections.items() if name in names}
    are_set = {
        name: {key: entry for key, entry in section.items() if entry.origin not in ("default", NOT_SET)}
        for name, section in shown.items()
    }
    return {"run": sections["run"], **are_set}


def _all_sections(script: str = "") -> dict[str, dict[str, Setting]]:
    """Return every section: ``run``, ``scheduler.X``, ``component.X``, ``cli.X``; secrets are masked.

    With a script, its header counts too.

    Raises:
        ConfigError: a file is malformed or holds unknown settings; the message names the file.
    """
    config = load_config()
    if script:
        config.add_header(script)
    default = {"scheduler": Setting(get_default_scheduler_name(), "default")}
    sections = {"run": default | _masked(config.command("run"))}
    config.check_schedulers(get_scheduler_factories())
    for name, options in _scheduler_options().items():
        settings = effective_options(config, name, options, refuse_withheld=False)
        missing = {key: Setting(None, NOT_SET) for key, option in options if option.is_required}
        sections[f"scheduler.{name}"] = _masked(settings, options) | {
            key: setting for key, setting in missing.items() if key not in settings
        }
    for table, read in (("component", config.component), ("cli", config.command)):
        for name in sorted(
            {name for source in config.sources for kind, name in source.tables if kind == table}
        ):
            if (table, name) != ("cli", "run"):
                sections[f"{table}.{name}"] = _masked(read(name))
    config.warn_of_withheld()
    return sections


def _masked(settings: Mapping[str, Setting], options: Any = ()) -> dict[str, Setting]:
    values = Redactor().options({key: setting.value for key, setting in settings.items()}, options)
    return {key: Setting(values[key], setting.origin) for key, setting in settings.items()}


def _scheduler_options() -> dict[str, runopts]:
    """Return the options of every scheduler; warn of those that cannot be loaded."""
    options = {}
    with get_runner() as runner:
        for name in runner.scheduler_backends():
            try:
                options[name] = runner.scheduler_run_opts(name)
            except ShunterError as error:
                warn(f"{name}: {error.message}")
    return options


def _lines(section: dict[str, Setting]) -> list[str]:
    """Return settings as lines ``name = value   # origin``."""
    texts = {}
    for key, setting in section.items():
        value = "(none)" if setting.value is None else _toml(setting.value)
        texts[key] = key if setting.origin == NOT_SET else f"{key} = {clean(value)}"
    width = min(max(map(len, texts.values()), default=0), 60)
    return [f"{text:{width}}  # {section[key].origin}" for key, text in texts.items()]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def _option_lines(key: str, option: runopt) -> list[str]:
    default = (
        "required"
        if option.is_required
        else f"default: {'none' if option.default is None else option.default}"
    )
    example = _EXAMPLES.get(option.opt_type_name, '"..."')
    if option.default is not None and not option.secret:
        example = _toml(option.default)
    return [f"# {option.help} ({option.opt_type_name}, {default})", f"# {key} = {example}"]
