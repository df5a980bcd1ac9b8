"""TorchX's functions for ``.torchxconfig`` (``torchx.runner.config``), for scripts and the command `torchx`.

shunter's own commands read these files with `shunter.runner.config`.
"""

from __future__ import annotations

import configparser
import contextlib
import logging
import os
from collections.abc import Iterable
from typing import Any, TextIO

from shunter.errors import InvalidRunConfigException
from shunter.runner.config_files import convert_ini
from shunter.schedulers.registry import get_scheduler_factories, get_scheduler_factory

CONFIG_FILE = ".torchxconfig"
CONFIG_PREFIX_DELIM = ":"
ENV_TORCHXCONFIG = "TORCHXCONFIG"

log = logging.getLogger(__name__)


def find_configs(dirs: Iterable[str] | None = None) -> list[str]:
    """Return the configuration files in order of precedence: only TORCHXCONFIG's, or those in the folders.

    Raises:
        FileNotFoundError: the variable TORCHXCONFIG names a file that does not exist.
    """
    named = os.environ.get(ENV_TORCHXCONFIG)
    if named is not None:
        if not named:
            return []
        if not os.path.isfile(named):
            raise FileNotFoundError(f"{ENV_TORCHXCONFIG} names {named}, which does not exist")
        return [named]
    folders = list(dirs or (os.path.expanduser("~"), os.getcwd()))
    paths = [os.path.join(folder, CONFIG_FILE) for folder in folders]
    return [path for path in paths if os.path.isfile(path)]


def load_sections(prefix: str, dirs: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """Return the sections ``[prefix:NAME]`` by name; of several files the first that has a key wins."""
    found: dict[str, dict[str, str]] = {}
    for path in find_configs(dirs):
        with open(path, encoding="utf-8") as file:
            parser = _parser(file)
        for section in parser.sections():
            kind, delimiter, name = section.partition(CONFIG_PREFIX_DELIM)
            if kind == prefix and delimiter and name:
                values = found.setdefault(name, {})
                for key, value in parser.items(section):
                    values.setdefault(key, value)
    return found


def get_configs(prefix: str, name: str, dirs: Iterable[str] | None = None) -> dict[str, str]:
    """Return the section ``[prefix:name]``; {} without one."""
    return load_sections(prefix, dirs).get(name, {})


def get_config(prefix: str, name: str, key: str, dirs: Iterable[str] | None = None) -> str | None:
    """Return one value of the section ``[prefix:name]``; None without it."""
    return get_configs(prefix, name, dirs).get(key)


def apply(scheduler: str, cfg: dict[str, Any], dirs: Iterable[str] | None = None) -> None:
    """Add the options of the configuration files to ``cfg``, where it does not have them."""
    for path in find_configs(dirs):
        with open(path, encoding="utf-8") as file:
            load(scheduler, file, cfg)


def load(scheduler: str, f: TextIO, cfg: dict[str, Any]) -> None:
    """Add the options in the section of a scheduler to ``cfg``, where it does not have them.

    An option that the scheduler does not have is left out, with a warning.

    Raises:
        InvalidRunConfigException: an option is given under two spellings, with different values.
    """
    parser = _parser(f)
    if not parser.has_section(scheduler):
        return
    with contextlib.closing(get_scheduler_factory(scheduler)("torchx")) as made:
        options = made.run_opts()
    found: dict[str, Any] = {}
    for key, text in parser.items(scheduler):
        option = options.get(key)
        if text.startswith("#FIXME"):
            continue
        if option is None:
            log.warning("%s has no option %s, which is left out", scheduler, key)
            continue
        name, value = options.name_of(key), convert_ini(option, text)
        if found.setdefault(name, value) != value:
            raise InvalidRunConfigException(
                f"option {name!r} is given in two spellings, with different values", name, found
            )
    for name, value in found.items():
        cfg.setdefault(name, value)


def dump(f: TextIO, schedulers: Iterable[str] | None = None, required_only: bool = False) -> None:
    """Write a configuration with the options of schedulers, all by default; required ones to be filled in.

    Raises:
        UnknownSchedulerException: there is no such scheduler.
    """
    for name in schedulers or get_scheduler_factories():
        with contextlib.closing(get_scheduler_factory(name)("torchx")) as scheduler:
            options = scheduler.run_opts()
        f.write(f"[{name}]\n")
        for key, option in options:
            if option.is_required:
                f.write(f"{key} = #FIXME:({option.opt_type_name}) {option.help}\n")
            elif not required_only:
                f.write(f"{key} = {_text(option.default)}\n")
        f.write("\n")


def _parser(file: TextIO) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_file(file)
    return parser


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ";".join(f"{key}:{item}" for key, item in value.items()) or "None"
    return (";".join(map(str, value)) or "None") if isinstance(value, list) else str(value)
