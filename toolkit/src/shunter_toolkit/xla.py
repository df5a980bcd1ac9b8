"""Starts a script under PyTorch/XLA's own launcher, on the GPUs of one host or several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import child_process, rendezvous, resources, script_command
from .errors import SMTrainingCompilerConfigurationError

if TYPE_CHECKING:
    from .child_process import Outcome
    from .script_launch import Launch

LAUNCHER = "torch_xla.distributed.xla_spawn"
WORKER_PORT = 43857
MESH_SERVICE_PORT = 53957


def command(launch: Launch) -> list[str]:
    """The command line of this host: one process per GPU.

    Raises:
        SMTrainingCompilerConfigurationError: the entry point is not Python, or there is no GPU.
    """
    if script_command.kind_of(launch.code_dir, launch.name) == script_command.COMMAND:
        raise SMTrainingCompilerConfigurationError(
            f"Cannot run {launch.name!r} under PyTorch/XLA: it starts Python scripts. Name a .py entry point."
        )
    if not launch.environment.num_gpus:
        raise SMTrainingCompilerConfigurationError(
            "Cannot run under PyTorch/XLA: its launcher needs GPUs, and this host has none."
        )
    start = [resources.script_python(), "-m", LAUNCHER, "--num_gpus", str(launch.environment.num_gpus)]
    return [*start, *launch.script()[1:]]


def variables(launch: Launch) -> dict[str, str]:
    """Variables by which the processes find each other, and NCCL settings unless the job sets them."""
    environment = launch.environment
    hosts = environment.distribution_hosts
    addresses = [rendezvous.address_of(host, hosts) for host in hosts] if len(hosts) > 1 else hosts
    gpus = str(environment.num_gpus)
    tuning = {
        "NCCL_DEBUG": "info",
        "NCCL_PROTO": "simple",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "OFI_NCCL_NIC_DUP_CONNS": gpus,
    }
    found = {name: value for name, value in tuning.items() if name not in launch.env}
    found["XRT_HOST_ORDINAL"] = str(hosts.index(environment.current_host))
    found["XRT_SHARD_WORLD_SIZE"] = str(len(hosts))
    workers = (f"localservice:{i};{address}:{WORKER_PORT}" for i, address in enumerate(addresses))
    found["XRT_WORKERS"] = "|".join(workers)
    found["GPU_NUM_DEVICES"] = gpus
    if len(hosts) > 1:
        found["XRT_MESH_SERVICE_ADDRESS"] = f"{addresses[0]}:{MESH_SERVICE_PORT}"
    return found


def run(launch: Launch) -> Outcome:
    """Run the script under PyTorch/XLA; several hosts all end with the same result.

    Raises:
        SMTrainingCompilerConfigurationError: it cannot run that way, or torch_xla is not in the image.
        ClusterError: the hosts did not come together, or another host failed.
    """
    if len(launch.environment.distribution_hosts) == 1:
        return launch.supervise(_task(launch))
    from . import all_hosts

    return all_hosts.run(launch, lambda: _task(launch))


def _task(launch: Launch) -> child_process.Command:
    launch.prepare()
    if not resources.has_module("torch_xla"):
        raise SMTrainingCompilerConfigurationError(
            f"Cannot run under PyTorch/XLA: {resources.script_python()} has no torch_xla. "
            "Add it to the image."
        )
    return child_process.Command(command(launch), {**launch.env, **variables(launch)}, launch.code_dir)
