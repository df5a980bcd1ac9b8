"""Configuration files: where they are, and reading them.

TOML, TorchX's INI and the header of a script give the same tables.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shunter.errors import ConfigError, did_you_mean
from shunter.paths import config_dir, read_regular_file
from shunter.specs.conversion import ConversionError, from_text, is_list_type, list_item_type
from shunter.specs.job_words import JOB_WORDS, TIME, job_word
from shunter.specs.options import runopt
from shunter.specs.script_header import read_header
from shunter.system.ownership import search_places, why_not_used

TOML = "toml"
INI = "ini"
HEADER = "header"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"
DEFAULT = "default"

TABLES = ("run", "scheduler", "component", "cli", "tracker")
INI_TABLES = ("component", "cli", "tracker", "torchx")
INI_NAME = ".torchxconfig"
INI_VARIABLE = "TORCHXCONFIG"


@dataclass
class Setting:
    """A value and where it came from.

    Attributes:
        value: the value: of TOML's type, a text from other sources.
        origin: the file, the header of a script, the environment variable, "command line" or "default".
        kind: "toml", "ini", "header", "environment", "command line" or "default".
        project: the directory of the project whose file sets it; "" if the user set it.
    """

    value: Any
    origin: str
    kind: str = COMMAND_LINE
    project: str = ""


@dataclass(frozen=True)
class Source:
    """One configuration file, or the header of a script, read.

    Attributes:
        path: the file.
        kind: "toml", "ini" or "header".
        tables: the values of each table, such as ``("scheduler", "slurm")`` and ``("run", "")``;
            ``("tracker", "")`` has the configuration of each tracker, ``("job", "")`` what any scheduler
            has an option for.
        project: the directory it was found in; "" for the user's own file.
    """

    path: str
    kind: str
    tables: Mapping[tuple[str, str], Mapping[str, Any]]
    project: str = ""

    @property
    def real_path(self) -> str:
        """The file's path, with no symbolic link on the way to it."""
        directory, name = os.path.split(os.path.abspath(self.path))
        return os.path.join(os.path.realpath(directory), name)

    @property
    def digest(self) -> str:
        """A digest of all that the file sets; not of comments, nor of tables of other programs.

        Nor, of a script, of how it was named on the command line, and of its code.
        """
        tables: Mapping[Any, Any] = self.tables
        if self.kind == HEADER:
            tables = {
                (table, name if table == "scheduler" else ""): values
                for (table, name), values in tables.items()
            }
        return hashlib.sha256(repr(tables).encode("utf-8", "surrogatepass")).hexdigest()

    def settings(self, table: str, name: str = "") -> dict[str, Setting]:
        """Return the values of ``[table.name]``, or without a name of ``[table]``."""
        values = self.tables.get((table, name), {})
        origin = f"the header of {self.path}" if self.kind == HEADER else self.path
        return {key: Setting(value, origin, self.kind, self.project) for key, value in values.items()}


def setting_name(kind: str, table: str, name: str, key: str) -> str:
    """Return how messages call a setting of a source of a kind: ``scheduler.slurm.partition``."""
    if kind == HEADER:  # where the tables have other names
        return f"{name}.{key}" if table == "scheduler" else key
    return ".".join(part for part in (table, name, key) if part)


# ---- finding files


def find_sources(directory: str, environ: Mapping[str, str]) -> list[Source]:
    """Read the configuration files for a directory, the weakest first.

    Raises:
        ConfigError: a file is malformed or holds an unknown table.
    """
    home = os.path.expanduser("~")
    user_file = read_toml(os.path.join(config_dir(), "config.toml"))
    named = environ.get(INI_VARIABLE)
    if named is not None:
        files = [user_file, _named_ini(named)]
    else:
        files = [read_ini(os.path.join(home, INI_NAME)), user_file]
        if os.path.realpath(directory) != os.path.realpath(home):
            files.append(_read_if_allowed(directory, INI_NAME, directory))
    for place in search_places(directory):
        own = [_read_if_allowed(place, name, directory) for name in ("pyproject.toml", "shunter.toml")]
        if any(own):
            files += own
            break
    return [source for source in files if source is not None]


def _named_ini(path: str) -> Source | None:
    source = read_ini(os.path.expanduser(path)) if path else None
    if path and source is None:
        raise ConfigError(
            f"the configuration file {path} does not exist",
            hint=f"{INI_VARIABLE} names it. Unset the variable, or set it to '' to read no such file.",
        )
    return source


def _read_if_allowed(place: str, name: str, directory: str) -> Source | None:
    """Read a project's file; returns None, with a warning, if it may not be used in a directory."""
    path = os.path.join(place, name)
    reason = why_not_used(path, directory)
    if not reason:
        return read_project_file(path)
    if _has_our_table(path):
        warnings.warn(
            f"{path} is ignored: {reason}. To use it: git config --global --add safe.directory {place}",
            RuntimeWarning,
            stacklevel=2,
        )
    return None


def _has_our_table(path: str) -> bool:
    try:
        return not path.endswith("pyproject.toml") or b"shunter" in read_regular_file(path)
    except OSError:
        return False


# ---- reading files


def read_project_file(path: str) -> Source | None:
    """Read a configuration file of a project, or the header of a script.

    Returns None if it does not exist, or has no table of ours.

    Raises:
        ConfigError: it cannot be read, or is malformed.
    """
    project = os.path.dirname(path)
    if os.path.basename(path) == INI_NAME:
        return read_ini(path, project)
    return read_toml(path, project) if path.endswith(".toml") else read_script_header(path)


def read_toml(path: str, project: str = "") -> Source | None:
    """Read a TOML file, of ``pyproject.toml`` the table ``[tool.shunter]``.

    Returns None if the file, or the table in it, does not exist.

    Raises:
        ConfigError: it cannot be read, is malformed, or holds an unknown table.
    """
    text = _read(path, project)
    is_shared = os.path.basename(path) == "pyproject.toml"
    if text is None or (is_shared and "shunter" not in text):
        return None
    try:
        document: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: this is not valid TOML: {error}", hint="Correct the file and try again."
        ) from None
    if is_shared:
        tool = document.get("tool")
        document = tool.get("shunter") if isinstance(tool, dict) else None
        if not isinstance(document, dict):
            return None
    tables: dict[tuple[str, str], dict[str, Any]] = {}
    for table, content in document.items():
        if table not in TABLES:
            raise ConfigError(f"{path}: there is no table [{table}]", hint=did_you_mean(table, TABLES))
        if not isinstance(content, dict):
            hint = f'For the scheduler of jobs: [cli.run], below it {table} = "slurm".'
            raise ConfigError(
                f"{path}: {table} must be a table", hint=hint if table == "scheduler" else f"Write [{table}]."
            )
        if table == "run":
            tables[table, ""] = content
            continue
        for name, values in content.items():
            if not isinstance(values, dict):
                raise ConfigError(
                    f"{path}: {table}.{name} must be a table",
                    hint=f'Write [{table}."NAME"], and below it {name} = ....',
                )
            if table == "tracker":
                tables.setdefault((table, ""), {})[name] = values.get("config")
            else:
                tables[table, name] = values
    return Source(path, TOML, tables, project)


def read_ini(path: str, project: str = "") -> Source | None:
    """Read a ``.torchxconfig``; returns None if it does not exist.

    ``[slurm]`` is the table ``scheduler.slurm``, ``[component:X]`` and ``[cli:X]`` are ``component.X`` and
    ``cli.X``. A tracker that ``[torchx:tracker]`` names is ``tracker.X``, configured in ``[tracker:X]``.

    Raises:
        ConfigError: it cannot be read, or is malformed.
    """
    text = _read(path, project)
    if text is None:
        return None
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    try:
        parser.read_string(text, path)
    except configparser.Error as error:
        raise ConfigError(
            f"{path}: this is not a valid {INI_NAME}: {' '.join(str(error).split())}",
            hint="Example: [local_cwd], and below it log_dir = /tmp/x",
        ) from None
    tables: dict[tuple[str, str], dict[str, Any]] = {}
    for section in parser.sections():
        table, colon, name = section.partition(":")
        if not colon:
            table, name = "scheduler", section
        elif table not in INI_TABLES:
            continue
        # TorchX's `configure` writes #FIXME where a value is to be filled in
        values = {key: value for key, value in parser.items(section) if not value.startswith("#FIXME")}
        tables.setdefault((table, name), {}).update(values)
    named = tables.get(("torchx", "tracker"), {})
    trackers = {name: tables.get(("tracker", name), {}).get("config") for name in named}
    tables = {key: values for key, values in tables.items() if key[0] not in ("tracker", "torchx")}
    return Source(path, INI, {**tables, ("tracker", ""): trackers}, project)


def read_script_header(script: str, component: str = "") -> Source | None:
    """Read ``[tool.shunter]`` of a script's header (PEP 723); returns None if it has none.

    The words of `specs.job_words` become arguments of a component, ``scheduler`` a key of ``run``, and the
    table ``[tool.shunter.slurm]`` is ``scheduler.slurm``.

    Args:
        script: its path.
        component: the component that runs it; by default the script itself is named as one.

    Raises:
        ConfigError: the script cannot be read, the header is malformed, or a key or value in it is wrong.
    """
    project = os.path.dirname(os.path.abspath(script))
    try:
        text = read_regular_file(os.path.expanduser(script)).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"cannot read the script {script}: {error.strerror}") from None
    tool = (read_header(text, script) or {}).get("tool")
    document = tool.get("shunter") if isinstance(tool, dict) else None
    if document is None:
        return None
    if not isinstance(document, dict):
        raise ConfigError(f"the header of {script}: tool.shunter must be a table", hint="[tool.shunter]")
    arguments: dict[str, Any] = {}
    tables: dict[tuple[str, str], dict[str, Any]] = {("component", component or script): arguments}
    problems, hints = [], []
    for key, value in document.items():
        word = job_word(key)
        if key == "scheduler":
            tables["run", ""] = {key: value}
        elif word is not None:
            try:
                converted = word.of_value(value)
            except ConversionError as error:
                problems.append(f"{key}: {error}")
                continue
            if word.name == TIME:
                tables["job", ""] = {TIME: converted}
            else:
                arguments[word.parameter] = converted
        elif isinstance(value, dict):
            tables["scheduler", key] = value
        else:
            problems.append(f"there is no key {key!r}")
            hints.append(did_you_mean(key, [*JOB_WORDS, "scheduler"]))
    if problems:
        raise ConfigError(f"the header of {script}: {'; '.join(problems)}", hint="\n".join(hints))
    return Source(script, HEADER, tables, project)


def _read(path: str, project: str) -> str | None:
    try:
        # what the user names may be a pipe, such as a shell's <(...)
        return read_regular_file(path, special=not project).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: this is not UTF-8 text (byte {error.start})", hint="Save it as UTF-8."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {path}: {error.strerror}",
            hint="Make it a regular file that you can read, or remove it.",
        ) from None


# ---- values of options


def convert(opt: runopt, setting: Setting) -> Any:
    """Return a setting as a value of an option's type.

    Raises:
        ConversionError: it does not fit.
    """
    return convert_ini(opt, setting.value) if setting.kind == INI else opt.convert(setting.value)


def convert_ini(opt: runopt, text: str) -> Any:
    """Convert a value of ``.torchxconfig``, where None is written out, and only ``;`` separates items."""
    if text == "None" and not opt.is_required:
        return None
    if not is_list_type(opt.opt_type):
        return opt.convert(text)
    item_type = list_item_type(opt.opt_type)
    if text.startswith('["' if item_type is str else "["):  # JSON; a plain text may be a pattern: [A-Z]*
        return opt.convert(text)
    return [from_text(item_type, item.strip()) for item in text.split(";") if item.strip()]
