"""The names by which the predecessors' callers choose how a script is started."""

from __future__ import annotations

import enum

from trainyard_toolkit import launch


class RunnerType(enum.Enum):
    """A way to start a script."""

    Process = launch.PLAIN
    MPI = launch.MPI
    TorchDistributed = launch.TORCHRUN

    @property
    def distribution(self) -> str:
        """The name that a job document uses: ``none``, ``mpi`` or ``torchrun``."""
        return str(self.value)


ProcessRunnerType = RunnerType.Process
MPIRunnerType = RunnerType.MPI
TorchDistributedRunnerType = RunnerType.TorchDistributed
