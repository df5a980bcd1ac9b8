"""The cell magic ``%%workspacefile PATH`` of notebooks: the cell becomes a file of a workspace.

::

    from shunter.notebook import get_workspace

    %%workspacefile train.py
    print("hello")

    runner.run_component("train.script", ["--script", "train.py"], "local_docker", workspace=get_workspace())

The files lie in a directory that is removed when the notebook's process ends. Jobs get copies.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile

from shunter.errors import UsageError


@functools.cache
def get_workspace() -> str:
    """Return the workspace with the files of this notebook, for `Runner.run` and ``--workspace``."""
    directory = tempfile.mkdtemp(prefix="shunter-notebook-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def workspacefile(line: str, cell: str) -> None:
    """Write a cell to a file of the workspace.

    Args:
        line: path of the file in the workspace.
        cell: its content.

    Raises:
        UsageError: the path is missing, or leads out of the workspace.
    """
    path = write_workspace_file(line.strip(), cell)
    print(f"added {path} to the workspace {get_workspace()}")  # noqa: T201


def write_workspace_file(name: str, text: str) -> str:
    """Write a file of the workspace, and return its path there.

    Raises:
        UsageError: the path is missing, or leads out of the workspace.
    """
    path = os.path.normpath(name)
    if not name or os.path.isabs(path) or path.split(os.sep)[0] in (os.curdir, os.pardir):
        raise UsageError(
            f"%%workspacefile cannot write {name!r}",
            hint="Give a path within the workspace: %%workspacefile train.py",
        )
    target = os.path.join(get_workspace(), path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w", encoding="utf-8") as file:
        file.write(text)
    return path
