"""Configuration: where values come from, and which one wins.

From weakest to strongest: defaults; the user's ``~/.torchxconfig`` and ``~/.config/trainyard/config.toml``;
the project's ``.torchxconfig``, ``[tool.trainyard]`` of ``pyproject.toml`` and ``trainyard.toml``;
environment variables ``TRAINYARD_*``; the command line. Every value knows where it came from.
"""

from __future__ import annotations

import os
import warnings

from trainyard.errors import ConfigError, InvalidRunConfigException, did_you_mean
from trainyard.paths import config_dir
from trainyard.runner.config_files import (
    COMMAND_LINE,
    DEFAULT,
    ENVIRONMENT,
    INI,
    TOML,
    Setting,
    Source,
    read_ini,
    read_toml,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from trainyard.specs.options import runopt, runopts

__all__ = ["DEFAULT", "Config", "Setting", "check_keys", "effective_options", "load_config"]

TABLES = ("run", "scheduler", "component", "cli", "tracker")
RUN_KEYS: dict[str, type] = {
    "scheduler": str,
    "workspace": str,
    "image": str,
    "component": str,
    "log": bool,
    "wait": bool,
    "detach": bool,
}
#: Keys of ``[run]`` that variables set too: TRAINYARD_SCHEDULER, TRAINYARD_WORKSPACE, TRAINYARD_IMAGE.
RUN_VARIABLES = ("scheduler", "workspace", "image")
INI_VARIABLE = "TORCHXCONFIG"
TRUE_WORDS = ("true", "yes", "on", "1")
FALSE_WORDS = ("false", "no", "off", "0")


class Config:
    """What the configuration files, the weakest first, and the environment set."""

    def __init__(self, sources: Iterable[Source], environ: Mapping[str, str]) -> None:
        self.sources = list(sources)
        self._environ = environ
        for source in self.sources:
            if source.kind == TOML:
                _check_shape(source)

    def scheduler(self, name: str) -> dict[str, Setting]:
        """Return the options that are set for a scheduler, by name, unchecked."""
        return self._merged("scheduler", name) | dict(self._scheduler_variables(name))

    def component(self, name: str) -> dict[str, Setting]:
        """Return the values that are set for a component's parameters, by name."""
        return self._merged("component", name)

    def command(self, cmd: str) -> dict[str, Setting]:
        """Return the values that are set for a subcommand's options; for ``run``, those of ``[run]`` too."""
        settings: dict[str, Setting] = {}
        for source in self.sources:
            if cmd == "run" and source.kind == TOML:
                settings |= _table(source, "run")
            settings |= _table(source, *_table_keys(source, "cli", cmd))
        if cmd == "run":
            for key in RUN_VARIABLES:
                variable = f"TRAINYARD_{key.upper()}"
                if self._environ.get(variable):
                    settings[key] = Setting(self._environ[variable], variable, ENVIRONMENT)
            settings = {key: _checked_run_setting(key, value) for key, value in settings.items()}
        return settings

    def _merged(self, table: str, name: str) -> dict[str, Setting]:
        settings: dict[str, Setting] = {}
        for source in self.sources:
            settings |= _table(source, *_table_keys(source, table, name))
        return settings

    def named_schedulers(self) -> set[str]:
        """Return the schedulers that have a ``[scheduler.<name>]`` table."""
        return {name for s in self.sources if s.kind == TOML for name in s.tables.get("scheduler", {})}

    def trackers(self) -> dict[str, str | None]:
        """Return the experiment trackers of jobs, by name, with their configuration."""
        found: dict[str, str | None] = {}
        for source in self.sources:
            if source.kind == INI:
                names = source.tables.get("torchx:tracker", {})
                found |= {name: source.tables.get(f"tracker:{name}", {}).get("config") for name in names}
            else:
                found |= {name: t.get("config") for name, t in source.tables.get("tracker", {}).items()}
        named = os.environ.get("TORCHX_TRACKERS")
        if named:  # as inside a job: jobs that it starts inherit its trackers
            from trainyard.runner.preparation import tracker_variable

            found = {name: os.environ.get(tracker_variable(name)) for name in named.split(",")}
        return found

    def image(self) -> str | None:
        """Return the default image, for roles without one on schedulers that run containers."""
        setting = self.command("run").get("image")
        return str(setting.value) if setting is not None and setting.value else None

    def check_schedulers(self, known: Iterable[str]) -> None:
        """Refuse ``[scheduler.<name>]`` tables of schedulers that do not exist.

        Sections of a ``.torchxconfig`` may name what only TorchX has; they are left alone.

        Raises:
            ConfigError: the message holds file and line, and similar names.
        """
        names = set(known)
        for source in self.sources:
            if source.kind != TOML:
                continue
            for name in source.tables.get("scheduler", {}):
                if name not in names:
                    raise ConfigError(
                        f"{source.origin('scheduler', name)}: there is no scheduler {name!r}",
                        hint=did_you_mean(name, names),
                    )

    def _scheduler_variables(self, name: str) -> Iterator[tuple[str, Setting]]:
        from trainyard.schedulers.registry import DEFAULT_SCHEDULER_MODULES

        prefix = _variable_prefix(name)
        # TRAINYARD_LOCAL_CWD_X is an option of "local_cwd", not the option "cwd_x" of "local"
        others = {
            _variable_prefix(other) for other in {*self.named_schedulers(), *DEFAULT_SCHEDULER_MODULES}
        } - {prefix}
        longer = tuple(other for other in others if other.startswith(prefix))
        for variable, value in self._environ.items():
            option = variable.removeprefix(prefix)
            if option not in ("", variable) and not variable.startswith(longer):
                yield option.lower(), Setting(value, variable, ENVIRONMENT)


def load_config(cwd: str | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Read the configuration for a directory, by default the current one.

    Raises:
        ConfigError: a file is malformed or holds an unknown table; the message holds file and line.
    """
    directory = cwd or os.getcwd()
    variables = os.environ if environ is None else environ
    named = variables.get(INI_VARIABLE)
    home = os.path.expanduser("~")
    sources = [
        None if named is not None else read_ini(os.path.join(home, ".torchxconfig")),
        read_toml(os.path.join(config_dir(), "config.toml")),
        _project_ini(directory, home) if named is None else _named_ini(named),
        *_project_sources(directory),
    ]
    return Config([source for source in sources if source is not None], variables)


def _named_ini(path: str) -> Source | None:
    source = read_ini(os.path.expanduser(path)) if path else None
    if path and source is None:
        raise ConfigError(
            f"the configuration file {path} does not exist",
            hint=f"{INI_VARIABLE} names it. Unset the variable, or set it to '' to read no such file.",
        )
    return source


def _project_ini(directory: str, home: str) -> Source | None:
    path = os.path.join(directory, ".torchxconfig")
    is_home = os.path.realpath(directory) == os.path.realpath(home)
    return None if is_home or not _is_trusted(path, directory) else read_ini(path, found=True)


def _project_sources(directory: str) -> list[Source]:
    from trainyard.system.trust import search_places

    for place in search_places(directory):
        found = []
        for name, below in (("pyproject.toml", ("tool", "trainyard")), ("trainyard.toml", ())):
            path = os.path.join(place, name)
            if os.path.lexists(path) and _is_trusted(path, directory, below):
                found.append(read_toml(path, below, found=True))
        if any(found):
            return [source for source in found if source is not None]
    return []


def _is_trusted(path: str, directory: str, below: tuple[str, ...] = ()) -> bool:
    """Tell whether a file that was found may be used, and warn if not."""
    from trainyard.system.trust import why_not_trusted

    reason = why_not_trusted(path, directory)
    if not reason:
        return True
    if _has_our_table(path, below):
        warnings.warn(
            f"{path} is ignored: {reason}. To use it: "
            f"git config --global --add safe.directory {os.path.dirname(path)}",
            RuntimeWarning,
            stacklevel=2,
        )
    return False


def _has_our_table(path: str, below: tuple[str, ...]) -> bool:
    """Tell whether a file would have been used; most pyproject.toml files have no table of ours."""
    from trainyard.regular_files import read_regular_file

    try:
        return not below or below[-1].encode() in read_regular_file(path)
    except OSError:
        return False


def _check_shape(source: Source) -> None:
    for table, content in source.tables.items():
        if table not in TABLES:
            raise ConfigError(
                f"{source.origin(table)}: there is no table [{table}]", hint=did_you_mean(table, TABLES)
            )
        if not isinstance(content, dict):
            raise ConfigError(f"{source.origin(table)}: {table} must be a table", hint=f"Write [{table}].")
        if table == "run":
            continue
        for name, inner in content.items():
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"{source.origin(table, name)}: {table}.{name} must be a table",
                    hint=f'Write [{table}."NAME"], and below it {name} = ....',
                )
    check_keys(_table(source, "run"), RUN_KEYS, "[run]")


def check_keys(settings: Mapping[str, Setting], known: Iterable[str], what: str) -> None:
    """Refuse unknown keys in the settings of a table; ``what`` names the table.

    Those of a ``.torchxconfig`` are only warned of.

    Raises:
        ConfigError: the message holds file and line, and similar keys.
    """
    names = list(known)
    for key, setting in settings.items():
        if key in names:
            continue
        if setting.kind == INI:
            text = f"{setting.origin}: {what} has no key {key!r}, so this setting has no effect"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        else:
            raise ConfigError(f"{setting.origin}: {what} has no key {key!r}", hint=did_you_mean(key, names))


def effective_options(
    config: Config,
    scheduler: str,
    opts: runopts,
    cli_cfg: Mapping[str, Any] | None = None,
    *,
    refuse_surplus: bool = True,
) -> dict[str, Setting]:
    """Return the value of every option of a scheduler, and where it came from; ``cli_cfg`` wins.

    An option in a ``.torchxconfig`` that the scheduler does not have is left out, with a warning. Other such
    options are refused, or left out too without ``refuse_surplus``.

    Raises:
        InvalidRunConfigException: an option is unknown, or a value does not fit; the message says where.
        ConfigError: a table names a scheduler that does not exist.
    """
    from trainyard.schedulers.registry import DEFAULT_SCHEDULER_MODULES, get_scheduler_factories

    if not config.named_schedulers() <= {scheduler, *DEFAULT_SCHEDULER_MODULES}:
        config.check_schedulers({scheduler, *get_scheduler_factories()})
    result = {name: Setting(opt.default, DEFAULT, DEFAULT) for name, opt in opts if not opt.is_required}
    given = config.scheduler(scheduler)
    given |= {key: Setting(value, COMMAND_LINE) for key, value in (cli_cfg or {}).items()}
    by_lower = {name.lower(): name for name, _ in opts}
    for key, setting in given.items():
        name = by_lower.get(key, key) if setting.kind == ENVIRONMENT else opts.name_of(key)
        if _is_placeholder(setting):
            continue
        opt = opts.get(name)
        if opt is None:
            from trainyard.specs.options import hint_for

            known = [name for name, _ in opts]
            if setting.kind == INI or not refuse_surplus:
                text = f"{setting.origin}: {scheduler} has no option {key!r}, so this setting has no effect. "
                warnings.warn(text + hint_for(key, known), RuntimeWarning, stacklevel=2)
                continue
            raise InvalidRunConfigException(
                f"{setting.origin}: {scheduler} has no option {key!r}", key, hint=hint_for(key, known)
            )
        result[name] = Setting(_convert(name, opt, setting), setting.origin, setting.kind, setting.project)
    return result


def _convert(name: str, opt: runopt, setting: Setting) -> Any:
    from trainyard.specs.conversion import ConversionError

    try:
        if setting.kind == INI:
            return convert_ini(opt, setting.value)
        return opt.convert(setting.value)
    except ConversionError as error:
        raise InvalidRunConfigException(
            f"{setting.origin}: option {name!r} ({opt.opt_type_name}): {error}", name
        ) from None


def convert_ini(opt: runopt, text: str) -> Any:
    """Convert a value of ``.torchxconfig``, where None is written out, and only ``;`` separates items."""
    from trainyard.specs.conversion import from_text, is_list_type, list_item_type

    if text == "None" and not opt.is_required:
        return None
    if not is_list_type(opt.opt_type):
        return opt.convert(text)
    item_type = list_item_type(opt.opt_type)
    if text.startswith('["' if item_type is str else "["):  # JSON; a plain text may be a pattern: [A-Z]*
        return opt.convert(text)
    return [from_text(item_type, item.strip()) for item in text.split(";") if item.strip()]


def _is_placeholder(setting: Setting) -> bool:
    """Tell whether TorchX's ``configure`` wrote it as a value to fill in."""
    return setting.kind == INI and str(setting.value).startswith("#FIXME")


def _checked_run_setting(key: str, setting: Setting) -> Setting:
    wanted = RUN_KEYS.get(key)
    value = setting.value
    if wanted is bool and isinstance(value, str) and value.lower() in TRUE_WORDS + FALSE_WORDS:
        return Setting(value.lower() in TRUE_WORDS, setting.origin, setting.kind, setting.project)
    if wanted is not None and not isinstance(value, wanted):
        kind = "true or false" if wanted is bool else "a string"
        raise ConfigError(f"{setting.origin}: {key} must be {kind}, not {value!r}")
    return setting


def _table_keys(source: Source, table: str, name: str) -> tuple[str, ...]:
    if source.kind == TOML:
        return table, name
    return (name,) if table == "scheduler" else (f"{table}:{name}",)


def _table(source: Source, *keys: str) -> dict[str, Setting]:
    table: Any = source.tables
    for key in keys:
        table = table.get(key, {})
    return {key: source.setting(*keys, key) for key in table}


def _variable_prefix(scheduler: str) -> str:
    return f"TRAINYARD_{scheduler.upper().replace('-', '_')}_"
