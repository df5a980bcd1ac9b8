"""The runner of ``sagemaker_training.torch_distributed``, over :mod:`shunter_toolkit.torchrun`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import script_launch as launching
from .. import torchrun
from ..efa import SM_EFA_NCCL_INSTANCES, SM_EFA_RDMA_INSTANCES
from .process_runner import ProcessRunner, set_hosts

if TYPE_CHECKING:
    from ..child_process import Outcome
    from ..environment import Environment
    from .running import Running

__all__ = ["SM_EFA_NCCL_INSTANCES", "SM_EFA_RDMA_INSTANCES"]

TORCH_DISTRIBUTED_MODULE = "torchrun"
MASTER_PORT = torchrun.MASTER_PORT


class TorchDistributedRunner(ProcessRunner):
    """Runs a script under torchrun.

    Args (the first three are those of `ProcessRunner`):
        processes_per_host: processes on each host.
        master_hostname: the first host.
        hosts: all of them.
        current_host: this one.
        network_interface_name: interface between the hosts.
        instance_type: for variables of the network.
    """

    kind = launching.TORCHRUN

    def __init__(
        self,
        user_entry_point: str,
        args: Sequence[str],
        env_vars: Mapping[str, str],
        processes_per_host: int,
        master_hostname: str,
        hosts: Sequence[str],
        current_host: str,
        network_interface_name: str,
        instance_type: str = "ml.trn1.2xlarge",
    ) -> None:
        super().__init__(user_entry_point, args, env_vars, processes_per_host)
        self._cluster = (master_hostname, list(hosts), current_host, network_interface_name)
        self._instance_type = instance_type

    def run(self, capture_error: bool = True, wait: bool = True) -> Outcome | Running:  # type: ignore[override]
        """Run it; as in the predecessor ``capture_error`` is the first argument."""
        return super().run(wait, capture_error)

    def _parameters(self) -> dict[str, Any]:
        return {launching.TORCHRUN_PROCESSES_PARAMETER: self._processes_per_host}

    def _place(self, environment: Environment) -> None:
        set_hosts(environment, *self._cluster)
        environment.current_instance_type = self._instance_type

    def _create_command(self) -> list[str]:
        return torchrun.command(self.launch())
