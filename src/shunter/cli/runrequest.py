"""The job that `run` starts: from the command line, stdin and configuration; what a project may choose."""

from __future__ import annotations

import json
import os
import shlex
import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any, TextIO

from shunter.cli.console import note
from shunter.cli.units import parse_duration
from shunter.components.finder import get_component
from shunter.errors import (
    EXIT_OK,
    ConfigError,
    ShunterError,
    UnknownSchedulerException,
    UsageError,
    did_you_mean,
)
from shunter.metric_search import parse_definitions
from shunter.runner import Runner
from shunter.runner.config import (
    DEFAULT,
    RUN_KEYS,
    Config,
    LayeredSettings,
    Setting,
    check_keys,
    effective_options,
)
from shunter.runner.config_files import INI
from shunter.schedulers.registry import get_default_scheduler_name
from shunter.specs.options import runopts
from shunter.specs.submission import Submission
from shunter.specs.workspace import Workspace
from shunter.system.ownership import why_not_used

_STDIN_KEYS: dict[str, type | tuple[type, ...]] = {
    "component_name": str,
    "scheduler": str,
    "scheduler_args": dict,
    "scheduler_cfg": dict,
    "dryrun": bool,
    "wait": bool,
    "log": bool,
    "workspace": (str, type(None)),
    "parent_run_id": (str, type(None)),
    "after": list,
    "tee_logs": bool,
    "component_args": (dict, list),
    "component_args_str": (str, list),
}
_REQUIRED = ("component_name", "scheduler", "scheduler_args")


class RunRequest:
    """The job to submit: each part from the command line, or else from the configuration's ``[run]``.

    Attributes:
        scheduler: name of the scheduler.
        component: name of the component.
        following: the configured ``wait``, ``log`` and ``detach``.
    """

    def __init__(self, args: Namespace, config: Config) -> None:
        settings = config.command("run")
        check_keys(settings, RUN_KEYS, "[cli.run]")
        self._args = args
        self._config = config
        given = {"component": args.component or None, "workspace": args.workspace}
        withheld = {key: setting for key, setting in settings.withheld.items() if given[key] is None}
        config.refuse_withheld(withheld, "run", "Or name it on the command line.")
        self.scheduler: str = args.scheduler or _value(settings, "scheduler") or get_default_scheduler_name()
        self.component: str = args.component or _value(settings, "component") or ""
        self.following = following_settings(config)
        configured: str | None = _value(settings, "workspace")
        self._workspace = configured if args.workspace is None else args.workspace
        self._settings = settings
        self._options: dict[str, Setting] = {}
        if not self.component:
            raise UsageError(
                "no component given",
                hint="Try `shunter run utils.echo --msg hello`; `shunter components` lists them.",
            )

    def _defaults(self) -> LayeredSettings:
        name = self.component
        settings = self._config.component(name)
        if ":" not in name and (name.endswith(".py") or os.sep in name):  # a script
            weaker = self._config.component("train.script")
            for key, setting in settings.items():
                weaker.override(key, setting)
            weaker.withheld |= settings.withheld
            return weaker
        return settings

    def located(self, error: ShunterError) -> ShunterError:
        """Add the place of configured values to an error about the scheduler or arguments."""
        if isinstance(error, UnknownSchedulerException):
            setting = None if self._args.scheduler else self._settings.get("scheduler")
            return UnknownSchedulerException(
                f"{setting.origin}: {error.message}" if setting else error.message, hint=error.hint
            )
        places = [
            f"{setting.origin}: {key} is set there"
            for key, setting in self._defaults().items()
            if f"default {key}:" in error.message or f"default {key!r}" in error.message
        ]
        if not places or error.exit_code == EXIT_OK:
            return error
        return ConfigError(error.message, hint="\n".join([*places, error.hint]).rstrip())

    def submission(self, runner: Runner) -> Submission:
        """Return what is to be run: command line, configuration and defaults resolved together.

        Raises:
            ShunterError: an option or a setting is wrong, or may not be set where it is.
        """
        self._check_trust()
        given = runner.cfg_from_str(self.scheduler, *self._args.cfg) if self._args.cfg else {}
        opts = runner.scheduler_run_opts(self.scheduler)
        flags = options_of_flags(self._args, self.scheduler, opts)
        given = {**getattr(self._args, "cfg_values", {}), **given, **flags}
        # the command `torchx` warns of options that the scheduler lacks
        keeps_all = getattr(self._args, "surplus", "refuse") == "refuse"
        options = effective_options(self._config, self.scheduler, opts, given, refuse_surplus=keeps_all)
        self._options = options
        cfg = {name: setting.value for name, setting in options.items()}
        metrics = self._metrics(cfg, opts)
        return Submission(
            component=self.component,
            arguments=self._args.component_args,
            defaults=self._component_defaults(),
            scheduler=self.scheduler,
            options=cfg,
            workspace=self._travelling(runner),
            parent_run_id=self._args.parent_run_id,
            after=self._args.after,
            metrics=metrics,
        )

    def _component_defaults(self) -> dict[str, Any]:
        """Return the configured arguments of the component.

        Those in a ``.torchxconfig`` that the component does not have are left out, with a warning.
        """
        defaults = {}
        for key, setting in self._defaults().items():
            if setting.kind == INI and get_component(self.component).options.by_name(key) is None:
                warnings.warn(
                    f"{setting.origin}: {self.component} has no parameter {key!r}, so this setting has "
                    "no effect",
                    RuntimeWarning,
                    stacklevel=2,
                )
            else:
                defaults[key] = setting.value
        return defaults

    def _metrics(self, cfg: dict[str, Any], opts: runopts) -> dict[str, str] | None:
        """Return the metrics of the command line; a scheduler that searches itself gets them too."""
        texts = getattr(self._args, "metric", None)
        if not texts:
            return None
        metrics = parse_definitions(texts)
        if opts.get("metric_definitions") is not None:
            own = [{"Name": name, **({"Regex": regex} if regex else {})} for name, regex in metrics.items()]
            cfg["metric_definitions"] = [*(cfg.get("metric_definitions") or ()), *own]
        return metrics

    def sources(self) -> dict[str, str]:
        """Return where each option that is not a default was set. Call `submission` first."""
        return {name: setting.origin for name, setting in self._options.items() if setting.kind != DEFAULT}

    def _check_trust(self) -> None:
        """Refuse what a project's files may not choose unasked, unless the command line replaces it.

        Raises:
            ConfigError: there is such a thing.
        """
        component = self._settings.get("component")
        if not self._args.component and component is not None and component.project:
            refuse_strangers_component(component)
        withheld = self._defaults().withheld
        if withheld:
            given = _given_parameters(self.component, self._args.component_args)
            withheld = {key: setting for key, setting in withheld.items() if not given(key)}
            instead = "Or give it as an argument of the component."
            self._config.refuse_withheld(withheld, f"component.{self.component}", instead)

    def announce(self, runner: Runner) -> None:
        """Print which scheduler a project's files chose, if that is not one of this machine."""
        setting = None if self._args.scheduler else self._settings.get("scheduler")
        if (
            setting is not None
            and setting.project
            and not runner.scheduler(self.scheduler).capabilities.is_local
        ):
            note(f"The project's files choose the scheduler {self.scheduler} ({setting.origin})")

    def _travelling(self, runner: Runner) -> Workspace:
        """Return the workspace: by default the current directory, if the scheduler ships code."""
        if self._workspace is None and runner.scheduler(self.scheduler).capabilities.ships_by_default:
            # implicit, so an empty directory is not an error
            return Workspace({os.getcwd(): ""} if os.listdir() else {}, implicit=True)
        return Workspace.from_str(self._workspace)


#: Flags that set the scheduler option of the same name, with the reason why some schedulers lack the option.
_FLAGS = {
    "notify": "no shunter process outlives the command there, so nothing could report the end of the job",
    "retry": "it cannot retry by class of failure",
    "hang_timeout": "no shunter process watches its replicas",
    "on_hang": "no shunter process watches its replicas",
}


def options_of_flags(args: Namespace, scheduler: str, opts: runopts) -> dict[str, Any]:
    """Return the options of a scheduler that flags of the command line stand for.

    Raises:
        UsageError: the scheduler does not have one of them, or a duration cannot be read.
    """
    given = {name: value for name in _FLAGS if (value := getattr(args, name, None))}
    for name in given:
        if name not in opts:
            raise UsageError(
                f"--{name.replace('_', '-')} is not supported on {scheduler}: {_FLAGS[name]}",
                hint="`shunter schedulers` shows which schedulers do.",
            )
    if "hang_timeout" in given:
        given["hang_timeout"] = parse_duration(given["hang_timeout"])
    return given


def following_settings(config: Config) -> dict[str, bool]:
    """Return the ``wait``, ``log`` and ``detach`` that ``[run]`` sets."""
    settings = config.command("run")
    return {key: settings[key].value for key in ("wait", "log", "detach") if key in settings}


def _value(settings: dict[str, Setting], name: str) -> Any:
    setting = settings.get(name)
    return None if setting is None else setting.value


def from_stdin(args: Namespace, stream: TextIO | None) -> Namespace:
    """Add the job on stdin, as JSON, to the parsed options, which win.

    Raises:
        UsageError: it is not a JSON object, a key is unknown or missing, or a value has the wrong type.
    """
    data = _read(stream)
    for key in data:
        if key not in _STDIN_KEYS:
            raise UsageError(f"--stdin: unknown key {key!r}", hint=did_you_mean(key, _STDIN_KEYS))
    missing = [key for key in _REQUIRED if key not in data]
    if missing:
        raise UsageError(
            f"--stdin: missing keys: {', '.join(missing)}", hint="Needed: " + ", ".join(_REQUIRED)
        )
    for key, value in data.items():
        if not isinstance(value, _STDIN_KEYS[key]):
            raise UsageError(f"--stdin: wrong type of {key}: {json.dumps(value)[:60]}")
    args.component = data["component_name"]
    args.scheduler = args.scheduler or data["scheduler"]
    args.cfg_values = {**data["scheduler_args"], **data.get("scheduler_cfg", {})}
    for flag in ("dryrun", "wait", "log"):
        setattr(args, flag, getattr(args, flag) or data.get(flag, False))
    if args.workspace is None:
        args.workspace = data.get("workspace")
    args.parent_run_id = args.parent_run_id or data.get("parent_run_id")
    args.after = args.after or [str(handle) for handle in data.get("after", ())]
    args.component_args = _component_args(data)
    return args


def _read(stream: TextIO | None) -> dict[str, Any]:
    try:
        data = json.loads(stream.read() if stream is not None else "")
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"--stdin: invalid JSON: {error}",
            hint='Example: {"component_name": "utils.echo", "scheduler": "local_cwd", "scheduler_args": {}}',
        ) from None
    if not isinstance(data, dict):
        raise UsageError("--stdin: the job must be a JSON object")
    return data


def _component_args(data: dict[str, Any]) -> dict[str, Any] | list[str]:
    given, text = data.get("component_args"), data.get("component_args_str")
    if given and text:
        raise UsageError("--stdin: give component_args or component_args_str, not both")
    if not text:
        return given or {}
    try:
        return shlex.split(text) if isinstance(text, str) else [str(word) for word in text]
    except ValueError as error:
        raise ConfigError(f"--stdin: component_args_str: {error}") from None


# ---- what a project's files may choose


def refuse_strangers_component(setting: Setting) -> None:
    """Refuse a component that a project's file names, if the component's file belongs to another user.

    Raises:
        ConfigError: the file belongs to another user.
    """
    path = os.path.abspath(str(setting.value).rpartition(":")[0] or str(setting.value))
    reason = why_not_used(path, os.getcwd())
    if reason:
        raise ConfigError(
            f"{setting.origin}: the component {setting.value} is not used: {reason}",
            hint=f"To run it anyway: shunter run {setting.value}",
        )


def _given_parameters(component: str, args: Any) -> Callable[[str], bool]:
    """Return a function that tells whether a component's arguments hold a value for a configured key."""
    options = get_component(component).options
    if isinstance(args, dict):
        named = [options.by_name(key) for key in args]
    else:
        matches = [options.match(word) for word in args if word.startswith("-")]
        named = [matched[0] for matched in matches if matched is not None]
    names = {parameter.name for parameter in named if parameter is not None}

    def given(key: str) -> bool:
        parameter = options.by_name(key)
        return parameter is not None and parameter.name in names

    return given
