"""``train`` under the predecessors' names."""

from __future__ import annotations

import sys

from . import SM_TRAINING_COMPILER_PATHS

__all__ = ["SM_TRAINING_COMPILER_PATHS"]

SUCCESS_CODE = 0
DEFAULT_FAILURE_CODE = 1


def train() -> None:
    """Run the job that the base directory describes, and end this process with its exit code."""
    from .. import cli

    _exit_processes(cli.main(["train"]))


def _exit_processes(exit_code: int) -> None:
    sys.exit(exit_code)


main = train
