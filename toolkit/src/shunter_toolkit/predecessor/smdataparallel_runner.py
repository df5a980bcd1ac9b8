"""The runner of ``sagemaker_training.smdataparallel``, over :mod:`shunter_toolkit.mpi`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .. import script_launch as launching
from ..efa import SM_EFA_NCCL_INSTANCES, SM_EFA_RDMA_INSTANCES
from .mpi_runner import MPI_FINISHED_STATUS_FILE, MasterRunner, get_dataparallel_exception_classes
from .process_runner import DEFAULT_ERROR_CLASS

if TYPE_CHECKING:
    from ..environment import Environment

__all__ = [
    "DEFAULT_ERROR_CLASS",
    "MPI_FINISHED_STATUS_FILE",
    "SM_EFA_NCCL_INSTANCES",
    "SM_EFA_RDMA_INSTANCES",
    "get_dataparallel_exception_classes",
]


class SMDataParallelRunner(MasterRunner):
    """Runs mpirun with what SageMaker's data parallel library needs.

    Arguments as of :class:`shunter_toolkit.predecessor.mpi_runner.MasterRunner`. On the other hosts it lets
    the first one's mpirun start ranks.
    """

    kind = launching.SMDDP

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
    ) -> None:
        super().__init__(
            user_entry_point,
            args,
            env_vars,
            processes_per_host,
            master_hostname,
            hosts,
            custom_mpi_options,
            network_interface_name,
        )

    def _place(self, environment: Environment) -> None:
        instance_type = environment.current_instance_type
        super()._place(environment)
        asked = environment.additional_framework_parameters.get("sagemaker_instance_type")
        environment.current_instance_type = str(asked or instance_type)
