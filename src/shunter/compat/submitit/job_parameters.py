"""submitit's parameters, and what they are in our words and options."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from shunter.errors import ConfigError

SHARED: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "timeout_min": (int, float),
    "mem_gb": (int, float),
    "nodes": int,
    "cpus_per_task": int,
    "gpus_per_node": int,
    "tasks_per_node": int,
    "stderr_to_stdout": bool,
}
#: Parameters of Slurm that have the same meaning under another name.
_SYNONYMS = {
    "job_name": "name",
    "time": "timeout_min",
    "mem": "mem_gb",
    "ntasks_per_node": "tasks_per_node",
    "num_gpus": "gpus_per_node",
}
#: Parameters of Slurm, and the options that they set.
_OPTIONS = {
    "account": "account",
    "array_parallelism": "max_running",
    "comment": "comment",
    "constraint": "constraint",
    "exclude": "exclude",
    "exclusive": "exclusive",
    "gres": "gres",
    "mail_type": "mail-type",
    "mail_user": "mail-user",
    "nodelist": "nodelist",
    "partition": "partition",
    "qos": "qos",
    "setup": "prologue",
    "signal_delay_s": "grace_period",
    "srun_args": "srun_args",
}
#: Parameters of Slurm that only sbatch knows.
_OF_SBATCH = ("cpus_per_gpu", "dependency", "gpus_per_task", "mem_per_cpu", "mem_per_gpu", "wckey")
_SLURM = {*SHARED, *_SYNONYMS, *_OPTIONS, *_OF_SBATCH, "additional_parameters", "use_srun", "teardown"}
#: By cluster, the parameters that its executor takes besides the shared ones.
OWN = {"slurm": _SLURM, "local": {*SHARED, "signal_delay_s"}, "debug": set(SHARED)}
#: Parameters that AutoExecutor itself takes, with the name of a cluster before them.
OF_EXECUTOR = ("max_num_timeout", "max_pickle_size_gb", "python")


def prefixed(values: Mapping[str, Any], own: Mapping[str, set[str]]) -> dict[str, Any]:
    """Return parameters with prefixes for those that lack it, which submitit deprecates; warn of these.

    Args:
        values: the parameters.
        own: by cluster, those that only it has.
    """
    renamed = {}
    for name, value in values.items():
        clusters = [] if name in SHARED else [cluster for cluster, names in own.items() if name in names]
        if clusters:
            warnings.warn(f"{name} should be given as {clusters[0]}_{name}", UserWarning, stacklevel=4)
        renamed[f"{clusters[0]}_{name}" if clusters else name] = value
    return renamed


def checked(values: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return the parameters that concern a cluster, without prefixes.

    Args:
        values: shared parameters, and others with the name of a cluster before them, which win.
        cluster: slurm, local or debug.

    Raises:
        NameError: a parameter is not known.
        AssertionError: a shared one has a wrong type.
    """
    unknown = [
        name for name in values if name not in SHARED and not any(_own_name(name, other) for other in OWN)
    ]
    if unknown:
        known = sorted([*SHARED, *(f"{c}_{name}" for c, own in OWN.items() for name in own - set(SHARED))])
        raise NameError(f"unknown parameters:\n  {', '.join(unknown)}\nThere are:\n  {', '.join(known)}")
    shared = {name: value for name, value in values.items() if name in SHARED and value is not None}
    for name, value in shared.items():
        assert isinstance(value, SHARED[name]), f"{name}={value!r} has to be a {SHARED[name]}"
    own = {_own_name(name, cluster): value for name, value in values.items() if _own_name(name, cluster)}
    return shared | {_SYNONYMS.get(name, name): value for name, value in own.items() if value is not None}


def _own_name(name: str, cluster: str) -> str:
    prefix, _, rest = name.partition("_")
    return rest if prefix == cluster and rest in OWN[cluster] else ""


def words_of(parameters: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return parameters as keyword arguments of `shunter.Executor`.

    Args:
        parameters: those that `checked` returned.
        cluster: slurm or local.

    Raises:
        ConfigError: one of them has no counterpart here, or cannot be divided among the tasks of a node.
    """
    for name, values in (("use_srun", (True, None)), ("teardown", ([], None))):
        if parameters.get(name) not in values:
            raise ConfigError(f"slurm_{name}={parameters[name]!r} has no counterpart in shunter")
    tasks = parameters.get("tasks_per_node", 1)
    words: dict[str, Any] = {"nodes": parameters.get("nodes", 1) * tasks}
    if "name" in parameters:
        words["name"] = re.sub(r"[^a-zA-Z0-9]+", "-", parameters["name"]).strip("-") or "job"
    if "timeout_min" in parameters:
        minutes = parameters["timeout_min"]
        words["time"] = minutes if isinstance(minutes, str) else f"{round(60 * minutes)}s"
    if "mem_gb" in parameters:
        words["mem"] = f"{_mebibytes(parameters['mem_gb']) // tasks}M"
    if "cpus_per_task" in parameters:
        words["cpu"] = parameters["cpus_per_task"]
    words |= _gpus(parameters.get("gpus_per_node", 0), tasks, cluster)
    words |= {_OPTIONS[name]: value for name, value in parameters.items() if name in _OPTIONS}
    if cluster == "slurm":
        words["replicas_per_node"] = tasks
        sbatch = {name: parameters[name] for name in _OF_SBATCH if name in parameters}
        sbatch |= parameters.get("additional_parameters", {})
        words["sbatch_args"] = [_flag(name, value) for name, value in sbatch.items()]
    return words


def _mebibytes(memory: Any) -> int:
    """Return an amount of memory: a number of GiB, or a text of Slurm such as ``16GB``."""
    if not isinstance(memory, str):
        return int(1024 * memory)
    match = re.fullmatch(r"(\d+)([MGT]?)B?", memory.upper())
    if match is None:
        raise ConfigError(f"slurm_mem={memory!r} is not a number with a unit, such as 16GB")
    unit = {"": 1, "M": 1, "G": 1024, "T": 1 << 20}[match[2]]
    return int(match[1]) * unit


def _gpus(count: int, tasks: int, cluster: str) -> dict[str, Any]:
    if cluster == "slurm" and tasks > 1 and count:
        return {"gres": f"gpu:{count}"}  # of the node, so that each task sees all of them
    if count % tasks:
        raise ConfigError(f"{count} GPUs cannot be divided among {tasks} tasks")
    return {"gpu": count // tasks} if count else {}


def _flag(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag}={value}"
