"""From a command line to an exit code: options before the command, dispatch, errors, log messages."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shunter import __version__
from shunter.cli.command_list import COMMANDS, load_command, plugin_commands
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
from shunter.cli.interrupts import Interrupted
from shunter.cli.parser import Parser, add_common_options
from shunter.errors import (
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_OK,
    BackendError,
    ConfigError,
    ShunterError,
    UsageError,
)
from shunter.terminal import render

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass
class GlobalOptions:
    """Options that can be given before or after the command."""

    debug: bool = False
    log_level: str | None = None


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
    previous, warnings.showwarning = warnings.showwarning, _warnings_once()
    try:
        code = _guarded(dispatch or _dispatch, argv, GlobalOptions())
    except OutputClosed:
        code = EXIT_OK
    finally:
        warnings.showwarning = previous
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
    except Interrupted as interrupt:
        note(interrupt.message)
        return interrupt.exit_code
    except KeyboardInterrupt:
        note("interrupted")
        return EXIT_INTERRUPTED
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
    if isinstance(error, FileNotFoundError) and not error.filename and _cwd_is_gone():
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
    parser = Parser("shunter", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    add_common_options(parser)
    end = parser.index_of_argument(argv)
    args, words = parser.parse_arguments(argv[:end]), argv[end:]
    if args.help or words == ["help"]:
        out(_help())
        return EXIT_OK
    if args.version:
        out(f"shunter {__version__}")
        return EXIT_OK
    if not words:
        note(_help())
        raise UsageError("no command given", hint="`shunter run utils.echo --msg hello` starts a first job.")
    _set_options(options, args)
    if words[0] == "help":
        words = [words[1], "--help"]
    return run_command(words[0], words[1:], options)


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
    _set_options(options, args)
    set_up_logging(options.log_level)
    code = command.run(args)
    return code if isinstance(code, int) else EXIT_OK


def _set_options(options: GlobalOptions, args: Any) -> None:
    options.debug = getattr(args, "debug", options.debug)
    options.log_level = getattr(args, "log_level", options.log_level)


def _help() -> str:
    plugins = {name: point.value for name, point in sorted(plugin_commands().items())}
    width = max(map(len, [*COMMANDS, *plugins]))
    return "\n".join(
        [
            "usage: shunter [--version] [--help] [--debug] [--log_level LEVEL] COMMAND ...",
            "",
            "Start training jobs on any scheduler, and watch them.",
            "",
            "commands:",
            *(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()),
            *(["", "commands of plugins:"] if plugins else []),
            *(f"  {name:{width}}  {value}" for name, value in plugins.items()),
            "",
            "A job is named by its handle or the beginning of its id; - (or nothing) is the latest job.",
            "Exit codes: 0 ok, 1 the job failed, 2 usage, 3 configuration, 4 backend, 5 no such job,",
            "130 interrupted. `shunter COMMAND --help` shows the options of a command.",
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
    logging.basicConfig(level=int(name) if name.isdecimal() else name, handlers=[handler])


class _LogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return render(super().format(record))


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
                failed = OutputError(f"cannot write the output: {error.strerror or error}")
                show_error(failed)
                code = code or failed.exit_code
    return code


def _discard(stream: Any) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
