"""The names by which the predecessors' callers choose how a script is started, and what starts it."""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from .. import failure
from .. import script_launch as launching
from ..child_process import Outcome, Policy
from ..environment import Environment
from ..errors import ExecuteUserScriptError


class RunnerType(enum.Enum):
    """A way to start a script."""

    MPI = "MPI"
    Process = "Process"
    SMDataParallel = "SMDataParallel"
    PyTorchXLA = "PyTorchXLA"
    TorchDistributed = "TorchDistributed"


MPIRunnerType = RunnerType.MPI
ProcessRunnerType = RunnerType.Process
SMDataParallelRunnerType = RunnerType.SMDataParallel
PyTorchXLARunnerType = RunnerType.PyTorchXLA
TorchDistributedRunnerType = RunnerType.TorchDistributed

_DISTRIBUTIONS = {
    RunnerType.MPI: launching.MPI,
    RunnerType.Process: launching.PLAIN,
    RunnerType.SMDataParallel: launching.SMDDP,
    RunnerType.PyTorchXLA: launching.XLA,
    RunnerType.TorchDistributed: launching.TORCHRUN,
}


class Runner:
    """Runs a script to its end, here or on a thread.

    Args:
        launch: the script.
        distribution: how it is started, as for :func:`shunter_toolkit.script_launch.run`.
    """

    def __init__(self, launch: launching.Launch, distribution: str) -> None:
        self.launch = launch
        self.distribution = distribution
        self._thread: threading.Thread | None = None
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None

    def run(self, wait: bool = True, capture_error: bool = False) -> Outcome | Runner:
        """Run it.

        Args:
            wait: False starts the script on a thread and returns this runner at once; its ``wait()`` gives
                the outcome.
            capture_error: kept for callers of the predecessors; the error always carries the last lines of
                stderr.

        Raises:
            ExecuteUserScriptError: it failed.
            ClientError: it cannot be started.
        """
        if wait:
            return self._run()
        self._thread = threading.Thread(target=self._keep, name="shunter-script", daemon=True)
        self._thread.start()
        return self

    def _run(self) -> Outcome:
        outcome = launching.run(self.launch, self.distribution)
        if outcome.status != 0:
            report = failure.from_outcome(outcome, self.launch.name)
            raise ExecuteUserScriptError(
                self.launch.name,
                outcome.status,
                outcome.stderr,
                message=report.text(),
                details=report.fields,
            )
        return outcome

    def _keep(self) -> None:
        try:
            self._outcome = self._run()
        except BaseException as error:
            self._error = error

    def wait(self) -> Outcome:
        """Wait for the end of a script that runs on a thread.

        Raises:
            ExecuteUserScriptError: the script failed.
        """
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs, 1 if it could not be started."""
        if self._thread is not None and self._thread.is_alive():
            return None
        if self._outcome is not None:
            return self._outcome.status
        status = getattr(self._error, "return_code", None)
        return int(status) if status not in (None, "None") else 1


def get(
    identifier: RunnerType | Runner,
    user_entry_point: str | None = None,
    args: Sequence[str] | None = None,
    env_vars: Mapping[str, str] | None = None,
    extra_opts: Mapping[str, Any] | None = None,
) -> Runner:
    """A runner of a type, for the job that the base directory describes.

    Args:
        identifier: the type, or a runner, which is returned as it is.
        user_entry_point: the script; default: the job's.
        args: its arguments; default: the job's hyperparameters.
        env_vars: its variables, over those of the contract.
        extra_opts: hyperparameters such as ``sagemaker_mpi_num_of_processes_per_host`` in place of the job's;
            and ``grace`` and ``timeout`` in seconds.

    Raises:
        ValueError: not a type of runner.
    """
    if isinstance(identifier, Runner):
        return identifier
    if not isinstance(identifier, RunnerType):
        raise ValueError(f"Invalid identifier {identifier!r}: choose one of RunnerType.")  # noqa: TRY004
    options = dict(extra_opts or {})
    policy = Policy(**{name: options.pop(name) for name in ("grace", "timeout") if name in options})
    environment = Environment()
    parameters = {**environment.additional_framework_parameters, **options}
    environment.additional_framework_parameters = parameters
    environment.distribution_hosts = environment.distribution_hosts or environment.hosts
    if identifier is RunnerType.SMDataParallel and parameters.get("sagemaker_instance_type"):
        environment.current_instance_type = str(parameters["sagemaker_instance_type"])
    code = environment.layout.code
    env = {**launching.script_environment(environment, os.environ), **(env_vars or {})}
    env["PYTHONPATH"] = launching.python_path(code, env)
    words = environment.to_cmd_args() if args is None else [str(word) for word in args]
    name = user_entry_point or environment.user_entry_point or ""
    launch = launching.Launch(environment, name, words, env, policy, code)
    return Runner(launch, _DISTRIBUTIONS[identifier])
