"""What `run` was asked for: from the command line, stdin and the configuration."""

from __future__ import annotations

import os

from trainyard.errors import (
    EXIT_OK,
    ConfigError,
    TrainyardError,
    UnknownSchedulerException,
    UsageError,
    did_you_mean,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any, TextIO

    from trainyard.runner import Runner
    from trainyard.runner.config import Config, Setting
    from trainyard.specs.options import runopts
    from trainyard.specs.workspace import Workspace

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
    "tee_logs": bool,
    "component_args": (dict, list),
    "component_args_str": (str, list),
}
_REQUIRED = ("component_name", "scheduler", "scheduler_args")


class RunRequest:
    """The job to submit, each part from the command line, or else from the configuration's ``[run]``.

    Attributes:
        scheduler: name of the scheduler.
        component: name of the component.
        following: what the configuration says of ``wait``, ``log`` and ``detach``.
    """

    def __init__(self, args: Namespace, config: Config) -> None:
        settings = config.command("run")
        self._args = args
        self._config = config
        self.scheduler: str = args.scheduler or _value(settings, "scheduler") or _default_scheduler()
        self.component: str = args.component or _value(settings, "component") or ""
        self.following = following_settings(config)
        configured: str | None = _value(settings, "workspace")
        self._workspace = configured if args.workspace is None else args.workspace
        self._settings = settings
        self._options: dict[str, Setting] = {}
        if not self.component:
            raise UsageError(
                "there is nothing to run: no component was given",
                hint="Try `trainyard run utils.echo --msg hello`; `trainyard components` lists them.",
            )

    def component_defaults(self) -> dict[str, dict[str, Any]]:
        """Return the configured arguments of the component."""
        return {self.component: {key: setting.value for key, setting in self._defaults().items()}}

    def _defaults(self) -> dict[str, Setting]:
        name = self.component
        is_script = ":" not in name and (name.endswith(".py") or os.sep in name)
        settings = dict(self._config.component("train.script")) if is_script else {}
        return settings | self._config.component(name)

    def located(self, error: TrainyardError) -> TrainyardError:
        """Add to an error about the scheduler or arguments where the configured ones stand."""
        if isinstance(error, UnknownSchedulerException):
            setting = None if self._args.scheduler else self._config.command("run").get("scheduler")
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

    def arguments(self, runner: Runner) -> dict[str, Any]:
        """Return the arguments of `Runner.run_component`."""
        from trainyard.runner.config import effective_options

        given = runner.cfg_from_str(self.scheduler, *self._args.cfg) if self._args.cfg else {}
        given = {**getattr(self._args, "cfg_values", {}), **given}
        options = effective_options(
            self._config, self.scheduler, runner.scheduler_run_opts(self.scheduler), given
        )
        self._options = options
        self._check_what_travels(runner.scheduler_run_opts(self.scheduler))
        return {
            "component": self.component,
            "component_args": self._args.component_args,
            "scheduler": self.scheduler,
            "cfg": {name: setting.value for name, setting in options.items()},
            "workspace": self._travelling(runner),
            "parent_run_id": self._args.parent_run_id,
        }

    def _check_what_travels(self, opts: runopts) -> None:
        from trainyard.cli.projectchoices import refuse_data_outside, refuse_workspace_outside

        setting = self._settings.get("workspace")
        if self._args.workspace is None and setting is not None and setting.project:
            refuse_workspace_outside(setting)
        refuse_data_outside(self._options, opts, self._defaults())

    def announce(self, runner: Runner) -> None:
        """Say where code and data go, as far as a project's file chose it; after `arguments`."""
        from trainyard.cli.projectchoices import announce

        scheduler = runner.scheduler(self.scheduler)
        chosen = None if self._args.scheduler or scheduler.is_local else self._settings.get("scheduler")
        announce((self.scheduler, chosen), self._options, scheduler.run_opts(), self._defaults())

    def _travelling(self, runner: Runner) -> Workspace:
        """Return what goes with the job: by default the current directory, where the scheduler ships code."""
        from trainyard.specs.workspace import Workspace

        if self._workspace is None and runner.scheduler(self.scheduler).ships_by_default:
            # nobody asked for it, so an empty directory is no mistake: there is no code
            return Workspace({os.getcwd(): ""} if os.listdir() else {}, implicit=True)
        return Workspace.from_str(self._workspace)


def following_settings(config: Config) -> dict[str, bool]:
    """Return what ``[run]`` says of ``wait``, ``log`` and ``detach``, as far as it does."""
    settings = config.command("run")
    return {key: settings[key].value for key in ("wait", "log", "detach") if key in settings}


def _value(settings: dict[str, Setting], name: str) -> Any:
    setting = settings.get(name)
    return None if setting is None else setting.value


def _default_scheduler() -> str:
    from trainyard.schedulers.registry import get_default_scheduler_name

    return get_default_scheduler_name()


def from_stdin(args: Namespace, stream: TextIO | None) -> Namespace:
    """Add the job that stands on stdin, as JSON, to the parsed options; these win where both speak.

    Raises:
        UsageError: it is no JSON object, a key is unknown or missing, or a value has the wrong type.
    """
    import json

    data = _read(stream)
    for key in data:
        if key not in _STDIN_KEYS:
            raise UsageError(f"--stdin: there is no key {key!r}", hint=did_you_mean(key, _STDIN_KEYS))
    missing = [key for key in _REQUIRED if key not in data]
    if missing:
        raise UsageError(f"--stdin: missing: {', '.join(missing)}", hint="Needed: " + ", ".join(_REQUIRED))
    for key, value in data.items():
        if not isinstance(value, _STDIN_KEYS[key]):
            raise UsageError(f"--stdin: {key} cannot be {json.dumps(value)[:60]}")
    args.component = data["component_name"]
    args.scheduler = args.scheduler or data["scheduler"]
    args.cfg_values = {**data["scheduler_args"], **data.get("scheduler_cfg", {})}
    for flag in ("dryrun", "wait", "log"):
        setattr(args, flag, getattr(args, flag) or data.get(flag, False))
    if args.workspace is None:
        args.workspace = data.get("workspace")
    args.parent_run_id = args.parent_run_id or data.get("parent_run_id")
    args.component_args = _component_args(data)
    return args


def _read(stream: TextIO | None) -> dict[str, Any]:
    import json

    try:
        data = json.loads(stream.read() if stream is not None else "")
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"--stdin: this is not JSON: {error}",
            hint='Example: {"component_name": "utils.echo", "scheduler": "local_cwd", "scheduler_args": {}}',
        ) from None
    if not isinstance(data, dict):
        raise UsageError("--stdin: the job must be a JSON object")
    return data


def _component_args(data: dict[str, Any]) -> dict[str, Any] | list[str]:
    import shlex

    given, text = data.get("component_args"), data.get("component_args_str")
    if given and text:
        raise UsageError("--stdin: give component_args or component_args_str, not both")
    if not text:
        return given or {}
    try:
        return shlex.split(text) if isinstance(text, str) else [str(word) for word in text]
    except ValueError as error:
        raise ConfigError(f"--stdin: component_args_str: {error}") from None
