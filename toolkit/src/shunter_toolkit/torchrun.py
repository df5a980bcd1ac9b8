"""Starts a script under ``torchrun``, on one host or several."""

from __future__ import annotations

import os

from . import all_hosts, child_process, efa, kernel, log, rendezvous, resources, script_command
from . import script_launch as launching
from .child_process import Outcome
from .errors import ClientError
from .script_launch import Launch

MASTER_PORT = "7777"
#: How many seconds torchrun gives ranks to save their state; a torch without it kills them after 30 s.
SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
#: The signals that torchrun passes on to the ranks, like its option --signals-to-handle; otherwise USR1 and
#: USR2 would kill torchrun only. A torch without the option (https://github.com/pytorch/pytorch/pull/160690)
#: ignores the variable.
SIGNALS_VARIABLE = "PET_SIGNALS_TO_HANDLE"
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"


def command(launch: Launch) -> list[str]:
    """The torchrun command line of this host.

    Raises:
        ClientError: the entry point is a shell script or command; torchrun starts Python.
    """
    environment = launch.environment
    hosts = environment.distribution_hosts
    count = launching.processes_per_host(environment, launching.TORCHRUN)
    script = launch.script()
    if script_command.kind_of(launch.code_dir, launch.name) == script_command.COMMAND:
        raise ClientError(
            f"Cannot run {launch.name!r} under torchrun: it starts Python scripts and modules. "
            "Name a .py entry point, or choose another distribution."
        )
    line = [resources.script_python(), "-m", "torch.distributed.run", "--nnodes", str(len(hosts))]
    if os.environ.get("RUN_NEURON_PARALLEL_COMPILE") == "1":
        line.insert(0, "neuron_parallel_compile")
    line += ["--nproc_per_node", str(count)]
    if len(hosts) > 1:
        line += ["--master_addr", rendezvous.address_of(hosts[0], hosts)]
        line += ["--master_port", os.environ.get("SHUNTER_MASTER_PORT", MASTER_PORT)]
        line += ["--node_rank", str(hosts.index(environment.current_host))]
    else:
        line += ["--standalone"]
    return [*line, *script[1:]]


def network_variables(launch: Launch) -> dict[str, str]:
    """Variables that tell the communication libraries which network to use, unless the job sets them."""
    found = efa.variables(launch.environment.current_instance_type, launch.env)
    interface = launch.environment.network_interface_name
    if not kernel.has_interface(interface):
        log.warning(
            f"There is no network interface {interface} here; the communication libraries choose one."
        )
        return found
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return {**found, **{name: interface for name in names if name not in launch.env}}


def run(launch: Launch) -> Outcome:
    """Run the script under torchrun; several hosts all end with the same result.

    Raises:
        ClientError: it cannot run under torchrun, or torch is not in the image.
        ClusterError: the hosts did not come together, or another host failed.
    """
    if len(launch.environment.distribution_hosts) == 1:
        return launch.supervise(_task(launch))
    return all_hosts.run(launch, lambda: _task(launch))


def _task(launch: Launch) -> child_process.Command:
    launch.prepare()
    if not resources.has_module("torch"):
        raise ClientError(
            f"Cannot use torchrun: {resources.script_python()} has no torch. Add it to the image."
        )
    line = command(launch)
    ours = {SHUTDOWN_VARIABLE: f"{launch.policy.grace:.0f}", SIGNALS_VARIABLE: SIGNALS}
    env = {**ours, **launch.env, **network_variables(launch)}
    script_command.refuse_nul(line, env)
    return child_process.Command(line, env, launch.code_dir)
