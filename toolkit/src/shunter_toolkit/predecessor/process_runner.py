"""Running programs and scripts under the names of ``sagemaker_training.process``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import resources
from .. import script_launch as launching
from ..child_process import Command, Policy
from ..environment import Environment
from ..errors import ClientError, ExecuteUserScriptError
from ..output_relay import Relay
from . import SM_TRAINING_COMPILER_PATHS
from .running import Running

if TYPE_CHECKING:
    from ..child_process import Outcome

__all__ = ["SM_TRAINING_COMPILER_PATHS"]

PIPE = subprocess.PIPE
DEFAULT_ERROR_CLASS = ExecuteUserScriptError
_ENTRY_POINT = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*")


class ProcessRunner:
    """Runs a script in the code directory, plainly.

    Args:
        user_entry_point: the script, such as ``train.py``.
        args: its arguments.
        env_vars: variables for it, over those of the contract.
        processes_per_host: for subclasses.
    """

    kind = launching.PLAIN

    def __init__(
        self,
        user_entry_point: str,
        args: Sequence[str],
        env_vars: Mapping[str, str],
        processes_per_host: int,
    ) -> None:
        self._user_entry_point = user_entry_point
        self._args = list(args or [])
        self._env_vars = dict(env_vars or {})
        self._processes_per_host = processes_per_host
        self.policy = Policy()

    def run(self, wait: bool = True, capture_error: bool = False) -> Outcome | Running:
        """Run it.

        Args:
            wait: False starts the script on a thread and returns at once; its ``wait()`` gives the outcome.
            capture_error: kept for callers of the predecessors; the error always carries the last lines of
                stderr.

        Raises:
            ExecuteUserScriptError: it failed.
            ClientError: it cannot be started.
        """
        running = Running(self.launch(), self.kind)
        if wait:
            return running.run()
        running.start()
        return running

    def launch(self) -> launching.Launch:
        """The script with its arguments, variables and limits."""
        environment = self.environment()
        code = environment.layout.code
        env = {**launching.script_environment(environment, os.environ), **self._env_vars}
        env["PYTHONPATH"] = launching.python_path(code, env)
        args = [str(arg) for arg in self._args]
        return launching.Launch(environment, self._user_entry_point, args, env, self.policy, code)

    def environment(self) -> Environment:
        """The job, with what this runner was given in place of what the platform wrote."""
        environment = Environment()
        environment.additional_framework_parameters = {
            **environment.additional_framework_parameters,
            **{name: value for name, value in self._parameters().items() if value is not None},
        }
        self._place(environment)
        return environment

    def _parameters(self) -> dict[str, Any]:
        return {launching.MPI_PROCESSES_PARAMETER: self._processes_per_host}

    def _place(self, environment: Environment) -> None:
        """Hook: set the hosts in the environment to those that the runner was given."""

    def _create_command(self) -> list[str]:
        return self.launch().script()


def set_hosts(
    environment: Environment, first: str, hosts: Sequence[str], current: str | None, interface: str = ""
) -> None:
    """Set the first host, all hosts, this one and the network interface to what a runner was given."""
    environment.distribution_hosts = [first, *(host for host in hosts if host != first)]
    environment.master_hostname = first
    if current is not None:
        environment.current_host = current
    environment.is_master = environment.current_host == first
    if interface:
        environment.network_interface_name = interface


def python_executable() -> str:
    """The interpreter that runs scripts."""
    return resources.script_python()


def check_error(
    cmd: Sequence[str],
    error_classes: Any,
    processes_per_host: int,
    cwd: str | None = None,
    capture_error: bool = True,
    **kwargs: Any,
) -> Outcome:
    """Run a command to its end.

    Args:
        cmd: the program and its arguments.
        error_classes: the class to raise, or a list of which the first is raised.
        processes_per_host: kept for callers of the predecessors.
        cwd: its working directory; default: the code directory if it is there.
        capture_error: whether the error carries the last lines of stderr.
        kwargs: ``env``: its complete environment.

    Raises:
        ExecuteUserScriptError: (or the class given) it failed.
    """
    from .. import child_process

    relays = {2: Relay(2)} if capture_error else {}
    try:
        outcome = child_process.supervise(_command(cmd, cwd, kwargs.get("env")), relays=relays)
    except ClientError as error:
        raise _error_class(error_classes)(cmd, None, str(error)) from error
    if outcome.status != 0:
        output = outcome.stderr.decode("utf-8", "replace") if capture_error else None
        raise _error_class(error_classes)(" ".join(cmd), outcome.status, output)
    return outcome


def create(
    cmd: Sequence[str],
    error_classes: Any,
    processes_per_host: int,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    capture_error: bool = False,
    **kwargs: Any,
) -> tuple[int, str, subprocess.Popen[bytes]]:
    """Start a command and wait for it; return (exit status, its stderr if captured, the process).

    Raises:
        ExecuteUserScriptError: (or the class given) it cannot be started.
    """
    command = _command(cmd, cwd, env)
    try:
        process = subprocess.Popen(
            command.argv, env=command.env, cwd=command.cwd, stderr=PIPE if capture_error else None
        )
    except OSError as error:
        raise _error_class(error_classes)(str(error)) from error
    output = process.communicate()[1]
    return process.returncode, (output or b"").decode("utf-8", "replace"), process


def _command(cmd: Sequence[str], cwd: str | None, env: Mapping[str, str] | None) -> Command:
    from ..layout import Layout

    code = Layout().code
    return Command(cmd, os.environ if env is None else env, cwd or (code if os.path.isdir(code) else None))


def _error_class(given: Any) -> Any:
    first = next(iter(given), None) if isinstance(given, (list, tuple)) else given
    return first if isinstance(first, type) else DEFAULT_ERROR_CLASS


def process_error_classes(error_classes: Any) -> list[str]:
    """The names of exception classes that are given as names or classes, alone or in a list."""
    if error_classes is None:
        return []
    given = error_classes if isinstance(error_classes, (list, tuple)) else [error_classes]
    return [item.__name__ if isinstance(item, type) else str(item) for item in given]


def validate_entry_point(user_entry_point: str) -> str:
    """Return the entry point if the predecessor would run it: letters, digits and ``._+-/`` alone.

    Raises:
        ClientError: another name, an absolute path, or one with ``.`` or ``..``.
    """
    parts = user_entry_point.split("/")
    if not _ENTRY_POINT.fullmatch(user_entry_point) or "." in parts or ".." in parts:
        raise ClientError(
            f"Cannot use the entry point {user_entry_point!r}: it must be a path under the code directory, "
            "of letters, digits and the characters ._+-/, such as train.py."
        )
    return user_entry_point


def get_debugger_exception_classes() -> list[Any]:
    """What smdebug raises, if it is installed."""
    return _exceptions_of("smdebug.exceptions")


def get_tensorflow_exception_classes() -> list[Any]:
    """What TensorFlow raises, if it is installed."""
    return _exceptions_of("tensorflow.python.framework.errors_impl")


def _exceptions_of(module: str) -> list[Any]:
    import importlib

    try:
        found = vars(importlib.import_module(module))
    except ImportError:
        return [DEFAULT_ERROR_CLASS]
    own = [item for item in found.values() if isinstance(item, type) and item.__module__ == module]
    return [*own, DEFAULT_ERROR_CLASS]
