"""From a command line to an exit code: options before the command, its module, errors, log messages."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from shunter import __version__
from shunter.cli.console import (
    FAINT,
    OutputClosed,
    OutputError,
    note,
    out,
    paint,
    show_error,
    warn,
    without_secrets,
)
from shunter.cli.parser import Parser, add_common_options
from shunter.errors import (
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_OK,
    BackendError,
    ConfigError,
    ShunterError,
    UnknownAppException,
    UsageError,
    did_you_mean,
)
from shunter.plugins import EntryPoint, entry_points
from shunter.specs.handles import LatestOfSeveral
from shunter.terminal import render

# In the order of the help. The module is named like the command, with _ for -.
COMMAND_GROUPS: dict[str, dict[str, str]] = {
    "start jobs": {
        "run": "start a job",
        "sweep": "run every combination of some values, as one job",
        "plan": "show in full what run would do, without submitting anything",
        "rerun": "start a job again, as before or with other arguments",
        "resume": "go on from the last checkpoint of a job that has ended",
        "lab": "run experiments under a budget, and keep the best",
        "init": "write a header into a script that says what its job needs",
    },
    "look at jobs": {
        "list": "list jobs",
        "status": "show the state of a job and its replicas",
        "why": "say why a job failed, or why it waits",
        "log": "print or follow the logs of a job",
        "metrics": "show the metrics of jobs, side by side",
        "plot": "draw a metric of one or several jobs",
        "points": "show the points of a sweep: values, states, the best",
        "describe": "show the definition of a job",
        "diff": "show what changed between two jobs",
        "ui": "serve a page that shows jobs, their logs and charts",
        "export": "write a job as one HTML file",
        "tracker": "show what experiment trackers know about jobs",
    },
    "act on jobs": {
        "wait": "wait until a job has ended",
        "cancel": "ask jobs to stop",
        "dev": "start an interactive job and enter it; it ends when idle",
        "exec": "run a command, or a shell, in a running replica",
        "forward": "make a port of a running replica reachable here",
        "fetch": "bring the results of a job to this machine",
        "result": "print what a function that ran as a job returned",
        "delete": "remove the logs, results and entries of ended jobs",
        "drill": "simulate a spot interruption of a job",
        "gc": "remove leftovers of old jobs",
    },
    "set up": {
        "schedulers": "show which schedulers there are, and what each can do",
        "runopts": "show the options of schedulers",
        "components": "list components, show their help, lint them",
        "doctor": "check whether jobs could run on a scheduler",
        "config": "show the configuration, or create a configuration file",
        "trust": "let a project's files choose programs and destinations",
        "workspace": "show which code would be sent with a job",
        "sagemaker-local": "serve SageMaker's API on this machine",
        "skill": "install the instructions for coding agents",
        "completion": "print the completion script of a shell",
    },
}
COMMANDS: dict[str, str] = {name: text for group in COMMAND_GROUPS.values() for name, text in group.items()}

# What other tools call these commands. They work, and are not in the help.
OTHER_NAMES = {
    "builtins": "components",
    "configure": "config init",
    "ls": "list",
    "ps": "list",
    "logs": "log",
    "stop": "cancel",
    "kill": "cancel",
    "rm": "delete",
    "submit": "run",
    "launch": "run",
    "prune": "gc",
    "compare": "diff",
    "explain": "why",
    "port-forward": "forward",
    "download": "fetch",
    "results": "fetch",
    "top": "metrics --watch",
    "jobs": "list",
    "show": "status",
    "info": "status",
    "tail": "log --follow",
    "ssh": "exec",
    "dashboard": "ui",
}

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass
class GlobalOptions:
    """Options that can be given before or after the command."""

    debug: bool = False
    log_level: str | None = None

    def update(self, args: Any) -> None:
        """Take over what the parsed arguments hold."""
        self.debug = getattr(args, "debug", self.debug)
        self.log_level = getattr(args, "log_level", self.log_level)


Dispatch = Callable[[list[str], GlobalOptions], int]


class Defect(ShunterError):
    """A bug in shunter or in a plugin."""

    exit_code = 70


def run_command_line(argv: list[str], dispatch: Dispatch | None = None) -> int:
    """Run a command line; every error becomes a message and an exit code.

    ``dispatch`` runs the command line of another program with our commands; see `run_command`.
    """
    for stream in (sys.stdout, sys.stderr):
        # names and paths may contain characters that the terminal's encoding lacks
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    printed: set[str] = set()  # a command may read the same file twice

    def show_once(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            show = note if isinstance(message, LatestOfSeveral) else warn
            show(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show_once
        try:
            code = _guarded(dispatch or _dispatch, argv, GlobalOptions())
        except OutputClosed:
            code = EXIT_OK
    return _flush(code)


def _guarded(dispatch: Dispatch, argv: list[str], options: GlobalOptions) -> int:
    try:
        return dispatch(argv, options)
    except SystemExit as stop:  # argparse, after printing a help; or a plugin
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or EXIT_OK
        note(str(stop.code))
        return EXIT_JOB_FAILED
    except KeyboardInterrupt as interrupt:
        note(str(interrupt) or "interrupted")
        return getattr(interrupt, "exit_code", EXIT_INTERRUPTED)
    except OutputClosed:
        raise
    except Exception as error:
        if options.debug:
            note(without_secrets(traceback.format_exc().rstrip()))
        if isinstance(error, OutputError) and sys.stdout is not None:
            _discard(sys.stdout)  # buffered output cannot be written either, and would be reported again
        explained = _explained(error)
        if explained.exit_code == EXIT_OK:  # a component's help, requested by its --help
            out(explained.message.rstrip("\n"))
        else:
            show_error(explained)
        return explained.exit_code


def _explained(error: Exception) -> ShunterError:
    """Return the error that a user can understand."""
    if isinstance(error, ShunterError):
        return error
    if isinstance(error, NotImplementedError):
        return BackendError(str(error) or "the scheduler cannot do this")
    if isinstance(error, FileNotFoundError) and not error.filename:  # as os.getcwd raises it
        where = os.environ.get("PWD", "")
        return ConfigError(
            f"the current directory {where} has been removed", hint="Change to another directory."
        )
    if isinstance(error, OSError):
        path = f": {error.filename}" if error.filename else ""
        return BackendError(f"{error.strerror or error}{path}", hint="`--debug` shows where.")
    return Defect(
        f"unexpected {type(error).__name__}: {error}",
        hint="This is a bug in shunter or in a plugin; `--debug` shows where.",
    )


def _dispatch(argv: list[str], options: GlobalOptions) -> int:
    parser = Parser("shunter", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    add_common_options(parser)
    end = parser.index_of_argument(argv)
    args, words = parser.parse_arguments(argv[:end]), argv[end:]
    if args.help or words == ["help"]:
        out(_help())
        return EXIT_OK
    if args.version or words == ["version"]:
        out(f"shunter {__version__}")
        return EXIT_OK
    if not words:
        note(_help())
        raise UsageError("no command given", hint="`shunter run utils.echo --msg hello` starts a first job.")
    options.update(args)
    if words[0] == "help":
        words = [words[1], "--help"]
    return run_command(words[0], words[1:], options)


def run_command(name: str, words: list[str], options: GlobalOptions, **more: Any) -> int:
    """Run a command with the words after its name, and the global options before it; returns its exit code.

    ``more`` are further values to set on the parsed arguments.
    """
    if name in OTHER_NAMES and name not in plugin_commands():
        name, *first = OTHER_NAMES[name].split()
        words = [*first, *words]
    command = load_command(name, words)
    parser = Parser(f"shunter {name}", command.__doc__ or COMMANDS.get(name, ""))
    command.add_arguments(parser)
    add_common_options(parser)
    args = command.parse(parser, words) if hasattr(command, "parse") else parser.parse_arguments(words)
    vars(args).update(more)
    options.update(args)
    set_up_logging(options.log_level)
    try:
        code = command.run(args)
    except UnknownAppException as error:
        # with the runner, which help and wrong options do without
        from shunter.cli.job_names import exchanged

        line = exchanged(parser, words)
        error.hint = f"The job comes at another place: {line}" if line else error.hint
        raise
    return code if isinstance(code, int) else EXIT_OK


def load_command(name: str, words: Sequence[str] = ()) -> Any:
    """Return a command: a module, or an instance of a plugin's class, with ``add_arguments`` and ``run``.

    ``words`` are those behind its name, for the message.

    Raises:
        UsageError: there is no such command.
    """
    if name in COMMANDS:
        return import_module(f"shunter.cli.commands.{name.replace('-', '_')}")
    plugins = plugin_commands()
    if name in plugins:
        return plugins[name].call()
    raise UsageError(f"there is no command {name!r}", hint=_instead_of(name, words, plugins))


def _instead_of(name: str, words: Sequence[str], plugins: Iterable[str]) -> str:
    """Return what to type instead of a word that is no command."""
    if name.endswith((".py", ".sh")) or name in ("python", "python3"):
        return f"To run it: shunter run {shlex.join([name, *words])}"
    return did_you_mean(name, [*COMMANDS, *plugins])


def plugin_commands() -> dict[str, EntryPoint]:
    """Return the commands that plugins add; they cannot replace built-in ones."""
    points: dict[str, EntryPoint] = {}
    for point in [*entry_points("cmds"), *entry_points("cli.cmds")]:
        if point.name not in COMMANDS:
            points.setdefault(point.name, point)
    return points


def _help() -> str:
    plugins = {name: point.value for name, point in sorted(plugin_commands().items())}
    width = max(map(len, [*COMMANDS, *plugins]))
    return "\n".join(
        [
            "usage: shunter [--version] [--help] [--debug] [--log_level LEVEL] COMMAND ...",
            "",
            "Start training jobs on any scheduler, and watch them.",
            "",
            *(
                line
                for title, group in COMMAND_GROUPS.items()
                for line in (f"{title}:", *(f"  {name:{width}}  {text}" for name, text in group.items()), "")
            ),
            *(["commands of plugins:"] if plugins else []),
            *(f"  {name:{width}}  {value}" for name, value in plugins.items()),
            *([""] if plugins else []),
            "A job is named by its handle, the beginning of its id, or its name, which means",
            "the latest job of that name; - (or nothing) is the job submitted last.",
            "Exit codes: 0 ok, 1 the job failed, 2 usage, 3 configuration, 4 backend,",
            "5 no such job, 6 a lab's budget is spent, 124 `wait --timeout` expired,",
            "130 interrupted. `shunter COMMAND --help` shows its options.",
        ]
    )


def set_up_logging(level: str | None) -> None:
    """Show log messages on stderr from this level on, or from that of the variable LOGLEVEL; none without.

    Raises:
        UsageError: the level does not exist.
    """
    name = (level or os.environ.get("LOGLEVEL") or "").upper()
    if not name:
        return
    if name not in LEVELS and not (name.isdecimal() and len(name) < 6):
        if level:
            raise UsageError(f"{level!r} is not a log level", hint="Levels: " + ", ".join(LEVELS))
        warn(f"{os.environ['LOGLEVEL']!r} is not a log level (from the variable LOGLEVEL)")
        return
    handler = logging.StreamHandler()
    handler.setFormatter(
        _LogFormatter(paint("%(asctime)s %(name)s %(levelname)s", FAINT, sys.stderr) + " %(message)s")
    )
    wanted = int(name) if name.isdecimal() else name
    logging.basicConfig(level=wanted, handlers=[handler])
    logging.getLogger("shunter").setLevel(wanted)


class _LogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return render(super().format(record))


def _flush(code: int) -> int:
    """Write buffered output now, so that errors are reported."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError) as error:
            _discard(stream)
            if stream is sys.stdout and isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                failed = OutputError(f"cannot write the output: {error.strerror or error}")
                show_error(failed)
                code = code or failed.exit_code
    return code


def _discard(stream: Any) -> None:
    """Let the rest of a stream, which the interpreter would write at its end, go nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
