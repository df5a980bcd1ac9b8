"""Running a user's script from a framework's own Python code, under the predecessors' names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import code_download, script_command
from . import install as installing
from . import runner as runners
from . import script_launch as launching
from .layout import Layout

if TYPE_CHECKING:
    from .child_process import Outcome
    from .predecessor.process_runner import ProcessRunner
    from .predecessor.running import Running
    from .runner import RunnerType


def run(
    uri: str,
    user_entry_point: str,
    args: Sequence[str],
    env_vars: Mapping[str, str] | None = None,
    wait: bool = True,
    capture_error: bool = False,
    runner_type: RunnerType | ProcessRunner = runners.ProcessRunnerType,
    extra_opts: Mapping[str, Any] | None = None,
    runner: RunnerType | None = None,
) -> Outcome | Running:
    """Fetch the user's code, install what it needs, and run it.

    Signals that reach this process meanwhile are passed on to the script.

    Args:
        uri: the code: a folder, an archive, ``s3://`` or ``https://``.
        user_entry_point: the script in it, such as ``train.py``.
        args: the script's arguments, passed exactly as they are.
        env_vars: further variables for the script; they are set in this process too.
        wait: False starts the script on a thread and returns at once; its ``wait()`` gives the outcome.
        capture_error: kept for callers of the predecessors; the error always carries the last lines of
            stderr.
        runner_type: how to start it.
        extra_opts: reserved hyperparameters in place of the job's, such as
            ``sagemaker_mpi_custom_mpi_options``; and ``grace`` and ``timeout`` in seconds.
        runner: the older predecessor's name for ``runner_type``.

    Returns:
        How the script ended: ``status``, ``exit_code``, ``stderr``, ``seconds``.

    Raises:
        ExecuteUserScriptError: it failed; ``return_code`` and ``details`` (as ``failure.json``) say how.
        InstallError: what it needs could not be installed.
        CodeError: the code cannot be fetched or started.
    """
    layout = Layout()
    os.environ.update(env_vars or {})
    layout.make_writable_dirs()
    code_download.fetch_code(uri, layout.code)
    script_command.check(layout.code, user_entry_point)
    env = {**os.environ, "PYTHONPATH": launching.python_path(layout.code, os.environ)}
    installing.install(layout.code, user_entry_point, env)
    chosen = runners.get(runner or runner_type, user_entry_point, args, env_vars or {}, extra_opts)
    return chosen.run(wait=wait, capture_error=capture_error)


def install(name: str, path: str | None = None, capture_error: bool = False) -> None:
    """Install the requirements of a folder of code, and the package in it if ``name`` is one of its modules.

    Args:
        name: the entry point.
        path: the folder; default: the code directory.
        capture_error: kept for callers of the predecessors; the error always carries the installer's last
            lines.

    Raises:
        InstallError: the installer failed or is missing.
    """
    installing.install(path or Layout().code, name, os.environ)
