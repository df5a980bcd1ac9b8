"""Configuration: where values come from, and which one wins.

From weakest to strongest: defaults; the user's ``~/.torchxconfig`` and ``~/.config/shunter/config.toml``;
the project's ``.torchxconfig``, ``[tool.shunter]`` of ``pyproject.toml`` and ``shunter.toml``;
``[tool.shunter]`` in the header of the script that is run; environment variables ``SHUNTER_*``; the command
line. Every value knows where it came from.

What a project's file may set only once the user has trusted it (`project_trust`) is withheld until then:
commands that submit refuse to go on without it, others ignore it with a warning.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from shunter.errors import ConfigError, InvalidRunConfigException, did_you_mean
from shunter.runner.config_files import (
    COMMAND_LINE,
    DEFAULT,
    ENVIRONMENT,
    HEADER,
    INI,
    Setting,
    Source,
    convert,
    find_sources,
    read_script_header,
    setting_name,
)
from shunter.runner.project_trust import SensitiveSetting, TrustRules, is_trusted
from shunter.schedulers.registry import DEFAULT_SCHEDULER_MODULES, get_scheduler_factories
from shunter.specs.conversion import FALSE_WORDS, TRUE_WORDS, ConversionError
from shunter.specs.job_words import JOB_WORDS, time_option
from shunter.specs.options import hint_for, runopts

__all__ = ["DEFAULT", "Config", "Setting", "check_keys", "effective_options", "load_config"]

RUN_KEYS: dict[str, type] = {
    "scheduler": str,
    "workspace": str,
    "image": str,
    "component": str,
    "lease": str,
    "log": bool,
    "wait": bool,
    "detach": bool,
}
#: Keys of ``[run]`` that variables set too: SHUNTER_SCHEDULER, SHUNTER_WORKSPACE, SHUNTER_IMAGE.
RUN_VARIABLES = ("scheduler", "workspace", "image")


class LayeredSettings(dict[str, Setting]):
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
        self._rules = TrustRules(self.sources)
        self._trusted: dict[str, bool] = {}
        for source in self.sources:
            check_keys(source.settings("run"), RUN_KEYS, "[run]")

    def add_header(self, script: str, component: str = "") -> Source | None:
        """Take over what the header of a script sets, stronger than all files; returns it, None if nothing.

        Args:
            script: its path.
            component: the component that runs it; by default the script itself is named as one.

        Raises:
            ConfigError: the header is malformed, or a key or value in it is wrong.
        """
        header = read_script_header(script, component)
        if header is not None:
            self.sources.append(header)
        return header

    def scheduler(self, name: str, opts: runopts | None = None) -> LayeredSettings:
        """Return the options that are set for a scheduler, unchecked, by name as ``opts`` declares them.

        Raises:
            ConfigError: a header sets a time limit, and the scheduler has none.
        """
        if opts is None:
            opts = runopts()
        else:
            self._rules.options[name] = opts
        settings = self._merged(("job", ""), ("scheduler", name), opts=opts, scheduler=name)
        declared = {option.lower(): option for option, _ in opts}
        for key, setting in self._scheduler_variables(name):
            settings.override(declared.get(key, key), setting)
        return settings

    def profile(self, scheduler: str, name: str, opts: runopts) -> LayeredSettings:
        """Return the options that a profile of a scheduler sets: ``[scheduler."slurm:a100"]``.

        Raises:
            ConfigError: there is no such profile.
        """
        table = f"{scheduler}:{name}"
        names = [each for each in self.named_schedulers() if each.startswith(f"{scheduler}:")]
        if table not in names:
            raise ConfigError(
                f"the scheduler {scheduler} has no profile {name!r}",
                hint=did_you_mean(table, names)
                or f'A profile is a table of options in shunter.toml: [scheduler."{table}"]',
            )
        return self._merged(("scheduler", table), opts=opts, scheduler=scheduler)

    def component(self, name: str) -> LayeredSettings:
        """Return the values that are set for a component's parameters, by name."""
        return self._merged(("component", name))

    def command(self, cmd: str) -> LayeredSettings:
        """Return the values that are set for a subcommand's options; for ``run``, those of ``[run]`` too."""
        if cmd != "run":
            return self._merged(("cli", cmd))
        settings = self._merged(("run", ""), ("cli", "run"))
        for key in RUN_VARIABLES:
            variable = f"SHUNTER_{key.upper()}"
            if self._environ.get(variable):
                settings.override(key, Setting(self._environ[variable], variable, ENVIRONMENT))
        for key, setting in settings.items():
            settings[key] = _checked_run_setting(key, setting)
        return settings

    def _merged(
        self, *tables: tuple[str, str], opts: runopts | None = None, scheduler: str = ""
    ) -> LayeredSettings:
        merged = LayeredSettings()
        for source in self.sources:
            for table, name in tables:
                for key, setting in source.settings(table, name).items():
                    if table == "job":
                        if opts:
                            option, value = time_option(setting.value, scheduler, opts)
                            merged.override(option, replace(setting, value=value))
                        continue
                    needs_trust = bool(
                        source.project and self._rules.what_it_names(table, name, key, setting)
                    )
                    withheld = needs_trust and not self._trusts(source)
                    merged.override(opts.name_of(key) if opts else key, setting, withheld=withheld)
        return merged

    def named_schedulers(self) -> set[str]:
        """Return the schedulers that have a ``[scheduler.<name>]`` table."""
        return {name for source in self.sources for name in _scheduler_tables(source)}

    def trackers(self, *, submitting: bool = False) -> dict[str, str | None]:
        """Return the experiment trackers of jobs, by name, with their configuration.

        Raises:
            ConfigError: with ``submitting``, a project sets trackers, and the user has not trusted it.
        """
        named = os.environ.get("TORCHX_TRACKERS")
        if named:  # as inside a job: jobs that it starts inherit its trackers
            return {name: os.environ.get(tracker_variable(name)) for name in named.split(",")}
        trackers = self._merged(("tracker", ""))
        if submitting:
            self.refuse_withheld(trackers.withheld, "tracker", "")
        elif trackers.withheld:
            self.warn_of_withheld()
        return {name: setting.value for name, setting in trackers.items()}

    def image(self) -> str | None:
        """Return the default image, for roles without one on schedulers that run containers."""
        setting = self.command("run").get("image")
        return str(setting.value) if setting is not None and setting.value else None

    def check_schedulers(self, known: Iterable[str]) -> None:
        """Refuse ``[scheduler.<name>]`` tables of schedulers that do not exist.

        Sections of a ``.torchxconfig`` may name what only TorchX has; they are left alone.

        Raises:
            ConfigError: the message holds the file, and similar names.
        """
        names = set(known)
        for source in self.sources:
            for table in _scheduler_tables(source):
                name = table.partition(":")[0]  # what follows names a profile
                if name not in names and source.kind == HEADER:
                    raise ConfigError(
                        f"the header of {source.path}: there is no key and no scheduler {name!r}",
                        hint=did_you_mean(name, [*names, *JOB_WORDS]),
                    )
                if name not in names:
                    raise ConfigError(
                        f"{source.path}: there is no scheduler {name!r}", hint=did_you_mean(name, names)
                    )

    # ---- what needs trust

    def sensitive_settings(self, source: Source) -> list[SensitiveSetting]:
        """Return the settings of a project's file that count only if the user trusts it."""
        return self._rules.sensitive_settings(source)

    def warn_of_withheld(self) -> None:
        """Warn of all settings that are ignored because the user has not trusted the project's files."""
        names: dict[str, list[str]] = {}
        for source in self.sources:
            settings = self.sensitive_settings(source) if source.project else []
            if settings and not self._trusts(source):
                names[source.path] = [sensitive.name for sensitive in settings]
        if names:
            files = "; ".join(f"{', '.join(settings)} in {path}" for path, settings in names.items())
            headers = [source.path for source in self.sources if source.kind == HEADER]
            command = _trust_command(headers if set(names) <= set(headers) else [])
            warnings.warn(
                f"ignored, since you have not trusted the project: {files}. "
                f"`{command}` shows these settings and trusts them",
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
            ConfigError: there are some; the message holds the file, and what they name.
        """
        kind, _, name = table.partition(".")
        lines = [
            f"{setting.origin}: {setting_name(setting.kind, kind, name, key)} names "
            + self._rules.what_it_names(kind, name, key, setting)
            for key, setting in settings.items()
        ]
        if lines:
            count = "This counts" if len(lines) == 1 else "These count"
            are_of_header = all(setting.kind == HEADER for setting in settings.values())
            headers = [source.path for source in self.sources if source.kind == HEADER]
            command = _trust_command(headers if are_of_header else [])
            raise ConfigError(
                f"{'; '.join(lines)}. {count} only if you trust the project",
                hint=f"`{command}` shows such settings and trusts the file. {instead}".rstrip(),
            )

    def _trusts(self, source: Source) -> bool:
        if source.path not in self._trusted:
            self._trusted[source.path] = is_trusted(source)
        return self._trusted[source.path]

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
        ConfigError: a file is malformed or holds an unknown table; the message names the file.
    """
    variables = os.environ if environ is None else environ
    return Config(find_sources(cwd or os.getcwd(), variables), variables)


def check_keys(settings: Mapping[str, Setting], known: Iterable[str], what: str) -> None:
    """Refuse unknown keys in the settings of a table; ``what`` names the table.

    Those of a ``.torchxconfig`` are only warned of.

    Raises:
        ConfigError: the message holds the file, and similar keys.
    """
    names = list(known)
    for key, setting in settings.items():
        if key in names:
            continue
        message = f"{setting.origin}: {what} has no key {key!r}"
        if setting.kind != INI:
            raise ConfigError(message, hint=did_you_mean(key, names))
        warnings.warn(f"{message}, so this setting has no effect", RuntimeWarning, stacklevel=2)


def effective_options(
    config: Config,
    scheduler: str,
    opts: runopts,
    cli_cfg: Mapping[str, Any] | None = None,
    *,
    refuse_surplus: bool = True,
    refuse_withheld: bool = True,
    profile: str = "",
) -> dict[str, Setting]:
    """Return the value of every option of a scheduler, and where it came from; ``cli_cfg`` wins.

    The options of a profile are stronger than all that is set for the scheduler, as the user names it.

    An option in a ``.torchxconfig`` that the scheduler does not have is left out, with a warning. Other such
    options are refused, or left out too without ``refuse_surplus``. What a project may set only with the
    user's trust is refused too, or left out with a warning without ``refuse_withheld``.

    Raises:
        InvalidRunConfigException: an option is unknown, or a value does not fit; the message says where.
        ConfigError: a table names a scheduler that does not exist, or the user has not trusted the project.
    """
    if not config.named_schedulers() <= {scheduler, *DEFAULT_SCHEDULER_MODULES}:
        config.check_schedulers({scheduler, *get_scheduler_factories()})
    settings = config.scheduler(scheduler, opts)
    if profile:
        own = config.profile(scheduler, profile, opts)
        for key, setting in own.items():
            settings.override(key, setting)
        settings.withheld |= own.withheld
    for key, value in (cli_cfg or {}).items():
        settings.override(opts.name_of(key), Setting(value, COMMAND_LINE))
    if settings.withheld and refuse_withheld:
        instead = "Or give your own on the command line: -cfg NAME=VALUE"
        config.refuse_withheld(settings.withheld, f"scheduler.{scheduler}", instead)
    elif settings.withheld:
        config.warn_of_withheld()
    result = {name: Setting(opt.default, DEFAULT, DEFAULT) for name, opt in opts if not opt.is_required}
    known = [name for name, _ in opts]
    for name, setting in settings.items():
        opt = opts.get(name)
        if opt is not None:
            try:
                result[name] = replace(setting, value=convert(opt, setting))
            except ConversionError as error:
                raise InvalidRunConfigException(
                    f"{setting.origin}: option {name!r} ({opt.opt_type_name}): {error}", name
                ) from None
            continue
        message, hint = f"{setting.origin}: {scheduler} has no option {name!r}", hint_for(name, known)
        if setting.kind != INI and refuse_surplus:
            raise InvalidRunConfigException(message, name, hint=hint)
        warnings.warn(f"{message}, so this setting has no effect. {hint}", RuntimeWarning, stacklevel=2)
    return result


def _trust_command(scripts: list[str]) -> str:
    """Return the command that trusts the headers of scripts, or without one the project's files."""
    return f"shunter trust {shlex.quote(scripts[0])}" if scripts else "shunter trust"


def _scheduler_tables(source: Source) -> list[str]:
    """Return the schedulers that a file has tables for; a ``.torchxconfig`` may name those of TorchX."""
    return [name for table, name in source.tables if table == "scheduler" and source.kind != INI]


def _checked_run_setting(key: str, setting: Setting) -> Setting:
    type_ = RUN_KEYS.get(key)
    value = setting.value
    if type_ is bool and isinstance(value, str) and value.lower() in TRUE_WORDS | FALSE_WORDS:
        return replace(setting, value=value.lower() in TRUE_WORDS)
    if type_ is not None and not isinstance(value, type_):
        kind = "true or false" if type_ is bool else "a string"
        raise ConfigError(f"{setting.origin}: {key} must be {kind}, not {value!r}")
    return setting


def _variable_prefix(scheduler: str) -> str:
    return f"SHUNTER_{scheduler.upper().replace('-', '_')}_"


def tracker_variable(name: str) -> str:
    """Return the variable with a tracker's configuration: TorchX's, as far as shells can carry it.

    The trackers of shunter find it under this name too; TorchX's find ``module:function`` in Docker only.
    """
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name.upper())
    return f"TORCHX_TRACKER_{plain}_CONFIG"
