"""A command of this package, run in a fork of this process instead of a second interpreter.

A call of a function takes less time than the start of a Python that loads the modules that are loaded here
already. The fork finds what ``python -m shunter_toolkit`` would find: variables, ``sys.path``, site-packages,
handlers of signals, and an ordinary end.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from . import resources


def is_possible(python: str, env: Mapping[str, str]) -> bool:
    """Whether a fork of this process is like a new process of that Python with these variables."""
    return (
        python == sys.executable
        and resources.is_without_site()
        and _of_interpreter(env) == _of_interpreter(os.environ)
    )


def _of_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that count when an interpreter starts; PYTHONPATH can be applied later."""
    prefixes = ("PYTHON", "LD_", "DYLD_", "MALLOC_")
    return {n: value for n, value in env.items() if n.startswith(prefixes) and n != "PYTHONPATH"}


def start(
    words: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    streams: Mapping[int, int],
    prepare: Callable[[], None],
) -> int:
    """Run a command of this package in a fork; return its pid. No thread may run in this process.

    Args:
        words: the command and its arguments.
        env: its complete environment.
        cwd: its working directory, the first place where it looks for modules.
        streams: descriptors that become its streams, by number (1, 2).
        prepare: called first in the fork.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            prepare()
            _enter(env, cwd, streams)
            code = _call(words)
        except BaseException:
            traceback.print_exc()
        finally:
            _end(code)
    return pid


def _enter(env: Mapping[str, str], cwd: str, streams: Mapping[int, int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    for number, descriptor in streams.items():
        os.dup2(descriptor, number)
    os.chdir(cwd)
    own = {os.path.dirname(os.path.dirname(os.path.abspath(__file__))), *_python_path(os.environ)}
    sys.path[:] = [*_python_path(env), *(path for path in sys.path if path not in own)]
    os.environ.clear()
    os.environ.update(env)
    resources.load_site_packages()
    sys.path.insert(0, os.getcwd())


def _python_path(env: Mapping[str, str]) -> list[str]:
    return [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]


def _call(words: Sequence[str]) -> int:
    """Run the command and return its exit code, as an interpreter does."""
    sys.argv[1:] = words
    try:
        # a main module that others can import: multiprocessing's new processes do
        runpy.run_module(__package__, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        return 128 + signal.SIGINT
    return 1


def _end(code: int) -> NoReturn:
    """End this process as an interpreter ends: its threads, then its exit functions, then its output."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)
