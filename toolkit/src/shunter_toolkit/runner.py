"""The names by which the predecessors' callers choose how a script is started."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import script_launch

if TYPE_CHECKING:
    from .environment import Environment
    from .predecessor.process_runner import ProcessRunner


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


def get(
    identifier: RunnerType | ProcessRunner,
    user_entry_point: str | None = None,
    args: Sequence[str] | None = None,
    env_vars: Mapping[str, str] | None = None,
    extra_opts: Mapping[str, Any] | None = None,
) -> ProcessRunner:
    """A runner of a type, for the job that the base directory describes.

    Args:
        identifier: the type, or a runner, which is returned as it is.
        user_entry_point: the script; default: the job's.
        args: its arguments; default: the job's hyperparameters.
        env_vars: its variables; default: those of the contract.
        extra_opts: hyperparameters such as ``sagemaker_mpi_num_of_processes_per_host`` in place of the job's;
            and ``grace`` and ``timeout`` in seconds.

    Raises:
        ValueError: not a type of runner.
    """
    from .environment import Environment
    from .predecessor.process_runner import ProcessRunner

    if isinstance(identifier, ProcessRunner):
        return identifier
    if not isinstance(identifier, RunnerType):
        raise ValueError(f"Invalid identifier {identifier!r}: choose one of RunnerType.")  # noqa: TRY004
    environment = Environment()
    options = dict(extra_opts or {})
    limits = {name: options.pop(name) for name in ("grace", "timeout") if name in options}
    environment.additional_framework_parameters = {**environment.additional_framework_parameters, **options}
    script = (
        user_entry_point or environment.user_entry_point or "",
        environment.to_cmd_args() if args is None else args,
        environment.to_env_vars() if env_vars is None else env_vars,
    )
    runner = _make(identifier, environment, script)
    for name, value in limits.items():
        setattr(runner.policy, name, value)
    return runner


def _make(identifier: RunnerType, environment: Environment, script: tuple[Any, Any, Any]) -> ProcessRunner:
    hosts, first = environment.distribution_hosts or environment.hosts, environment.master_hostname
    here, interface = environment.current_host, environment.network_interface_name
    parameters, instance = environment.additional_framework_parameters, environment.current_instance_type
    if identifier is RunnerType.TorchDistributed:
        from .predecessor.torch_distributed_runner import TorchDistributedRunner

        count = script_launch.processes_per_host(environment, script_launch.TORCHRUN)
        return TorchDistributedRunner(*script, count, first, hosts, here, interface, instance)
    count = script_launch.processes_per_host(environment, script_launch.MPI)
    if identifier is RunnerType.PyTorchXLA:
        from .predecessor.pytorch_xla_runner import PyTorchXLARunner

        return PyTorchXLARunner(*script, count, first, here, hosts, environment.num_gpus)
    if identifier is RunnerType.Process:
        from .predecessor.process_runner import ProcessRunner

        return ProcessRunner(*script, count)
    from . import mpi
    from .predecessor.mpi_runner import MasterRunner, WorkerRunner
    from .predecessor.smdataparallel_runner import SMDataParallelRunner

    if not environment.is_master:
        worker = WorkerRunner(*script, count, first, here)
        if identifier is RunnerType.SMDataParallel:
            worker.kind = script_launch.SMDDP
        return worker
    kind = script_launch.MPI if identifier is RunnerType.MPI else script_launch.SMDDP
    options = str(parameters.get(mpi.OPTIONS_PARAMETER[kind]) or "")
    if identifier is RunnerType.SMDataParallel:
        return SMDataParallelRunner(*script, count, first, hosts, options, interface)
    total = parameters.get(mpi.TOTAL_PARAMETER)
    return MasterRunner(
        *script, count, first, hosts, options, interface, num_processes=total, instance_type=instance
    )
