"""One way to start a script, whatever its distribution: plain, torchrun, MPI or a vendor's launcher."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from . import aliases, child_process, input_config, resources, script_command, tf_config
from .child_process import Outcome, Policy
from .environment import Environment
from .errors import ConfigError
from .output_relay import Relay, is_regular_file

LONGEST_VALUE = 128 * 1024  # bytes of NAME=value with its end
PLAIN = "none"
TORCHRUN = "torchrun"
MPI = "mpi"
SMDDP = "smddp"
XLA = "xla"
# The parameters that request each distribution, in the order in which the predecessors' images check them.
_FLAGS = {
    "sagemaker_mpi_enabled": MPI,
    "sagemaker_pytorch_ddp_enabled": SMDDP,
    "sagemaker_torch_distributed_enabled": TORCHRUN,
    "sagemaker_distributed_dataparallel_enabled": SMDDP,
    "sagemaker_pytorch_xla_multi_worker_enabled": XLA,
}
_TF_FLAGS = ("sagemaker_parameter_server_enabled", "sagemaker_multi_worker_mirrored_strategy_enabled")
MPI_PROCESSES_PARAMETER = "sagemaker_mpi_num_of_processes_per_host"
TORCHRUN_PROCESSES_PARAMETER = "sagemaker_torch_distributed_processes_per_host"


@dataclass
class Launch:
    """A script that is to run, and what every way of running it needs to know.

    Args:
        environment: the job.
        name: the entry point, relative to ``code_dir``.
        args: its arguments.
        env: its complete environment.
        policy: time limits.
        code_dir: its working directory.
        owns_process: see :func:`shunter_toolkit.child_process.supervise`.
        observers: called with the output as it passes, by descriptor (1, 2).
        prepare: fetches the code and installs what it needs; called once, before the script is looked at.
    """

    environment: Environment
    name: str
    args: Sequence[str]
    env: dict[str, str]
    policy: Policy
    code_dir: str
    owns_process: bool = False
    observers: Mapping[int, Callable[[bytes], None]] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._memory_kills_before = resources.oom_kills()

    def memory_kills(self) -> int:
        """How many processes the kernel has killed for memory in this container since the launch was made."""
        return resources.oom_kills() - self._memory_kills_before

    def script(self) -> list[str]:
        """The command line of the script alone, without a launcher."""
        return script_command.argv(self.code_dir, self.name, self.args)

    def relays(self) -> dict[int, Relay]:
        """Relays for the streams that have to pass through this process.

        Both if something observes them. Otherwise only stderr, whose last lines the failure report needs; if
        it is a plain file, they are read from there afterwards, and it needs no relay.
        """
        if self.observers:
            return {fd: Relay(fd, self.observers.get(fd)) for fd in (1, 2)}
        if is_regular_file(2) or os.environ.get("SHUNTER_STDERR") == "straight":
            return {}
        return {2: Relay(2)}

    def supervise(self, command: child_process.Command) -> Outcome:
        """Run a command with this launch's streams and limits."""
        script_command.refuse_nul(command.argv, command.env)
        return child_process.supervise(command, self.policy, self.relays(), self.owns_process)


def distribution_of(environment: Environment) -> str:
    """How this host's script is started: ``none``, ``torchrun``, ``mpi``, ``smddp`` or ``xla``.

    Hosts whose instance group takes no part in the distribution run the script plainly.
    """
    asked = environment.additional_framework_parameters
    if environment.current_instance_group not in environment.distribution_instance_groups:
        return PLAIN
    return next((kind for flag, kind in _FLAGS.items() if input_config.is_true(asked.get(flag))), PLAIN)


def run(launch: Launch, distribution: str | None = None) -> Outcome:
    """Run the script to its end, in the way that the job asks for.

    Raises:
        ToolkitError: it could not be started, or the hosts did not come together.
    """
    kind = distribution or distribution_of(launch.environment)
    if kind == PLAIN:
        launch.prepare()
        return launch.supervise(script_command.command(launch.code_dir, launch.name, launch.args, launch.env))
    if kind == TORCHRUN:
        from . import torchrun

        return torchrun.run(launch)
    if kind in (MPI, SMDDP):
        from . import mpi

        return mpi.run(launch, kind)
    if kind == XLA:
        from . import xla

        return xla.run(launch)
    raise ConfigError(f"Cannot start with distribution {kind!r}: choose none, torchrun, mpi, smddp or xla.")


def processes_per_host(environment: Environment, distribution: str) -> int:
    """How many processes each host runs: as requested, else one per GPU, one per Neuron core, or one.

    Raises:
        ConfigError: the parameter is not a positive number.
    """
    parameters = environment.additional_framework_parameters
    names = [MPI_PROCESSES_PARAMETER]
    if distribution == TORCHRUN:
        names.insert(0, TORCHRUN_PROCESSES_PARAMETER)
    parameter = next((name for name in names if parameters.get(name) not in (None, "")), None)
    if parameter is None:
        return environment.num_gpus or environment.num_neurons or 1
    try:
        count = int(parameters[parameter])
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise ConfigError(
            f"Cannot use {parameter}={parameters[parameter]!r}: it must be a whole number, 1 or more."
        )
    return count


def host_of_rank(environment: Environment, rank: int | None) -> str:
    """The host that a rank runs on: ranks are numbered host by host. Without a rank, this host."""
    kind = distribution_of(environment)
    if rank is None or kind == PLAIN:
        return environment.current_host
    place = rank // processes_per_host(environment, kind)
    hosts = environment.distribution_hosts
    return hosts[place] if place < len(hosts) else environment.current_host


def script_environment(environment: Environment, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of the script: ours, the contract's variables, and the code directory on PYTHONPATH."""
    env = {**base, **environment.to_process_vars(), **environment.to_env_vars()}
    if any(environment.additional_framework_parameters.get(flag) for flag in _TF_FLAGS):
        env.update((n, v) for n, v in tf_config.variables(environment).items() if n not in base)
    env["PYTHONPATH"] = python_path(environment.layout.code, base)
    return env


def drop_too_long(variables: dict[str, str]) -> list[str]:
    """Remove the contract's variables with which no program can be started; return their names.

    Linux allows 128 KiB for one variable; all arguments together may be many times as long.
    """
    names = [
        name
        for name, value in variables.items()
        if name.startswith("SM_") and len(value) > LONGEST_VALUE // 4
    ]
    dropped = [name for name in names if len(os.fsencode(f"{name}={variables[name]}")) >= LONGEST_VALUE]
    for name in dropped:
        del variables[name]
    return dropped


def python_path(code_dir: str, base: Mapping[str, str]) -> str:
    """PYTHONPATH of the script: its own directory first, then the one in ``base``.

    If the toolkit runs from a zipapp, packed or unpacked, that and its stand-ins for the predecessors' names
    (unless they are switched off) come last.
    """
    # A link leads to the user's own directory, and modules are to have their paths there.
    parts = [os.path.realpath(code_dir) if os.path.islink(code_dir) else code_dir, base.get("PYTHONPATH", "")]
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.isfile(home) or os.path.isdir(os.path.join(home, "aliases")):
        parts.append(home)
        if aliases.switched_on(base):
            parts.append(os.path.join(home, "aliases"))
    return os.pathsep.join(part for part in parts if part)
