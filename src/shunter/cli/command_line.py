"""From a command line to an exit code: options before the command, dispatch, errors, logging."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from shunter import __version__
from shunter.cli.catalog import COMMANDS, load_command, plugin_commands
from shunter.cli.console import (
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
    EXIT_BACKEND,
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_OK,
    ConfigError,
    ShunterError,
    UsageError,
    did_you_mean,
)
from shunter.terminal import render

Dispatch = Callable[[list[str], "GlobalOptions"], int]

EXIT_BUG = 70
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class GlobalOptions:
    """Options that can be given before or after the command."""

    def __init__(self) -> None:
        self.debug = False
        self.log_level: str | None = None


def run_command_line(argv: list[str], dispatch: Dispatch | None = None) -> int:
    """Run a command line; every error becomes a message and an exit code.

    ``dispatch`` runs the command line of another program with our commands; see `run_command`.
    """
    for stream in (sys.stdout, sys.stderr):
        # names and paths may contain characters that the terminal's encoding lacks
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    options = GlobalOptions()
    shown, warnings.showwarning = warnings.showwarning, _warnings_once()
    try:
        code = _guarded(dispatch or _dispatch, argv, options)
    except OutputClosed:
        code = EXIT_OK
    finally:
        warnings.showwarning = shown
    return _flush(code)


def _warnings_once() -> Callable[..., None]:
    """Return a function that prints each warning once: a command may read the same file twice."""
    printed: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            warn(str(message))

    return show


def _guarded(dispatch: Dispatch, argv: list[str], options: GlobalOptions) -> int:
    try:
        return dispatch(argv, options)
    except SystemExit as stop:  # argparse, after printing a help; or a plugin
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or EXIT_OK
        note(str(stop.code))
        return EXIT_JOB_FAILED
    except KeyboardInterrupt:
        note("interrupted")
        return EXIT_INTERRUPTED
    except OutputClosed:
        raise
    except Exception as error:
        if options.debug:
            note(without_secrets(traceback.format_exc().rstrip()))
        return _explain(error)


def _explain(error: Exception) -> int:
    if isinstance(error, ShunterError):
        if isinstance(error, OutputError) and sys.stdout is not None:
            _discard(sys.stdout)  # buffered output cannot be written either, and would be reported again
        if error.exit_code == EXIT_OK:  # a component's help, requested by its --help
            out(error.message.rstrip("\n"))
        else:
            show_error(error)
        return error.exit_code
    if isinstance(error, NotImplementedError):
        show_error(ShunterError(str(error) or "the scheduler cannot do this"))
        return EXIT_BACKEND
    if isinstance(error, FileNotFoundError) and not error.filename and _cwd_is_gone():
        where = os.environ.get("PWD", "")
        show_error(
            ConfigError(
                f"the current directory {where} has been removed", hint="Change to another directory."
            )
        )
        return ConfigError.exit_code
    if isinstance(error, OSError):
        path = f": {error.filename}" if error.filename else ""
        show_error(ShunterError(f"{error.strerror or error}{path}", hint="`--debug` shows where."))
        return EXIT_BACKEND
    show_error(
        ShunterError(
            f"unexpected {type(error).__name__}: {error}",
            hint="This is a bug in shunter or in a plugin; `--debug` shows where.",
        )
    )
    return EXIT_BUG


def _cwd_is_gone() -> bool:
    """Tell whether the current directory is gone."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _dispatch(argv: list[str], options: GlobalOptions) -> int:
    if "_ARGCOMPLETE" in os.environ:
        from shunter.cli.completers import complete

        return complete()
    name, rest = _global_options(argv, options)
    if name is None:
        return EXIT_OK
    return run_command(name, rest, options)


def run_command(name: str, words: list[str], options: GlobalOptions, **more: Any) -> int:
    """Run a command with the words after its name, and the global options before it; returns its exit code.

    ``more`` are further values to set on the parsed arguments.
    """
    command = load_command(name)
    parser = Parser(f"shunter {name}", command.__doc__ or COMMANDS.get(name, ""))
    command.add_arguments(parser)
    add_common_options(parser)
    args = command.parse(parser, words) if hasattr(command, "parse") else parser.parse_arguments(words)
    vars(args).update(more)
    options.debug = getattr(args, "debug", options.debug)
    options.log_level = getattr(args, "log_level", options.log_level)
    set_up_logging(options.log_level)
    code = command.run(args)
    return code if isinstance(code, int) else EXIT_OK


def _global_options(argv: list[str], options: GlobalOptions) -> tuple[str | None, list[str]]:
    """Read the options before the command; return its name (None if there is nothing to run) and the rest."""
    words = list(argv)
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if word in ("-h", "--help") or (word == "help" and not words):
            out(_help())
            return None, []
        if word == "--version":
            out(f"shunter {__version__}")
            return None, []
        if word == "help":
            return words[0], ["--help"]
        if word == "--debug":
            options.debug = True
        elif option in ("--log_level", "--log-level"):
            if not equals and not words:
                raise UsageError(f"{option} needs a level", hint="Levels: " + ", ".join(LEVELS))
            options.log_level = value if equals else words.pop(0)
        elif word.startswith("-"):
            near = did_you_mean(option, ("--version", "--help", "--debug", "--log_level"))
            raise UsageError(f"unknown option {option}", hint=f"{near} `shunter --help` shows more.")
        else:
            return word, words
    note(_help())
    raise UsageError("no command given", hint="`shunter run utils.echo --msg hello` starts a first job.")


def _help() -> str:
    plugins = plugin_commands()
    width = max(map(len, [*COMMANDS, *plugins]))
    lines = [
        "usage: shunter [--version] [--help] [--debug] [--log_level LEVEL] COMMAND ...",
        "",
        "Start training jobs on any scheduler, and watch them.",
        "",
        "commands:",
        *(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()),
    ]
    if plugins:
        lines += ["", "commands of plugins:"]
        lines += [f"  {name:{width}}  {point.value}" for name, point in sorted(plugins.items())]
    lines += [
        "",
        "A job is named by its handle or the beginning of its id; - (or nothing) is the latest job.",
        "Exit codes: 0 ok, 1 the job failed, 2 usage, 3 configuration, 4 backend, 5 no such job,",
        "130 interrupted. `shunter COMMAND --help` shows the options of a command.",
    ]
    return "\n".join(lines)


def set_up_logging(given: str | None) -> None:
    """Show log messages on stderr if a level is set."""
    level = given or os.environ.get("LOGLEVEL")
    if not level:
        return
    name = level.upper()
    if name not in LEVELS and not (level.isdecimal() and len(level) < 6):
        problem = f"{level!r} is not a log level"
        if given:
            raise UsageError(problem, hint="Levels: " + ", ".join(LEVELS))
        warn(f"{problem} (from the variable LOGLEVEL)")
        return

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return render(super().format(record))

    handler = logging.StreamHandler()
    handler.setFormatter(
        Formatter(paint("%(asctime)s %(name)s %(levelname)s", "2", sys.stderr) + " %(message)s")
    )
    logging.basicConfig(level=int(level) if level.isdigit() else name, handlers=[handler])


def _flush(code: int) -> int:
    """Write buffered output now, so that errors are reported."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except BrokenPipeError:
            _discard(stream)
        except (OSError, ValueError) as error:
            _discard(stream)
            if stream is sys.stdout and isinstance(error, OSError):
                show_error(OutputError(f"cannot write the output: {error.strerror or error}"))
                code = code or EXIT_BACKEND
    return code


def _discard(stream: Any) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
