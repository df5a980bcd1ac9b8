"""The command line. One module per subcommand; only the one that is invoked is imported."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

#: Commands make few cycles; most of them end before the collector would have looked for any.
GC_THRESHOLD = 50_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        argv: the arguments after the program's name; None for those of the process.

    The codes: 0 success; 1 the job failed; 2 usage; 3 configuration or validation; 4 the backend refused
    or could not be reached; 5 no such job; 70 a defect in trainyard or a plugin; 124 a given ``--timeout``
    passed; 130 interrupted.
    """
    try:
        from trainyard.cli.command_line import run_command_line

        return run_command_line(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        return 130


def console_main() -> NoReturn:
    """The program `trainyard`: run the command line of this process, and end the process."""
    import gc

    gc.set_threshold(GC_THRESHOLD)
    _end(main())


def _end(code: int) -> NoReturn:
    """End the process as the interpreter would, but without taking every module apart first.

    That takes a sixth of a short command's time, and the kernel frees the memory anyway.
    """
    import atexit
    import os

    threading = sys.modules.get("threading")
    if sys.gettrace() or sys.getprofile() or (threading is not None and threading.active_count() > 1):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed, or none at all
            pass
    os._exit(code)
