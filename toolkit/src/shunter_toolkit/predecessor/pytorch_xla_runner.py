"""The runner of ``sagemaker_training.pytorch_xla``, over :mod:`shunter_toolkit.xla`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .. import script_launch as launching
from .. import xla
from .process_runner import ProcessRunner, set_hosts

if TYPE_CHECKING:
    from ..environment import Environment


class PyTorchXLARunner(ProcessRunner):
    """Runs a script under PyTorch/XLA's launcher.

    Args (the first three are those of `ProcessRunner`):
        processes_per_host: not used: one process per GPU.
        master_hostname: the first host.
        current_host: this one.
        hosts: all of them.
        num_gpus: of each host.
    """

    kind = launching.XLA
    MESH_SERVICE_PORT = xla.MESH_SERVICE_PORT
    WORKER_PORT = xla.WORKER_PORT

    def __init__(
        self,
        user_entry_point: str,
        args: Sequence[str],
        env_vars: Mapping[str, str],
        processes_per_host: int,
        master_hostname: str,
        current_host: str,
        hosts: Sequence[str],
        num_gpus: int,
    ) -> None:
        super().__init__(user_entry_point, args, env_vars, processes_per_host)
        self._cluster = (master_hostname, list(hosts), current_host)
        self._num_gpus = num_gpus

    def _place(self, environment: Environment) -> None:
        set_hosts(environment, *self._cluster)
        environment.num_gpus = self._num_gpus

    def _create_command(self) -> list[str]:
        return xla.command(self.launch())
