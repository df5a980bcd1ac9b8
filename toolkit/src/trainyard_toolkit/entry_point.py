"""Running a user's script from a framework's own Python code, under the predecessors' names."""

from __future__ import annotations

import os

from trainyard_toolkit import failure, fetch, program, runner
from trainyard_toolkit import install as installing
from trainyard_toolkit import launch as launching
from trainyard_toolkit.environment import Environment
from trainyard_toolkit.errors import ExecuteUserScriptError
from trainyard_toolkit.layout import Layout
from trainyard_toolkit.process import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from trainyard_toolkit.process import Outcome
    from trainyard_toolkit.runner import RunnerType


def run(
    uri: str,
    user_entry_point: str,
    args: Sequence[str],
    env_vars: Mapping[str, str] | None = None,
    wait: bool = True,
    capture_error: bool = False,
    runner: RunnerType = runner.ProcessRunnerType,
    extra_opts: Mapping[str, Any] | None = None,
) -> Outcome | Running:
    """Fetch the user's code, install what it needs, and run it.

    Signals that reach this process meanwhile are passed on to the script.

    Args:
        uri: the code: a folder, an archive, ``s3://`` or ``https://``.
        user_entry_point: the script in it, such as ``train.py``.
        args: the script's arguments, passed exactly as they are.
        env_vars: further variables for the script.
        wait: False starts the script on a thread and returns at once; its ``wait()`` gives the outcome.
        capture_error: kept for callers of the predecessors; the error always carries the last lines of
            stderr.
        runner: how to start it: plainly, under MPI or under torchrun.
        extra_opts: ``grace`` and ``timeout`` in seconds.

    Returns:
        How the script ended: ``status``, ``exit_code``, ``stderr``, ``seconds``.

    Raises:
        ExecuteUserScriptError: it failed; ``return_code`` and ``details`` (as ``failure.json``) say how.
        InstallError: what it needs could not be installed.
        CodeError: the code cannot be fetched or started.
    """
    environment = Environment()
    layout = environment.layout
    env = {**launching.script_environment(environment, os.environ), **dict(env_vars or {})}
    env["PYTHONPATH"] = launching.python_path(layout.code, env)
    layout.make_writable_dirs()
    fetch.fetch_code(uri, layout.code)
    program.check(layout.code, user_entry_point)
    installing.install(layout.code, user_entry_point, env)
    policy = Policy(**dict(extra_opts or {}))
    launch = launching.Launch(environment, user_entry_point, args, env, policy, layout.code)
    running = Running(launch, runner.distribution)
    if wait:
        return running.run()
    running.start()
    return running


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


class Running:
    """A script that runs on a thread. ``wait()`` gives its outcome or raises its error."""

    def __init__(self, launch: launching.Launch, distribution: str) -> None:
        self._launch = launch
        self._distribution = distribution
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None

    def run(self) -> Outcome:
        """Run to the end on this thread."""
        outcome = launching.run(self._launch, self._distribution)
        if outcome.status != 0:
            report = failure.from_outcome(outcome, self._launch.name)
            raise ExecuteUserScriptError(report.text(), outcome.status, report.fields)
        return outcome

    def start(self) -> None:
        """Start the thread."""
        import threading

        self._thread = threading.Thread(target=self._keep, name="trainyard-script", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        try:
            self._outcome = self.run()
        except BaseException as error:
            self._error = error

    def wait(self) -> Outcome:
        """Wait for the end.

        Raises:
            ExecuteUserScriptError: the script failed.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome
