"""Notebooks: the cell magics ``%%workspacefile`` and ``%%shunter``, and the display of jobs.

Jobs are submitted and followed with the command line's own code.
"""

from __future__ import annotations

import sys
from typing import Any

from shunter.notebook.job_magic import CellJob, shunter
from shunter.notebook.workspace_files import get_workspace, workspacefile

__all__ = ["CellJob", "get_workspace", "load_ipython_extension", "shunter", "workspacefile"]


def load_ipython_extension(shell: Any) -> None:
    """Add the magics to a shell of IPython; ``%load_ext shunter.notebook`` calls this."""
    shell.register_magic_function(workspacefile, "cell")
    shell.register_magic_function(shunter, "cell")


if "IPython" in sys.modules:
    _shell = sys.modules["IPython"].get_ipython()
    if _shell is not None:
        load_ipython_extension(_shell)
