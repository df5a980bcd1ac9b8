"""The command line. Each subcommand is a module in `commands`, imported only when it is invoked.

`runner` implements what the commands do; this package only parses command lines and shows results.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from shunter.cli.command_line import run_command_line

#: Commands create few reference cycles, and most end before a collection would pay.
GC_THRESHOLD = 50_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process, and return its exit code.

    The codes: 0 success; 1 the job failed; 2 usage; 3 configuration or validation; 4 the backend refused
    or could not be reached; 5 no such job; 70 a bug in shunter or a plugin; 124 a given ``--timeout``
    passed; 130 interrupted.
    """
    try:
        return run_command_line(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        return 130


def console_main() -> NoReturn:
    """The program `shunter`: run the command line of this process, and exit."""
    gc.set_threshold(GC_THRESHOLD)
    _exit(main())


def _exit(code: int) -> NoReturn:
    """Exit without the interpreter's cleanup of modules, a sixth of a short command's time."""
    threading = sys.modules.get("threading")
    if sys.gettrace() or sys.getprofile() or (threading is not None and threading.active_count() > 1):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed, or None
            pass
    os._exit(code)
