"""Roles that are a Python script: what of them the request says in fields of its own.

That is a role with a training specification (``metadata["train"]``, see ``docs/contract.md``), and one that
runs ``python SCRIPT.py``, since on SageMaker scripts expect the container's contract.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import ConfigError
from trainyard.specs.app import Role
from trainyard.specs.training import METADATA_KEY, TOOLKIT_KEY

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
#: What the platform settles, and what the request has fields for.
_READ = {
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
    "timeout_seconds",
}


@dataclass
class Script:
    """A script with what it needs.

    Attributes:
        program: its path in the code.
        arguments: exactly its arguments.
        hyperparameters: any JSON values by name.
        channels: URI, or the job document's object, by name.
        output: ``uri``, ``compression``.
        checkpoints: ``uri``, ``path``.
        metrics: ``{"name", "regex"}``.
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


def script_of(role: Role) -> Script | None:
    """Return the script that a role runs; None if it runs something else.

    Raises:
        ConfigError: its specification asks for what SageMaker does not do.
    """
    spec = role.metadata.get(METADATA_KEY)
    if spec:
        return _from_specification(role, spec)
    if role.metadata.get(TOOLKIT_KEY) is False or not _PYTHON.fullmatch(role.entrypoint) or not role.args:
        return None
    program = role.args[0]
    if not program.endswith(".py") or program.startswith(("-", "/")):
        return None
    return Script(_inside(role, program), list(role.args[1:]))


def _from_specification(role: Role, spec: Mapping[str, Any]) -> Script:
    unknown = sorted(set(spec) - _READ)
    if unknown:
        raise ConfigError(
            f"role {role.name!r}: SageMaker has nothing for {', '.join(unknown)} of its training job",
            hint="Leave it out, or run the script on another scheduler.",
        )
    timeout = spec.get("timeout_seconds")
    return Script(
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
    """Tell whether a script is not of the code that travels: it is named by its whole path."""
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


def as_hyperparameters(arguments: list[str], *, role: str) -> dict[str, str]:
    """Return arguments as the hyperparameters that an image's own ``train`` makes them of again.

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
            why = f"{name} is given twice" if key in result and not wrong else f"not {flag!r}"
            raise ConfigError(
                f"role {role!r}: the image's own `train` takes arguments like --name value only, {why}",
                hint="Leave toolkit=false out: trainyard's toolkit passes any arguments on as they are.",
            )
        result[key] = value
    return result


def _is_flag(text: str) -> bool:
    """Tell whether a text is the next flag; a negative number is a value."""
    return text.startswith("-") and re.fullmatch(r"-\d.*|-\.\d.*|-", text) is None


def as_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return hyperparameters as arguments, in the way of ``train`` and of the toolkit."""
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


def distribution_hyperparameters(
    distribution: Mapping[str, Any], instance_type: str | None, *, toolkit: bool
) -> dict[str, Any]:
    """Return the reserved hyperparameters that the toolkit and ``sagemaker-training`` start the ranks by.

    Args:
        distribution: the script's own.
        instance_type: the type of the instances; None if it is not known yet.
        toolkit: whether trainyard's toolkit starts the script, which alone starts as many processes on a
            host under torchrun as are asked for.
    """
    kind = distribution.get("kind", "none")
    processes = distribution.get("processes_per_host")
    values: dict[str, Any] = {}
    if kind == "torchrun":
        values = {"sagemaker_torch_distributed_enabled": True}
        if instance_type is not None:
            values["sagemaker_instance_type"] = instance_type
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
    groups = distribution.get("instance_groups")
    if groups and values:
        values["sagemaker_distribution_instance_groups"] = list(groups)
    return values


def encode(values: Mapping[str, Any]) -> dict[str, str]:
    """Return hyperparameters as the request has them: each a text that is decoded once as JSON."""
    return {key: json.dumps(value) for key, value in values.items()}
