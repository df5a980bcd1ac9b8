"""The command line. Each subcommand is a module in `commands`, imported only when it is invoked.

`runner` implements what the commands do; this package only parses command lines and shows results.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from shunter.cli.command_line import run_command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process, and return its exit code.

    The codes: 0 success; 1 the job failed; 2 usage; 3 configuration or validation; 4 the backend refused
    or could not be reached; 5 no such job; 70 a bug in shunter or a plugin; 124 a given ``--timeout``
    passed; 130 interrupted.
    """
    if "_ARGCOMPLETE" in os.environ:
        from shunter.cli.completers import complete

        return complete()
    try:
        return run_command_line(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        return 130


def console_main() -> NoReturn:
    """The program `shunter`: run the command line of this process, and exit."""
    sys.exit(main())
