"""Configuration: where values come from, and which one wins.

From weakest to strongest: defaults; the user's ``~/.torchxconfig`` and ``~/.config/shunter/config.toml``;
the project's ``.torchxconfig``, ``[tool.shunter]`` of ``pyproject.toml`` and ``shunter.toml``;
environment variables ``SHUNTER_*``; the command line. Every value knows where it came from.

What a project's file may set only once the user has trusted it (`project_trust`) is withheld until then:
commands that submit refuse to go on without it, others ignore it with a warning.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from shunter.components.sensitive_parameters import what_it_names
from shunter.errors import (
    ConfigError,
    InvalidRunConfigException,
    ShunterError,
    UnknownSchedulerException,
    did_you_mean,
)
from shunter.paths import config_dir, read_regular_file
from shunter.runner.config_files import (
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
from shunter.runner.project_trust import SensitiveSetting, checked, is_trusted, kind_of_run_key
from shunter.schedulers.registry import (
    DEFAULT_SCHEDULER_MODULES,
    as_scheduler,
    get_scheduler_factories,
    get_scheduler_factory,
)
from shunter.specs.conversion import ConversionError, from_text, is_list_type, list_item_type
from shunter.specs.options import PLUGIN, UNDECLARED, hint_for, runopt, runopts
from shunter.system.ownership import search_places, why_not_used

KindOf = Callable[[str, Setting], str]

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
#: Keys of ``[run]`` that variables set too: SHUNTER_SCHEDULER, SHUNTER_WORKSPACE, SHUNTER_IMAGE.
RUN_VARIABLES = ("scheduler", "workspace", "image")
INI_VARIABLE = "TORCHXCONFIG"
TRUE_WORDS = ("true", "yes", "on", "1")
FALSE_WORDS = ("false", "no", "off", "0")


class LayeredSettings(dict[str, "Setting"]):
    """Settings by key, each from the strongest source.

    Attributes:
        withheld: those that a project's file sets, but may not until the user has trusted it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.withheld: dict[str, Setting] = {}

    def override(self, key: str, setting: Setting, *, withheld: bool = False) -> None:
        """Set a key, or withhold its setting; what was there before counts as overridden."""
        if withheld:
            self.withheld[key] = setting
        else:
            self.withheld.pop(key, None)
            self[key] = setting


class Config:
    """What the configuration files, the weakest first, and the environment set."""

    def __init__(self, sources: Iterable[Source], environ: Mapping[str, str]) -> None:
        self.sources = list(sources)
        self._environ = environ
        self._options: dict[str, runopts | None] = {}
        self._trusted: dict[str, bool] = {}
        for source in self.sources:
            if source.kind == TOML:
                _check_shape(source)

    def scheduler(self, name: str, opts: runopts | None = None) -> LayeredSettings:
        """Return the options that are set for a scheduler, by name, unchecked; ``opts`` are its options."""
        if opts is not None:
            self._options[name] = opts
        settings = self._merged("scheduler", name)
        for key, setting in self._scheduler_variables(name):
            settings.override(key, setting)
        return settings

    def component(self, name: str) -> LayeredSettings:
        """Return the values that are set for a component's parameters, by name."""
        return self._merged("component", name)

    def command(self, cmd: str) -> LayeredSettings:
        """Return the values that are set for a subcommand's options; for ``run``, those of ``[run]`` too."""
        settings = LayeredSettings()
        for source in self.sources:
            if cmd == "run" and source.kind == TOML:
                self._add(settings, source, "run", "run")
            self._add(settings, source, "cli", cmd)
        if cmd == "run":
            for key in RUN_VARIABLES:
                variable = f"SHUNTER_{key.upper()}"
                if self._environ.get(variable):
                    settings.override(key, Setting(self._environ[variable], variable, ENVIRONMENT))
            for key, setting in settings.items():
                settings[key] = _checked_run_setting(key, setting)
        return settings

    def _merged(self, table: str, name: str) -> LayeredSettings:
        settings = LayeredSettings()
        for source in self.sources:
            self._add(settings, source, table, name)
        return settings

    def _add(self, settings: LayeredSettings, source: Source, table: str, name: str) -> None:
        kind_of = self._kinds(table, name) if source.project else None
        for key, setting in _table(source, *_table_keys(source, table, name)).items():
            withheld = kind_of is not None and bool(kind_of(key, setting)) and not self._trusts(source)
            settings.override(key, setting, withheld=withheld)

    def named_schedulers(self) -> set[str]:
        """Return the schedulers that have a ``[scheduler.<name>]`` table."""
        return {name for s in self.sources if s.kind == TOML for name in s.tables.get("scheduler", {})}

    def trackers(self, *, submitting: bool = False) -> dict[str, str | None]:
        """Return the experiment trackers of jobs, by name, with their configuration.

        Raises:
            ConfigError: with ``submitting``, a project sets trackers, and the user has not trusted it.
        """
        named = os.environ.get("TORCHX_TRACKERS")
        if named:  # as inside a job: jobs that it starts inherit its trackers
            return {name: os.environ.get(tracker_variable(name)) for name in named.split(",")}
        found: dict[str, str | None] = {}
        withheld: list[SensitiveSetting] = []
        for source in self.sources:
            settings = _trackers_of(source)
            if source.project and settings and not self._trusts(source):
                withheld += [_as_sensitive(f"tracker.{name}", s, PLUGIN) for name, s in settings.items()]
            else:
                found |= {name: setting.value for name, setting in settings.items()}
        if submitting:
            self._refuse(withheld, "")
        elif withheld:
            self.warn_of_withheld()
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

    # ---- what needs trust

    def sensitive_settings(self, source: Source) -> list[SensitiveSetting]:
        """Return the settings of a project's file that count only if the user trusts it."""
        found = []
        for table, name in _tables_of(source):
            kind_of = self._kinds(table, name)
            for key, setting in _table(source, *_table_keys(source, table, name)).items():
                if kind := kind_of(key, setting):
                    label = f"run.{key}" if table == "run" else f"{table}.{name}.{key}"
                    found.append(_as_sensitive(label, setting, kind))
        for name, setting in _trackers_of(source).items():
            found.append(_as_sensitive(f"tracker.{name}", setting, PLUGIN))
        return found

    def withholds(self) -> bool:
        """Tell whether a setting of a project does not count, as the user has not trusted it."""
        return any(
            self.sensitive_settings(source) and not self._trusts(source)
            for source in self.sources
            if source.project
        )

    def warn_of_withheld(self) -> None:
        """Warn of all settings that are ignored because the user has not trusted the project's files."""
        parts = []
        for source in self.sources:
            names = [found.name for found in self.sensitive_settings(source)] if source.project else []
            if names and not self._trusts(source):
                parts.append(f"{', '.join(names)} in {source.path}")
        warnings.warn(
            f"ignored, since you have not trusted the project: {'; '.join(parts)}. "
            "`shunter trust` shows these settings and trusts them",
            RuntimeWarning,
            stacklevel=2,
        )

    def refuse_withheld(self, settings: Mapping[str, Setting], table: str, instead: str) -> None:
        """Refuse to submit without settings that are withheld. See `LayeredSettings.withheld`.

        Args:
            settings: those that would have been used.
            table: their table, such as ``scheduler.slurm``.
            instead: how to give them on the command line.

        Raises:
            ConfigError: there are some; the message holds file, line, and what they name.
        """
        if settings:
            kind_of = self._kinds(*table.partition(".")[::2])
            found = [_as_sensitive(f"{table}.{key}", s, kind_of(key, s)) for key, s in settings.items()]
            self._refuse(found, instead)

    def _refuse(self, withheld: list[SensitiveSetting], instead: str) -> None:
        if not withheld:
            return
        one = len(withheld) == 1
        lines = [f"{found.setting.origin}: {found.name} names {found.kind}" for found in withheld]
        raise ConfigError(
            "; ".join(lines) + f". {'This counts' if one else 'These count'} only if you trust the project",
            hint=f"`shunter trust` shows such settings and trusts the file.{instead and ' ' + instead}",
        )

    def _trusts(self, source: Source) -> bool:
        if source.path not in self._trusted:
            self._trusted[source.path] = is_trusted(source)
        return self._trusted[source.path]

    def _kinds(self, table: str, name: str) -> KindOf:
        """Return a function that tells what a setting of a table names that needs trust; "" if nothing."""
        own = {
            key
            for source in self.sources
            if not source.project
            for key in _table(source, *_table_keys(source, table, name))
        }
        if table == "scheduler":
            opts = self._options_of(name)
            users = own if opts is None else {opts.name_of(key) for key in own}
            return lambda key, setting: _kind_of_option(opts, key, setting, users)
        if table == "component":
            return lambda key, setting: checked(what_it_names(name, key), setting, replaces=key in own)
        if table == "run" or name == "run":
            return kind_of_run_key
        return lambda key, setting: ""

    def _options_of(self, scheduler: str) -> runopts | None:
        """Return the options of a scheduler; None if they cannot be loaded."""
        if scheduler not in self._options:
            try:
                made = get_scheduler_factory(scheduler)("trust")
                with closing(as_scheduler(made, scheduler, "trust")) as loaded:
                    self._options[scheduler] = loaded.run_opts()
            except UnknownSchedulerException:
                self._options[scheduler] = runopts()  # nothing reads the table
            except ShunterError:
                self._options[scheduler] = None
        return self._options[scheduler]

    def _scheduler_variables(self, name: str) -> Iterator[tuple[str, Setting]]:
        prefix = _variable_prefix(name)
        # SHUNTER_LOCAL_CWD_X is an option of "local_cwd", not the option "cwd_x" of "local"
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
    return None if is_home or not _may_be_used(path, directory) else read_ini(path, found=True)


def _project_sources(directory: str) -> list[Source]:
    for place in search_places(directory):
        found = []
        for name, below in (("pyproject.toml", ("tool", "shunter")), ("shunter.toml", ())):
            path = os.path.join(place, name)
            if os.path.lexists(path) and _may_be_used(path, directory, below):
                found.append(read_toml(path, below, found=True))
        if any(found):
            return [source for source in found if source is not None]
    return []


def read_project_file(path: str) -> Source | None:
    """Read a configuration file of a project; returns None if it does not exist, or has no table of ours.

    Raises:
        ConfigError: it cannot be read, or is malformed.
    """
    name = os.path.basename(path)
    if name == ".torchxconfig":
        return read_ini(path, found=True)
    return read_toml(path, ("tool", "shunter") if name == "pyproject.toml" else (), found=True)


def _may_be_used(path: str, directory: str, below: tuple[str, ...] = ()) -> bool:
    """Tell whether a file that was found may be used, and warn if not."""
    reason = why_not_used(path, directory)
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
    refuse_withheld: bool = True,
) -> dict[str, Setting]:
    """Return the value of every option of a scheduler, and where it came from; ``cli_cfg`` wins.

    An option in a ``.torchxconfig`` that the scheduler does not have is left out, with a warning. Other such
    options are refused, or left out too without ``refuse_surplus``. What a project may set only with the
    user's trust is refused too, or left out with a warning without ``refuse_withheld``.

    Raises:
        InvalidRunConfigException: an option is unknown, or a value does not fit; the message says where.
        ConfigError: a table names a scheduler that does not exist, or the user has not trusted the project.
    """
    if not config.named_schedulers() <= {scheduler, *DEFAULT_SCHEDULER_MODULES}:
        config.check_schedulers({scheduler, *get_scheduler_factories()})
    result = {name: Setting(opt.default, DEFAULT, DEFAULT) for name, opt in opts if not opt.is_required}
    given = config.scheduler(scheduler, opts)
    for key, value in (cli_cfg or {}).items():
        given.override(key, Setting(value, COMMAND_LINE))
    by_lower = {name.lower(): name for name, _ in opts}
    strong = {
        by_lower.get(key.lower(), key) for key, s in given.items() if s.kind in (ENVIRONMENT, COMMAND_LINE)
    }
    withheld = {key: s for key, s in given.withheld.items() if opts.name_of(key) not in strong}
    if withheld and refuse_withheld:
        config.refuse_withheld(
            withheld, f"scheduler.{scheduler}", "Or give your own on the command line: -cfg NAME=VALUE"
        )
    elif withheld:
        config.warn_of_withheld()
    for key, setting in given.items():
        name = by_lower.get(key, key) if setting.kind == ENVIRONMENT else opts.name_of(key)
        if _is_placeholder(setting):
            continue
        opt = opts.get(name)
        if opt is None:
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
        return (table,) if table == "run" else (table, name)
    return (name,) if table == "scheduler" else (f"{table}:{name}",)


def _table(source: Source, *keys: str) -> dict[str, Setting]:
    table: Any = source.tables
    for key in keys:
        table = table.get(key, {})
    return {key: source.setting(*keys, key) for key in table}


def _tables_of(source: Source) -> Iterator[tuple[str, str]]:
    """Return the tables of a file, but for trackers: kind and name."""
    for table, content in source.tables.items():
        if source.kind == INI:
            kind, colon, name = table.partition(":")
            if kind not in ("torchx", "tracker"):
                yield (kind, name) if colon else ("scheduler", table)
        elif table == "run":
            yield "run", "run"
        elif table != "tracker":
            yield from ((table, name) for name in content)


def _trackers_of(source: Source) -> dict[str, Setting]:
    """Return the configuration of each tracker that a file names."""
    found = {}
    names = source.tables.get("torchx:tracker" if source.kind == INI else "tracker", {})
    for name in names:
        table = (f"tracker:{name}",) if source.kind == INI else ("tracker", name)
        place = ("torchx:tracker", name) if source.kind == INI else table
        nothing = Setting(None, functools.partial(source.origin, *place), source.kind, source.project)
        found[name] = _table(source, *table).get("config", nothing)
    return found


def _kind_of_option(opts: runopts | None, key: str, setting: Setting, users: set[str]) -> str:
    """Return what an option names that needs trust; ``users`` are those for which the user has a value."""
    opt = None if opts is None else opts.get(key)
    if opt is None or not opt.needs_trust or _is_placeholder(setting):
        return UNDECLARED if opts is None else ""
    try:
        value = convert_ini(opt, setting.value) if setting.kind == INI else opt.convert(setting.value)
    except ConversionError:
        return opt.needs_trust
    replaces = opts is not None and opts.name_of(key) in users
    if value == opt.default and not replaces:
        return ""
    return checked(opt.needs_trust, setting, replaces=replaces)


def _as_sensitive(name: str, setting: Setting, kind: str) -> SensitiveSetting:
    return SensitiveSetting(name, setting, kind)


def _variable_prefix(scheduler: str) -> str:
    return f"SHUNTER_{scheduler.upper().replace('-', '_')}_"


def tracker_variable(name: str) -> str:
    """Return the variable with a tracker's configuration: TorchX's, as far as shells can carry it.

    The trackers of shunter find it under this name too; TorchX's find ``module:function`` in Docker only.
    """
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name.upper())
    return f"TORCHX_TRACKER_{plain}_CONFIG"
