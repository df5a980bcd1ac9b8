"""The command `torchx`: TorchX's command line, carried out by the commands of shunter.

The distribution ``torchx-command`` of this repository installs it. What is different from `shunter`: jobs
run on local_docker unless another scheduler is named, those of local schedulers are always followed with
their logs, options may be abbreviated, options that a scheduler does not have are left out with a warning,
and lists are split at commas only.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from shunter import __version__
from shunter.cli.command_line import GlobalOptions, run_command, run_command_line, set_up_logging
from shunter.cli.console import note, out, print_json, warn
from shunter.cli.shown_status import status_of
from shunter.compat.runner.config import CONFIG_FILE, dump
from shunter.compat.specs.status import torchx_status
from shunter.components.component import Component
from shunter.components.finder import get_builtin_source, get_component
from shunter.errors import EXIT_OK, ConfigError, ShunterError, UsageError
from shunter.plugins import entry_points
from shunter.runner import get_runner
from shunter.runner.config import Config, load_config
from shunter.schedulers.registry import get_scheduler_factories
from shunter.specs.conversion import FALSE_WORDS, TRUE_WORDS, bare_type, is_list_type
from shunter.specs.handles import parse_app_handle

#: TorchX's default scheduler. Its documentation names local_cwd, its program uses this one.
DEFAULT_SCHEDULER = "local_docker"


class TorchXParser(argparse.ArgumentParser):
    """A parser that knows abbreviations, and raises `UsageError` where argparse would exit."""

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error as a `UsageError`."""
        raise UsageError(f"{self.prog}: {message}", hint=f"`{self.prog} --help` shows what it takes.")


# ---- the commands: what each takes, and how shunter does it


def _add_scheduler(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-s", "--scheduler", help="name of the scheduler")
    parser.add_argument(
        "-cfg", "--scheduler_args", action="append", default=[], metavar="K=V,...", help="its options"
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_scheduler(parser)
    parser.add_argument("--dryrun", action="store_true", help="only show the request")
    parser.add_argument("--wait", action="store_true", help="wait for the end of the job")
    parser.add_argument("--log", action="store_true", help="follow the logs, to the end of the job")
    parser.add_argument("--workspace", "--buck-target", help="the code that travels with the job")
    parser.add_argument("--parent_run_id", help="the run that this one belongs to")
    parser.add_argument("--tee_logs", action="store_true", help="accepted; lines always name their replica")
    parser.add_argument("--stdin", action="store_true", help="read the job as JSON from stdin")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("component_name_and_args", nargs=argparse.REMAINDER, metavar="COMPONENT ...")


def _run(args: argparse.Namespace, options: GlobalOptions) -> int:
    config = load_config()
    component, rest = _component_and_arguments(args.component_name_and_args, config)
    words = _flags(args, "dryrun", "wait", "tee_logs", "stdin", "json")
    if args.stdin and not args.scheduler:  # the job on stdin names one
        words += _flags(args, "log")
    else:
        scheduler = args.scheduler or _configured(config, "run", "scheduler") or DEFAULT_SCHEDULER
        words += ["-s", scheduler]
        words += ["--log"] if args.log or (_is_local(scheduler) and not args.dryrun) else []
    for option in ("workspace", "parent_run_id"):
        if getattr(args, option) is not None:
            words.append(f"--{option}={getattr(args, option)}")
    words += [f"--scheduler_args={text}" for text in args.scheduler_args]
    if component:
        words += [component, *component_words(get_component(component), rest)]
    return run_command("run", words, options, surplus="warn")


def _component_and_arguments(words: Sequence[str], config: Config) -> tuple[str | None, list[str]]:
    """Split what follows the options; the component may be the configured one."""
    rest = list(words)
    if rest and rest[0] == "--":
        rest.pop(0)
    if rest and not rest[0].startswith("-"):
        return rest[0], rest[1:]
    return _configured(config, "run", "component"), rest


def _add_handle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app_handle", help="SCHEDULER://[SESSION]/APP_ID")


def _on_handle(command: str) -> Callable[[argparse.Namespace, GlobalOptions], int]:
    def act(args: argparse.Namespace, options: GlobalOptions) -> int:
        return run_command(command, [args.app_handle], options)

    return act


def _add_status(parser: argparse.ArgumentParser) -> None:
    _add_handle(parser)
    parser.add_argument("--roles", default="", help="only these roles, separated by commas")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _status(args: argparse.Namespace, options: GlobalOptions) -> int:
    if not args.json:
        words = [args.app_handle, *([f"--roles={args.roles}"] if args.roles else [])]
        return run_command("status", words, options)
    with get_runner() as runner:
        status = status_of(runner, runner.resolve_handle(args.app_handle))
    wanted = [role for role in args.roles.split(",") if role]
    print_json(torchx_json(args.app_handle, status, wanted))
    return EXIT_OK


def torchx_json(handle: str, status: Any, roles: Sequence[str] = ()) -> dict[str, Any]:
    """Return a job's status as TorchX prints it: in states that TorchX has, those of replicas as numbers."""
    parsed = parse_app_handle(handle)
    document = torchx_status(status).to_json(roles or None)
    return {
        "handle": handle,
        "app_id": parsed.app_id,
        "scheduler": parsed.scheduler_backend,
        **document,
        "ui_url": status.ui_url,
    }


def _add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--regex", help="only lines in which this matches")
    parser.add_argument("-t", "--tail", action="store_true", help="follow the log")
    parser.add_argument("--streams", choices=("stdout", "stderr", "combined"), help="one output stream")
    parser.add_argument("identifier", metavar="SCHEDULER://[SESSION]/APP_ID[/ROLE[/0,1]]", help="which log")


def _log(args: argparse.Namespace, options: GlobalOptions) -> int:
    words = [args.identifier.rstrip("/")]
    words += ["--follow"] if args.tail else []
    words += [f"--regex={args.regex}"] if args.regex is not None else []
    words += [f"--streams={args.streams}"] if args.streams else []
    return run_command("log", words, options)


def _list(args: argparse.Namespace, options: GlobalOptions) -> int:
    scheduler = args.scheduler or _configured(load_config(), "list", "scheduler") or DEFAULT_SCHEDULER
    words = ["-s", scheduler, "--limit=0", *(f"--scheduler_args={text}" for text in args.scheduler_args)]
    return run_command("list", words, options)


def _add_runopts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scheduler", nargs="?", help="only the options of this scheduler")


def _runopts(args: argparse.Namespace, options: GlobalOptions) -> int:
    return run_command("runopts", [args.scheduler] if args.scheduler else [], options)


def _add_builtins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--print", metavar="NAME", help="print the source of a builtin component")


def _builtins(args: argparse.Namespace, options: GlobalOptions) -> int:
    if not args.print:
        return run_command("components", [], options)
    out(get_builtin_source(args.print).rstrip("\n"))
    return EXIT_OK


def _add_configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-s", "--schedulers", help="only these schedulers, separated by commas")
    parser.add_argument("--print", action="store_true", help="print it instead of writing the file")
    parser.add_argument("-a", "--all", action="store_true", help="with the options that are not required")


def _configure(args: argparse.Namespace, options: GlobalOptions) -> int:
    chosen = [name.strip() for name in args.schedulers.split(",")] if args.schedulers else None
    text = config_text(chosen, required_only=not args.all)
    if args.print:
        out(text.rstrip("\n"))
        return EXIT_OK
    try:
        with open(CONFIG_FILE, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{CONFIG_FILE} exists, and is not overwritten",
            hint="Remove it first, or look at what would be written with --print.",
        ) from None
    note(f"wrote {os.path.abspath(CONFIG_FILE)}")
    return EXIT_OK


def config_text(schedulers: Sequence[str] | None = None, *, required_only: bool = True) -> str:
    """Return a ``.torchxconfig`` with the options of these schedulers, or of all that can be loaded."""
    sections = []
    for name in schedulers or get_scheduler_factories():
        section = io.StringIO()
        try:
            dump(section, [name], required_only)
        except ShunterError as error:
            if schedulers:
                raise
            warn(f"{name}: {error.message}")
            continue
        sections.append(section.getvalue().rstrip("\n") + "\n")
    return "\n".join(sections)


def _add_tracker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="list ...", help="what to show")


_COMMANDS: dict[str, tuple[str, Any, Any]] = {
    "run": ("start a job", _add_run, _run),
    "status": ("show the state of a job", _add_status, _status),
    "log": ("print the logs of a job", _add_log, _log),
    "list": ("list the jobs of a scheduler", _add_scheduler, _list),
    "describe": ("show the definition of a job", _add_handle, _on_handle("describe")),
    "cancel": ("stop a job", _add_handle, _on_handle("cancel")),
    "delete": ("remove a job", _add_handle, _on_handle("delete")),
    "runopts": ("show the options of schedulers", _add_runopts, _runopts),
    "builtins": ("list the builtin components", _add_builtins, _builtins),
    "configure": (f"write a {CONFIG_FILE}", _add_configure, _configure),
    "tracker": (
        "show what jobs tracked",
        _add_tracker,
        lambda args, options: run_command("tracker", args.words, options),
    ),
}


# ---- arguments of components


def component_words(component: Component, words: Sequence[str]) -> list[str]:
    """Return a component's arguments as shunter reads them.

    Names of parameters may be abbreviated as long as they are unique, and lists are split at commas only.
    """
    options = component.options
    result: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--" or not word.startswith("-") or component.preset:
            return [*result, word, *rest]
        matched = options.match(word)
        if matched is None and word.startswith("--") and word != "--help":
            word = _completed(word, options.words)
            matched = options.match(word)
        if matched is None:
            result.append(word)
            continue
        parameter, attached, negated = matched
        takes_value = not negated and not (parameter.is_flag and not _is_truth(rest))
        if attached is None and takes_value and rest:
            attached = rest.pop(0)
            word = parameter.options[0]
        if attached is None or not is_list_type(bare_type(parameter.type)):
            result += [word] if attached is None or "=" in word else [word, attached]
            continue
        result += [parameter.options[0], _json_list(attached)]
    return result


def _is_truth(words: Sequence[str]) -> bool:
    return bool(words) and words[0].lower() in (*TRUE_WORDS, *FALSE_WORDS)


def _completed(word: str, names: Any) -> str:
    """Return an option with its full name; unchanged if no name, or more than one, begins with it."""
    name, equals, value = word[2:].partition("=")
    found = [each for each in names if each.startswith(name)]
    return f"--{found[0]}{equals}{value}" if len(found) == 1 else word


def _json_list(text: str) -> str:
    """Return a list as JSON if it has a semicolon, at which shunter would split it."""
    if ";" not in text or text.startswith("["):
        return text
    return json.dumps([item for item in text.split(",") if item])


# ---- from a command line to a command of shunter


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line of TorchX; returns the exit code."""
    return run_command_line(sys.argv[1:] if argv is None else list(argv), _dispatch)


def _dispatch(argv: list[str], options: GlobalOptions) -> int:
    parser = TorchXParser("torchx", description="TorchX's command line, by shunter.")
    parser.add_argument("--log_level", help="show log messages from this level on")
    parser.add_argument("--version", action="store_true", help="show the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    plugins = {point.name: point for point in entry_points("cli.cmds")}
    for name, (summary, add_arguments, action) in _COMMANDS.items():
        if name not in plugins:
            sub = commands.add_parser(name, help=summary, description=summary)
            add_arguments(sub)
            sub.set_defaults(action=action)
    for name, point in plugins.items():
        sub = commands.add_parser(name, help=point.value)
        if name in argv:
            command = point.call()
            command.add_arguments(sub)
            sub.set_defaults(action=lambda args, _, command=command: command.run(args))
    args = parser.parse_args(argv)
    options.log_level = args.log_level
    set_up_logging(args.log_level)
    if args.version:
        out(f"torchx command of shunter {__version__}")
        return EXIT_OK
    if not args.command:
        raise UsageError("no command given", hint="`torchx --help` lists them.")
    code = args.action(args, options)
    return code if isinstance(code, int) else EXIT_OK


def _flags(args: argparse.Namespace, *names: str) -> list[str]:
    return [f"--{name}" for name in names if getattr(args, name)]


def _configured(config: Config, command: str, key: str) -> str | None:
    setting = config.command(command).get(key)
    return None if setting is None else str(setting.value)


def _is_local(scheduler: str) -> bool:
    with get_runner() as runner:
        return scheduler.startswith("local") or runner.scheduler(scheduler).capabilities.is_local


if __name__ == "__main__":
    sys.exit(main())
