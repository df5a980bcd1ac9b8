"""The command line in a process that is forked from the tests: starting Python costs the most.

The start of the process itself (where modules are found, what is imported) is tested with the real program.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from shunter import cli
from shunter.cli.command_line import COMMANDS
from shunter.components import user_code
from shunter.runner import events
from shunter.specs.resource_catalog import named_resources

#: What else the commands import late, in most of their runs.
LATE = (
    "shunter.cli.shown_status",
    "shunter.schedulers.local_scheduler.scheduler",
    "shunter.schedulers.supervisor.log_reader",
    "shunter.workspace.directory_shipment",
)


@functools.cache
def import_all() -> None:
    """Import once what every command would import again."""
    for name in COMMANDS:
        importlib.import_module(f"shunter.cli.commands.{name.replace('-', '_')}")
    for name in LATE:
        importlib.import_module(name)


def start_forked(args: Sequence[str], environ: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start ``shunter ARGS`` as `subprocess.Popen` would, with its options."""
    import_all()

    def instead_of_a_program() -> None:
        run_forked(args, environ)

    with warnings.catch_warnings():  # from Python 3.12 on, of forking with threads
        warnings.simplefilter("ignore", DeprecationWarning)
        return subprocess.Popen(["shunter", *args], preexec_fn=instead_of_a_program, **options)


def run_shunter(
    *args: str, cwd: Path | None = None, timeout: float = 55, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``shunter ARGS`` to its end, with these variables besides the test's own."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_forked(args, {**os.environ, **variables}, cwd=cwd, **pipes) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(args, process.returncode, out.decode(), errors.decode())


def run_forked(args: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Become ``shunter ARGS``, in a forked process that has its streams and its directory."""
    code = 70
    try:
        gc.freeze()  # the tests' open files must not close descriptors that have become others'
        os.closerange(3, 4096)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python does it
        os.environ.clear()
        os.environ.update(environ)
        time.tzset()
        atexit._clear()
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        sys.argv = ["shunter", *args]
        sys.path[:0] = [*filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
        importlib.invalidate_caches()
        _forget_what_was_cached()
        sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w")
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
        code = cli.main(args)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = 120
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        os._exit(code)


def _stream(descriptor: int, mode: str) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, mode, closefd=False)
    is_stderr = descriptor == 2
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered,
        encoding=os.environ.get("PYTHONIOENCODING", "utf-8"),
        errors="backslashreplace" if is_stderr else "strict",
        line_buffering=is_stderr or raw.isatty(),
    )


def _forget_what_was_cached() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("shunter"):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
            vars(module).pop("__warningregistry__", None)
    vars(named_resources).pop("_all", None)  # with the plugins that the tests' own process has
    user_code._loaded.clear()
    events._handlers = None
    events._failed.clear()
