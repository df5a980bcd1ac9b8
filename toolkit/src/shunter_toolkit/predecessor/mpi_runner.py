"""Runners of ``sagemaker_training.mpi``, over :mod:`shunter_toolkit.mpi`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import mpi
from .. import script_launch as launching
from ..efa import SM_EFA_NCCL_INSTANCES, SM_EFA_RDMA_INSTANCES
from .process_runner import DEFAULT_ERROR_CLASS, ProcessRunner, _exceptions_of, set_hosts

if TYPE_CHECKING:
    from ..environment import Environment

__all__ = ["DEFAULT_ERROR_CLASS", "SM_EFA_NCCL_INSTANCES", "SM_EFA_RDMA_INSTANCES"]

#: Written by the predecessor to end the other hosts; here they are notified over a connection.
MPI_FINISHED_STATUS_FILE = "/tmp/done"


class MasterRunner(ProcessRunner):
    """Runs mpirun on the first host.

    Args (the first three are those of `ProcessRunner`):
        processes_per_host: ranks on each host.
        master_hostname: this host.
        hosts: all of them, this one first.
        custom_mpi_options: further words for mpirun's command line.
        network_interface_name: interface between the hosts.
        interval: kept for callers of the predecessors, as is ``timeout_in_seconds``: hosts are connected.
        timeout_in_seconds: see ``interval``.
        num_processes: ranks in all; None: ``processes_per_host`` times the hosts.
        instance_type: for variables of the network.
    """

    kind = launching.MPI

    def __init__(
        self,
        user_entry_point: str,
        args: Sequence[str],
        env_vars: Mapping[str, str],
        processes_per_host: int,
        master_hostname: str,
        hosts: Sequence[str],
        custom_mpi_options: str,
        network_interface_name: str,
        interval: float = 1,
        timeout_in_seconds: float = 3600,
        num_processes: int | None = None,
        instance_type: str = "ml.p3.16xlarge",
    ) -> None:
        super().__init__(user_entry_point, args, env_vars, processes_per_host)
        self._master_hostname = master_hostname
        self._hosts = list(hosts)
        self._custom_mpi_options = custom_mpi_options
        self._network_interface_name = network_interface_name
        self._num_processes = num_processes
        self._instance_type = instance_type

    def _parameters(self) -> dict[str, Any]:
        return {
            **super()._parameters(),
            mpi.TOTAL_PARAMETER: self._num_processes,
            mpi.OPTIONS_PARAMETER[self.kind]: self._custom_mpi_options or None,
        }

    def _place(self, environment: Environment) -> None:
        first = self._master_hostname
        set_hosts(environment, first, self._hosts, first, self._network_interface_name)
        environment.current_instance_type = self._instance_type

    def _create_command(self) -> list[str]:
        """The command line for Open MPI 4, the hosts by name."""
        launch = self.launch()
        return mpi.command(launch, 4, launch.environment.distribution_hosts, None, "hostfile", self.kind)


class WorkerRunner(ProcessRunner):
    """Lets the first host's mpirun start ranks here.

    Args (the first three are those of `ProcessRunner`):
        processes_per_host: ranks on each host.
        master_hostname: the first host.
        current_host: this one.
    """

    kind = launching.MPI

    def __init__(
        self,
        user_entry_point: str,
        args: Sequence[str],
        env_vars: Mapping[str, str],
        processes_per_host: int,
        master_hostname: str,
        current_host: str,
    ) -> None:
        super().__init__(user_entry_point, args, env_vars, processes_per_host)
        self._master_hostname = master_hostname
        self._current_host = current_host

    def _place(self, environment: Environment) -> None:
        hosts = environment.distribution_hosts
        set_hosts(environment, self._master_hostname, hosts, self._current_host)


def get_modelparallel_exception_classes() -> list[Any]:
    """What SageMaker's model parallel library raises, if it is installed."""
    return _exceptions_of("smdistributed.modelparallel.backend.exceptions")


def get_dataparallel_exception_classes() -> list[Any]:
    """What SageMaker's data parallel library raises, if it is installed."""
    return _exceptions_of("smdistributed.dataparallel.exceptions")
