"""The command line. One module per subcommand; only the one that is invoked is imported."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        argv: the arguments after the program's name; None for those of the process.

    The codes: 0 success; 1 the job failed; 2 usage; 3 configuration or validation; 4 the backend refused
    or could not be reached; 5 no such job; 70 a defect in trainyard or a plugin; 124 a given ``--timeout``
    passed; 130 interrupted.
    """
    try:
        from trainyard.cli.app import run_command_line

        return run_command_line(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        return 130
