"""Roles that are a training script: its arguments, hyperparameters, and how its ranks are started.

A role is a script if it has a training specification (``metadata["train"]``, see ``docs/contract.md``), or if
it runs ``python SCRIPT.py``, since on SageMaker scripts expect the container's contract.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter.errors import ConfigError, did_you_mean
from shunter.specs.app import Role
from shunter.specs.training import METADATA_KEY, TOOLKIT_KEY

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
#: The fields of a training specification that a request has a member for, or that SageMaker decides.
_SUPPORTED = {
    "version",
    "name",
    "program",
    "arguments",
    "host_count",
    "hyperparameters",
    "channels",
    "output",
    "checkpoints",
    "metrics",
    "distribution",
    "environment",
    "timeout_seconds",
}


@dataclass
class TrainingScript:
    """A script with what it needs.

    Attributes:
        program: its path in the code.
        arguments: exactly its arguments.
        hyperparameters: any JSON values by name.
        channels: URI, or the job document's object, by name.
        output: ``uri``, ``compression``.
        checkpoints: ``uri``, ``path``.
        metrics: ``{"name", "regex"}``, or ``{"name"}``.
        distribution: ``kind``, ``processes_per_host``, ``mpi_options``, ``instance_groups``.
        max_run: seconds that it may run.
    """

    program: str
    arguments: list[str]
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    channels: dict[str, Any] = field(default_factory=dict)
    output: dict[str, Any] = field(default_factory=dict)
    checkpoints: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, str]] = field(default_factory=list)
    distribution: dict[str, Any] = field(default_factory=dict)
    max_run: int | None = None


def script_of(role: Role) -> TrainingScript | None:
    """Return the script that a role runs; None if it runs another program."""
    spec = role.metadata.get(METADATA_KEY)
    if spec:
        return _from_specification(role, spec)
    if role.metadata.get(TOOLKIT_KEY) is False or not _PYTHON.fullmatch(role.entrypoint) or not role.args:
        return None
    program = role.args[0]
    if not program.endswith(".py") or program.startswith(("-", "/")):
        return None
    return TrainingScript(_inside(role, program), list(role.args[1:]))


def _from_specification(role: Role, spec: Mapping[str, Any]) -> TrainingScript:
    unknown = sorted(set(spec) - _SUPPORTED)
    if unknown:
        raise ConfigError(
            f"role {role.name!r}: SageMaker does not support {', '.join(unknown)} of its training job",
            hint="Leave it out, or run the script on another scheduler.",
        )
    timeout = spec.get("timeout_seconds")
    return TrainingScript(
        _inside(role, str(spec.get("program", ""))),
        [str(argument) for argument in spec.get("arguments") or []],
        dict(spec.get("hyperparameters") or {}),
        dict(spec.get("channels") or {}),
        dict(spec.get("output") or {}),
        dict(spec.get("checkpoints") or {}),
        list(spec.get("metrics") or []),
        dict(spec.get("distribution") or {}),
        None if timeout is None else int(timeout),
    )


def is_in_image(program: str) -> bool:
    """Tell whether a script is in the image, and not in the code that travels: its path is absolute."""
    return program.startswith("/") and program.endswith((".py", ".sh"))


def _inside(role: Role, program: str) -> str:
    path = posixpath.normpath(program) if program else ""
    if is_in_image(path):
        return path
    if not path or path.startswith(("/", "..")):
        raise ConfigError(
            f"role {role.name!r}: the script {program!r} is not in the code that travels with the job",
            hint="Name it by its path in the workspace, such as --script src/train.py.",
        )
    return path


# ---- arguments and hyperparameters


def as_hyperparameters(arguments: list[str], *, role: str) -> dict[str, str]:
    """Return arguments as the hyperparameters from which an image's own ``train`` makes the same arguments.

    ``train`` gives ``--name value`` for each, sorted by name, and ``-n value`` for names of one character.

    Raises:
        ConfigError: they have another shape.
    """
    result: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        name, equals, value = flag.partition("=")
        key = name[2:] if name.startswith("--") else name[1:]
        wrong = not flag.startswith("-") or not key or (len(key) == 1) == name.startswith("--")
        if not wrong and not equals:
            wrong = not rest or _is_flag(rest[0])
            value = "" if wrong else rest.pop(0)
        if wrong or key in result:
            why = f"but {name} is given twice" if key in result and not wrong else f"not {flag!r}"
            raise ConfigError(
                f"role {role!r}: the image's own `train` takes only arguments like --name value, {why}",
                hint="Leave toolkit=false out: shunter's toolkit passes all arguments on unchanged.",
            )
        result[key] = value
    return result


def _is_flag(text: str) -> bool:
    """Tell whether a text is the next flag; a negative number is a value."""
    return text.startswith("-") and re.fullmatch(r"-\d.*|-\.\d.*|-", text) is None


def as_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return hyperparameters as arguments, as ``train`` and the toolkit do."""
    return [
        part
        for key, value in sorted(hyperparameters.items())
        for part in (f"-{key}" if len(key) == 1 else f"--{key}", _argument(value))
    ]


def _argument(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={value[key]}" for key in sorted(value))
    return str(value)


def encode(values: Mapping[str, Any]) -> dict[str, str]:
    """Return hyperparameters as the request has them: each a text that is decoded once as JSON."""
    return {key: json.dumps(value) for key, value in values.items()}


# ---- distributions
#
# Images with AWS's framework toolkits decide by reserved hyperparameters what starts the script: torchrun,
# MPI, a parameter server, SMDDP, Neuron's XLA. Those of the option ``distribution`` are the ones that the
# SDK's estimators send; where these differ, the one of PyTorch.

GROUPS = "instance_groups"
_INSTANCE_TYPE = "sagemaker_instance_type"
_TORCHRUN = "sagemaker_torch_distributed_enabled"
_CHOSEN_GROUPS = "sagemaker_distribution_instance_groups"
_MPI_OPTIONS = {"enabled": bool, "custom_mpi_options": str}
#: The option's ways to start ranks, with the settings of each.
_SETTINGS: dict[str, Any] = {
    "torch_distributed": {"enabled": bool},
    "pytorchddp": _MPI_OPTIONS,
    "smdistributed": {"dataparallel": _MPI_OPTIONS, "modelparallel": {"enabled": bool, "parameters": dict}},
    "mpi": {**_MPI_OPTIONS, "processes_per_host": int},
    "parameter_server": {"enabled": bool},
    "multi_worker_mirrored_strategy": {"enabled": bool},
    "pytorchxla": {"enabled": bool},
    GROUPS: list,
}
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    str: "text, the options of mpirun",
    dict: "an object",
    list: "a list of the groups' names",
}
_SWITCHES = {
    "pytorchxla": "sagemaker_pytorch_xla_multi_worker_enabled",
    "parameter_server": "sagemaker_parameter_server_enabled",
    "multi_worker_mirrored_strategy": "sagemaker_multi_worker_mirrored_strategy_enabled",
}


def of_script(distribution: Mapping[str, Any], instance_type: str | None, *, toolkit: bool) -> dict[str, Any]:
    """Return the hyperparameters of a script's own distribution.

    Args:
        distribution: the script's.
        instance_type: the type of the instances; None if it is not known yet.
        toolkit: whether shunter's toolkit starts the script; only it starts a given number of processes on
            each host under torchrun.
    """
    kind = distribution.get("kind", "none")
    processes = distribution.get("processes_per_host")
    values: dict[str, Any] = {}
    if kind == "torchrun":
        values = {_TORCHRUN: True}
        if instance_type is not None:
            values[_INSTANCE_TYPE] = instance_type
        if processes and toolkit:
            values["sagemaker_torch_distributed_processes_per_host"] = int(processes)
    elif kind == "mpi":
        values = {
            "sagemaker_mpi_enabled": True,
            "sagemaker_mpi_custom_mpi_options": str(distribution.get("mpi_options", "")),
        }
        if processes:
            values["sagemaker_mpi_num_of_processes_per_host"] = int(processes)
    elif kind != "none":
        raise ConfigError(f"there is no distribution {kind!r}", hint="Known: none, torchrun, mpi.")
    groups = distribution.get(GROUPS)
    if groups and values:
        values[_CHOSEN_GROUPS] = list(groups)
    return values


def of_option(
    distribution: Mapping[str, Any], instance_type: str | None, groups: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the hyperparameters of the option ``distribution``, the SDK's dictionary."""
    given = _as_smdistributed(distribution)
    torch = _is_enabled(given, "torch_distributed")
    values = {} if torch and "smdistributed" not in given else _common(given, instance_type, groups)
    if torch:
        values[_TORCHRUN] = True
        if instance_type is not None:
            values[_INSTANCE_TYPE] = instance_type
    return values


def _as_smdistributed(distribution: Mapping[str, Any]) -> dict[str, Any]:
    """Return a distribution with ``pytorchddp`` by its other name, as the SDK sends it."""
    given = dict(distribution)
    if "pytorchddp" in given:
        given["smdistributed"] = {"dataparallel": given.pop("pytorchddp")}
    return given


def _common(given: Mapping[str, Any], instance_type: str | None, groups: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: _is_enabled(given, kind) for kind, name in _SWITCHES.items() if kind in given
    }
    if "mpi" in given:
        mpi = given["mpi"]
        values["sagemaker_mpi_enabled"] = mpi.get("enabled", False)
        if mpi.get("processes_per_host"):
            values["sagemaker_mpi_num_of_processes_per_host"] = mpi["processes_per_host"]
        values["sagemaker_mpi_custom_mpi_options"] = mpi.get("custom_mpi_options", "")
    strategies = given.get("smdistributed", {})
    data, model = strategies.get("dataparallel", {}), strategies.get("modelparallel", {})
    if strategies:
        if model.get("enabled") and model.get("parameters"):
            values["mp_parameters"] = model["parameters"]
        values["sagemaker_distributed_dataparallel_enabled"] = data.get("enabled", False)
        values[_INSTANCE_TYPE] = instance_type
        if data.get("enabled"):
            options = data.get("custom_mpi_options", "")
            values["sagemaker_distributed_dataparallel_custom_mpi_options"] = options
    chosen = list(given.get(GROUPS) or (groups if len(groups) == 1 else []))
    if chosen and (_is_enabled(given, "mpi") or data.get("enabled")):
        values[_CHOSEN_GROUPS] = chosen
    return values


def _is_enabled(given: Mapping[str, Any], kind: str) -> bool:
    return bool(given.get(kind, {}).get("enabled", False))


def distribution_problems(
    distribution: Mapping[str, Any], types: Sequence[str], groups: Sequence[str], program: str
) -> Iterator[str]:
    """Find what is wrong with the option ``distribution``."""
    found = list(_shape_problems(distribution, _SETTINGS))
    found = found or list(_rule_problems(distribution, types, groups, program))
    yield from (f"distribution: {problem}" for problem in found)


def _shape_problems(given: Mapping[str, Any], known: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    for key, value in given.items():
        name = f"{parent}.{key}" if parent else key
        kind = known.get(key)
        if kind is None:
            what = f"{parent} has no setting" if parent else "there is no"
            yield f"{what} {key!r}. {did_you_mean(str(key), known)}"
        elif isinstance(kind, dict):
            if isinstance(value, dict):
                yield from _shape_problems(value, kind, name)
            else:
                example = '{"enabled": true}' if "enabled" in kind else '{"dataparallel": {"enabled": true}}'
                yield f"{name} must be an object such as {example}, not {value!r}"
        elif not isinstance(value, kind) or (
            kind is list and not all(isinstance(item, str) for item in value)
        ):
            yield f"{name} must be {_WORDS[kind]}, not {value!r}"


def _rule_problems(
    distribution: Mapping[str, Any], types: Sequence[str], groups: Sequence[str], program: str
) -> Iterator[str]:
    """Check the rules of the SDK and the developer guide."""
    if "pytorchddp" in distribution and "smdistributed" in distribution:
        yield "pytorchddp and smdistributed are both given: they are two names of one thing"
    given = _as_smdistributed(distribution)
    kinds = [kind for kind in given if kind != GROUPS]
    strategies = given.get("smdistributed", {})
    if len(strategies) > 1:
        yield f"smdistributed has {' and '.join(sorted(strategies))}; it takes one strategy"
    torch = _is_enabled(given, "torch_distributed")
    unused = [kind for kind in kinds if kind not in ("torch_distributed", "smdistributed")]
    if torch and unused:
        yield f"torch_distributed is enabled, so {' and '.join(unused)} would not be used; give one of them"
    if _is_enabled(given, "multi_worker_mirrored_strategy"):
        others = [kind for kind in ("smdistributed", "parameter_server") if kind in given]
        if others:
            yield f"multi_worker_mirrored_strategy cannot be combined with {' and '.join(others)}"
    for kind in types:
        # developer guide: on Trainium torchrun starts the workers
        if kind.startswith("ml.trn") and kinds not in ([], ["torch_distributed"]):
            yield f"{kind} is a Trainium instance, on which only torch_distributed can be used"
        if kind == "ml.p5.48xlarge" and strategies and not torch:
            yield f"smdistributed on {kind} needs torch_distributed too"
    chosen = given.get(GROUPS) or []
    unknown = [name for name in chosen if name not in groups]
    by_group = _is_enabled(given, "mpi") or _is_enabled(strategies, "dataparallel")
    if unknown:
        known = f"known: {', '.join(groups)}" if groups else "the job has no instance groups"
        yield f"{GROUPS} has {', '.join(unknown)}, which the job does not have; {known}"
    elif chosen and not by_group:
        yield f"{GROUPS} is given, but only mpi and smdistributed.dataparallel use it"
    elif len(groups) > 1 and by_group and len(chosen) != 1:
        yield f"{GROUPS} must name one of {', '.join(groups)}, on which the ranks run"
    if torch and not program.endswith(".py"):
        yield f"torch_distributed starts Python scripts, not {program}"
