"""What `run`, `sweep`, `plan` and `rerun` share: options, the `Submission` they mean, and what follows it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from shunter.cli.console import OutputClosed, TerminalProgress, is_tty, note, out, print_json
from shunter.cli.parser import (
    Parser,
    add_exit_code_option,
    add_json_option,
    add_scheduler_options,
)
from shunter.cli.requested_component import SCRIPT_COMPONENT, settle_component
from shunter.cli.shown_status import exit_code_of, job_json
from shunter.cli.watching import Detached, follow
from shunter.components.finder import get_component, is_script
from shunter.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    ComponentArgumentError,
    ComponentNotFoundException,
    ConfigError,
    UnknownSchedulerException,
    UsageError,
    did_you_mean,
)
from shunter.metric_search import parse_definitions
from shunter.runner import Runner, get_runner
from shunter.runner.config import DEFAULT, RUN_KEYS, Config, LayeredSettings, check_keys, effective_options
from shunter.runner.config_files import COMMAND_LINE, INI, Setting
from shunter.schedulers.registry import get_default_scheduler_name
from shunter.schedulers.short_names import full_name
from shunter.specs.conversion import ConversionError
from shunter.specs.durations import parse_duration
from shunter.specs.job_words import JOB_WORDS, TIME, JobWord, time_option
from shunter.specs.options import runopts
from shunter.specs.status import AppStatus
from shunter.specs.submission import Submission
from shunter.specs.workspace import Workspace
from shunter.system.ownership import why_not_used

#: Flags that set the scheduler option of the same name, with the reason why some schedulers lack the option.
_FLAGS = {
    "notify": "no shunter process outlives the command there, so nothing could report the end of the job",
    "retry": "it cannot retry by class of failure",
    "hang_timeout": "no shunter process watches its replicas",
    "on_hang": "no shunter process watches its replicas",
}
#: Values of words of the job, by what stands for them in the help.
_EXAMPLES = {"N": "2", "SIZE": "16G", "DURATION": "1h", "NAME=VALUE": "A=1", "NAME=URI": "training=./data"}
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
_STDIN_NEEDS = ("component_name", "scheduler", "scheduler_args")
_STDIN_EXAMPLE = '{"component_name": "utils.echo", "scheduler": "local_cwd", "scheduler_args": {}}'


# ---- options


def add_submission_options(parser: Parser, default_workspace: str) -> None:
    """Add the options of every command that starts a job; ``default_workspace`` describes that default."""
    add_placement_options(parser, default_workspace)
    parser.add_flag("--wait", help="wait until the job has ended, without its logs")
    parser.add_flag("--log", help="follow the logs on stderr (implies --wait)")
    parser.add_flag("--detach", help="return once the job is submitted, even if the scheduler is local")
    add_exit_code_option(parser, " (implies --wait)")
    add_json_option(parser)
    parser.add_argument(
        "--retry",
        metavar="CLASS=N,...",
        help="number of retries for each class of failure: oom=2:64G,node=3,preempted=inf,exception=0",
    )
    parser.add_argument(
        "--hang-timeout",
        metavar="DURATION",
        help="when a replica shows no activity for this long (60s, 1h), write its stacks to its log",
    )
    parser.add_argument(
        "--on-hang",
        choices=("report", "stop"),
        help="what to do when a replica hangs: only report it (the default), or stop the job",
    )


def add_placement_options(parser: Parser, default_workspace: str) -> None:
    """Add the options that say where a job runs, with which code, when, and who hears of its end."""
    add_scheduler_options(
        parser,
        "where to run the job (see `shunter runopts`); NAME:PROFILE for a named set of options",
    )
    parser.add_flag("--dryrun", "--dry-run", help="print the job and its request without starting anything")
    parser.add_repeated(
        "--notify",
        metavar="URL|COMMAND",
        help="when the job has ended, POST to this URL or run this command, once",
    )
    parser.add_repeated(
        "--after",
        metavar="HANDLE[:any]",
        help="start only when this job of the same scheduler has succeeded; with :any, when it has ended",
        completer="job_completer",
    )
    parser.add_argument(
        "--workspace",
        metavar="DIR",
        help="code that travels with the job: a directory, DIR=SUB,DIR=SUB, @FINGERPRINT for the code of "
        f"an earlier job, or '' for none (default: {default_workspace})",
    )


def add_component_arguments(parser: Parser) -> None:
    """Add the component with its arguments and what its job needs; see `parse_component`."""
    group = parser.add_argument_group(
        "options of the job, before the script", "Those of the script itself stand behind it."
    )
    add_job_words(parser, group, [word for word in JOB_WORDS if word != "metric"])  # recorded of every job
    parser.add_argument("--parent_run_id", metavar="ID", help="the run that this one belongs to")
    parser.add_repeated(
        "--metric",
        metavar="NAME[=REGEX]",
        help="a metric in the log: a name is enough, such as loss; for unusual lines add a regular "
        "expression with the value in parentheses; see `shunter metrics`",
    )
    parser.add_argument(
        "component",
        nargs="?",
        metavar="COMPONENT",
        help="./script.py, utils.echo, path/to/file.py:fn, or -- and any command",
        completer="component_completer",
    )
    parser.add_argument(
        "component_args",
        nargs="...",
        metavar="...",
        help="arguments of the component; for a sweep, with lists of values",
        completer="component_argument_completer",
    )


def add_job_words(parser: Parser, group: Any, names: Iterable[str]) -> None:
    """Add words of the job, by their names in `JOB_WORDS`, to a group of options."""
    for word in map(JOB_WORDS.__getitem__, names):
        parser.add_argument(
            *(f"--{name.replace('_', '-')}" for name in (word.name, *word.aliases)),
            dest=f"word_{word.name}",
            action="append",
            metavar=word.metavar,
            group=group,
            help=word.help + ("; may be given several times" if word.is_repeatable else ""),
        )


# ---- from parsed arguments to a submission


@dataclass(frozen=True)
class JobRequest:
    """What a command line asks for, completed by the configuration.

    Attributes:
        submission: the job.
        origins: where each option that is not a default was set.
        arguments: the component's parameters that are set before it, in its header or in files.
        follow: whether and how the job is watched.
        announcement: what the user should know before the job is sent; "" for nothing.
    """

    submission: Submission
    origins: dict[str, str]
    arguments: dict[str, Setting]
    follow: FollowPlan
    announcement: str


def request_of(args: Namespace, runner: Runner) -> JobRequest:
    """Resolve command line, configuration and defaults together.

    Raises:
        ShunterError: an option or a setting is wrong, or may not be set where it is.
    """
    config = runner.config
    settings = config.command("run")
    check_keys(settings, RUN_KEYS, "[cli.run]")
    given = {"component": args.component or None, "workspace": args.workspace}
    withheld = {
        key: setting
        for key, setting in settings.withheld.items()
        if key in given and given[key] is None  # others only matter to races
    }
    config.refuse_withheld(withheld, "run", "Or name it on the command line.")
    configured = {key: setting.value for key, setting in settings.items()}
    name = full_name(args.scheduler or configured.get("scheduler") or get_default_scheduler_name())
    component = args.component or configured.get("component")
    if not component:
        raise UsageError(
            "no component given",
            hint=_without_component(args),
        )
    if "," in name:
        raise UsageError(
            f"the scheduler {name!r}: only the option -s of `shunter run` takes several",
            hint=f"shunter run -s {name} ...",
        )
    name, _, profile = name.partition(":")
    scheduler = runner.scheduler(name)
    plan = FollowPlan.of(args, runner, name)
    if not args.component and settings["component"].project:
        _refuse_strangers_component(component, settings["component"].origin)
    defaults = _settings_of_component(config, component)
    words = _given_words(args)
    own_name = ""
    if JOB_WORDS["name"] in words and get_component(component).options.by_name("name") is None:
        own_name = words.pop(JOB_WORDS["name"])
    _add_words(defaults, words, component)
    _check_trust(config, component, args.component_args, defaults)
    opts = runner.scheduler_run_opts(name)
    # the command `torchx` warns of options that the scheduler lacks
    keeps_all = getattr(args, "surplus", "refuse") == "refuse"
    options = effective_options(
        config,
        name,
        opts,
        given_options(args, runner, name),
        refuse_surplus=keeps_all,
        profile=profile,
    )
    cfg = {key: setting.value for key, setting in options.items()}
    chosen = None if args.scheduler else settings.get("scheduler")
    announcement = ""
    if chosen is not None and chosen.project and not scheduler.capabilities.is_local:
        announcement = f"The project's files choose the scheduler {name} ({chosen.origin})"
    workspace = configured.get("workspace") if args.workspace is None else args.workspace
    if workspace is None and scheduler.capabilities.ships_by_default:
        travelling = Workspace.implied()
    else:
        travelling = Workspace.from_str(workspace)
    arguments = _configured_arguments(component, defaults)
    submission = Submission(
        component=component,
        arguments=args.component_args,
        defaults={key: setting.value for key, setting in arguments.items()},
        scheduler=name,
        name=own_name,
        metrics=_add_metrics(args.metric, cfg, opts),
        options=cfg,
        workspace=travelling,
        parent_run_id=args.parent_run_id,
        after=args.after,
    )
    origins = {key: setting.origin for key, setting in options.items() if setting.kind != DEFAULT}
    return JobRequest(submission, origins, arguments, plan, announcement)


def _without_component(args: Namespace) -> str:
    """Return what to do where no component is named: perhaps the last option took it as its value."""
    last = (getattr(args, "before", None) or [""])[-1]
    if last.endswith((".py", ".sh")):
        return f"{last} is the value of {args.before[-2]} here: give that option a value before the script."
    return "Try `shunter run utils.echo --msg hello`; `shunter components` lists them."


def given_options(args: Namespace, runner: Runner, scheduler: str) -> dict[str, Any]:
    """Return the scheduler's options on the command line: JSON on stdin, then -cfg, then flags.

    Raises:
        UsageError: the scheduler does not have one of the flags, or a duration cannot be read.
        ConfigError: there is a time limit, and the scheduler has none.
    """
    opts = runner.scheduler_run_opts(scheduler)
    flags = {name: value for name in _FLAGS if (value := getattr(args, name))}
    for name in flags:
        if name not in opts:
            raise UsageError(
                f"--{name.replace('_', '-')} is not supported on {scheduler}: {_FLAGS[name]}",
                hint="`shunter schedulers` shows which schedulers do.",
            )
    if "=" not in flags.get("retry", "="):
        text = flags["retry"]
        raise UsageError(
            f"--retry: {text!r} is not CLASS=N",
            hint=f"After any failure: --retries {text}"
            if text.isdecimal()
            else f"Example: --retry {text}=2. After any failure: --retries 2",
        )
    if "hang_timeout" in flags:
        flags["hang_timeout"] = parse_duration(flags["hang_timeout"])
    seconds = _value_of(args, JOB_WORDS[TIME])
    if seconds is not None:
        name, value = time_option(seconds, scheduler, opts)
        flags[name] = value
    typed = runner.cfg_from_str(scheduler, *args.cfg) if args.cfg else {}
    return {**getattr(args, "cfg_values", {}), **typed, **flags}


def _value_of(args: Namespace, word: JobWord) -> Any:
    """Return what the command line says of a word of the job; None if nothing.

    Raises:
        UsageError: it does not fit the word.
    """
    texts = getattr(args, f"word_{word.name}", None)
    if not texts:
        return None
    try:
        return word.of_texts(texts)
    except ConversionError as error:
        option = f"--{word.name.replace('_', '-')}"
        example = _EXAMPLES.get(word.metavar, "")
        raise UsageError(f"{option}: {error}", hint=example and f"Example: {option} {example}") from None


def _given_words(args: Namespace) -> dict[JobWord, Any]:
    """Return the words of the job on the command line that are parameters of the component."""
    values = {word: _value_of(args, word) for word in JOB_WORDS.values() if word.parameter}
    return {word: value for word, value in values.items() if value is not None}


def _add_words(settings: LayeredSettings, words: dict[JobWord, Any], component: str) -> None:
    """Let the words of the command line override the configured arguments; pairs are added to theirs.

    Raises:
        UsageError: the component has no such parameters, or a named resource makes them void.
    """
    if not words:
        return
    options = get_component(component).options
    lacking = [word.name for word in words if options.by_name(word.parameter) is None]
    if lacking:
        raise UsageError(
            f"{component} has no parameter for {', '.join(f'--{name}' for name in lacking)}",
            hint=f"`shunter run {component} --help` shows what it has.",
        )
    for word, value in words.items():
        before = settings.get(word.parameter)
        origin = COMMAND_LINE
        if isinstance(value, dict) and before is not None and isinstance(before.value, dict):
            value = {**before.value, **value}
            origin = f"{before.origin}, {COMMAND_LINE}"
        settings.override(word.parameter, Setting(value, origin))
    void = [word.name for word in words if word.name in ("cpu", "gpu", "mem")]
    named = settings.get("h")
    if void and named is not None and named.value:
        raise UsageError(
            f"--{void[0]} has no effect beside the named resource {named.value} ({named.origin})",
            hint="To do without the named resource: --h ''",
        )


def _settings_of_component(config: Config, name: str) -> LayeredSettings:
    """Return the configured arguments of a component; a script's go before those of `train.script`."""
    settings = config.component(name)
    if not is_script(name):
        return settings
    layered = config.component(SCRIPT_COMPONENT)
    for key, setting in settings.items():
        layered.override(key, setting)
    layered.withheld |= settings.withheld
    return layered


def _configured_arguments(component: str, settings: LayeredSettings) -> dict[str, Setting]:
    """Return the configured arguments; what a ``.torchxconfig`` sets in vain is left out, with a warning."""
    arguments = {}
    for key, setting in settings.items():
        if setting.kind == INI and get_component(component).options.by_name(key) is None:
            message = f"{setting.origin}: {component} has no parameter {key!r}, so this setting has no effect"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        else:
            arguments[key] = setting
    return arguments


def _add_metrics(texts: list[str], cfg: dict[str, Any], opts: runopts) -> dict[str, str] | None:
    """Return the metrics of the command line; a scheduler that searches itself gets them too."""
    if not texts:
        return None
    metrics = parse_definitions(texts)
    if opts.get("metric_definitions") is not None:
        own = [{"Name": name, **({"Regex": regex} if regex else {})} for name, regex in metrics.items()]
        cfg["metric_definitions"] = [*(cfg.get("metric_definitions") or ()), *own]
    return metrics


def _refuse_strangers_component(component: str, origin: str) -> None:
    """Refuse a component that a project's file names, if the component's file belongs to another user."""
    path = os.path.abspath(component.rpartition(":")[0] or component)
    reason = why_not_used(path, os.getcwd())
    if reason:
        raise ConfigError(
            f"{origin}: the component {component} is not used: {reason}",
            hint=f"To run it anyway: shunter run {component}",
        )


def _check_trust(config: Config, component: str, args: Any, settings: LayeredSettings) -> None:
    """Refuse arguments that a project's files may not choose unasked, unless the command line has them."""
    if not settings.withheld:
        return
    options = get_component(component).options
    if isinstance(args, dict):
        parameters = [options.by_name(key) for key in args]
    else:
        matches = [options.match(word) for word in args if word.startswith("-")]
        parameters = [matched[0] for matched in matches if matched is not None]
    withheld = {
        key: setting
        for key, setting in settings.withheld.items()
        if (parameter := options.by_name(key)) is None or parameter not in parameters
    }
    place = "before the script" if is_script(component) else "as an argument of the component"
    config.refuse_withheld(withheld, f"component.{component}", f"Or give it {place}.")


@contextlib.contextmanager
def requested_job(args: Namespace) -> Iterator[tuple[Runner, JobRequest]]:
    """Yield a runner and the job that a command line means.

    To an error about the scheduler or the component's arguments it adds where the wrong value is set.
    """
    if getattr(args, "stdin", False):
        read_stdin(args, sys.stdin)
    with get_runner() as runner:
        settle_component(args, runner.config)
        try:
            yield runner, request_of(args, runner)
        except UnknownSchedulerException as error:
            chosen = None if args.scheduler else runner.config.command("run").get("scheduler")
            if chosen is not None:
                error.message = f"{chosen.origin}: {error.message}"
            raise
        except ComponentNotFoundException as error:
            if "shunter run -- " in error.hint:  # the program that it ends with gets its arguments
                command = shlex.join([*args.prog.split(), *args.before])
                hint = error.hint.replace("shunter run", command)
                error.hint = f"{hint} {shlex.join(args.component_args)}".rstrip()
            raise
        except ComponentArgumentError as error:
            if error.exit_code == EXIT_OK:  # it is the component's help
                raise
            component = args.component or runner.config.command("run")["component"].value
            places = [
                f"{setting.origin}: {key} is set there"
                for key, setting in _settings_of_component(runner.config, component).items()
                if f"default {key}:" in error.message or f"default {key!r}" in error.message
            ]
            if places:
                raise ConfigError(error.message, hint="\n".join([*places, error.hint]).rstrip()) from None
            script = next((word for word in args.component_args if word.endswith((".py", ".sh"))), "")
            if component == SCRIPT_COMPONENT and script and "--script" not in args.component_args:
                error.hint = f"For a script: shunter run {shlex.quote(script)}"
            if args.misplaced:
                option = next(iter(args.misplaced.values()))[0]
                error.hint += f"\n{option} is an option of `{args.prog}`: put it before the component."
            raise


# ---- a job on stdin


def read_stdin(args: Namespace, stream: TextIO | None) -> None:
    """Add the job on stdin, as JSON, to the parsed options, which win.

    Raises:
        UsageError: it is not a JSON object, a key is unknown or missing, or a value has the wrong type.
    """
    if args.component:
        raise UsageError("--stdin already specifies the component", hint=f"Leave out {args.component!r}.")
    try:
        data = json.loads(stream.read() if stream is not None else "")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--stdin: invalid JSON: {error}", hint=f"Example: {_STDIN_EXAMPLE}") from None
    if not isinstance(data, dict):
        raise UsageError("--stdin: the job must be a JSON object")
    for key, value in data.items():
        if key not in _STDIN_KEYS:
            raise UsageError(f"--stdin: unknown key {key!r}", hint=did_you_mean(key, _STDIN_KEYS))
        if not isinstance(value, _STDIN_KEYS[key]):
            raise UsageError(f"--stdin: wrong type of {key}: {json.dumps(value)[:60]}")
    missing = [key for key in _STDIN_NEEDS if key not in data]
    if missing:
        raise UsageError(
            f"--stdin: missing keys: {', '.join(missing)}", hint="Needed: " + ", ".join(_STDIN_NEEDS)
        )
    args.component = data["component_name"]
    args.scheduler = args.scheduler or data["scheduler"]
    args.cfg_values = {**data["scheduler_args"], **data.get("scheduler_cfg", {})}
    for flag in ("dryrun", "wait", "log"):
        setattr(args, flag, getattr(args, flag) or data.get(flag, False))
    for name in ("workspace", "parent_run_id"):
        if getattr(args, name) is None:
            setattr(args, name, data.get(name))
    args.after = args.after or [str(handle) for handle in data.get("after", ())]
    args.component_args = _component_args(data)


def _component_args(data: dict[str, Any]) -> dict[str, Any] | list[str]:
    arguments, text = data.get("component_args"), data.get("component_args_str")
    if arguments and text:
        raise UsageError("--stdin: give component_args or component_args_str, not both")
    if not text:
        return arguments or {}
    try:
        return shlex.split(text) if isinstance(text, str) else [str(word) for word in text]
    except ValueError as error:
        raise ConfigError(f"--stdin: component_args_str: {error}") from None


# ---- after the submission


@dataclass(frozen=True)
class FollowPlan:
    """Whether and how a job is watched after its submission.

    Attributes:
        waits: whether the command waits for the job's end.
        logs: whether it shows the logs meanwhile.
        may_stop: whether Ctrl-C stops the job.
        source: the replica whose exit code is that of the command.
        json: whether to print JSON.
    """

    waits: bool
    logs: bool
    may_stop: bool
    source: str | None
    json: bool

    @classmethod
    def of(cls, args: Namespace, runner: Runner, scheduler: str) -> FollowPlan:
        """Return what options and configuration ask for; jobs on this machine are followed anyway.

        Raises:
            UsageError: the options contradict each other.
        """
        source = args.exit_code_from
        asked = args.wait or args.log or source is not None
        if args.detach and asked:
            raise UsageError("--detach cannot be combined with --wait, --log or --exit-code-from")
        settings = runner.config.command("run")
        configured = {key: settings[key].value for key in ("wait", "log", "detach") if key in settings}
        is_local = runner.scheduler(scheduler).capabilities.is_local
        # setting only `wait` means no logs
        usual = {"wait": is_local, "log": is_local and not (args.wait or "wait" in configured), **configured}
        if args.detach or (usual.get("detach") and not asked):
            usual = {"wait": False, "log": False}
        logs = args.log or usual["log"]
        waits = asked or usual["wait"] or logs
        # in a script, an interrupt may not be meant for the job
        at_terminal = is_tty(sys.stdout) and is_tty(sys.stderr) and not args.json
        return cls(waits, logs, is_local and at_terminal and waits, source, args.json)


def submit(runner: Runner, send: Callable[[], str], announcement: str = "") -> str:
    """Submit a job by ``send``; show the progress of shipping meanwhile. Returns the handle."""
    if announcement:
        note(announcement)
    runner.progress = progress = TerminalProgress(sys.stderr)
    try:
        return send()
    except KeyboardInterrupt:
        progress.clear()
        note("the submission was interrupted; `shunter list` shows whether the job was started")
        raise
    finally:
        progress.clear()


def submit_and_follow(
    runner: Runner, send: Callable[[], str], plan: FollowPlan, announcement: str = ""
) -> int:
    """Submit a job, see `submit`; print its handle, alone on stdout, and watch the job as planned.

    Returns the exit code.
    """
    handle = submit(runner, send, announcement)
    if not plan.json:
        try:
            out(handle)
        except OutputClosed:
            if not plan.waits:  # the job is submitted: watching it does not depend on the reader of stdout
                raise
    elif plan.waits:
        note(handle)
    if plan.waits:
        return follow_job(runner, handle, plan)
    if plan.json:
        print_json(job_json(handle, runner.status(handle)))
    return EXIT_OK


def follow_job(runner: Runner, handle: str, plan: FollowPlan) -> int:
    """Watch a job that was submitted, as planned; returns the exit code."""
    status: AppStatus | None = None
    try:
        status, stopped = follow(runner, handle, logs=plan.logs, may_stop=plan.may_stop)
    except Detached as detached:
        fate = "has been asked to stop" if detached.asked_to_stop else "keeps running"
        note(f"\nno longer watching; the job {fate}. `shunter log -f {handle}` follows it again")
        return detached.exit_code
    except OutputClosed:  # how the job ended is not known
        return EXIT_INTERRUPTED
    finally:
        if plan.json:
            print_json(job_json(handle, status if status is not None else runner.status(handle)))
    code = exit_code_of(status, plan.source)
    return EXIT_INTERRUPTED if stopped and code == 1 and plan.source is None else code
