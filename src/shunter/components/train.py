"""A script as a job, with input data, results and several hosts."""

from __future__ import annotations

import os
from typing import Any, Literal

from shunter.errors import ConfigError
from shunter.metric_search import check_definition
from shunter.specs.app import NO_IMAGE, AppDef, Role, macros
from shunter.specs.mounts import parse_mounts
from shunter.specs.resource_catalog import resource
from shunter.specs.training import METADATA_KEY, TOOLKIT_KEY
from shunter.workspace import environment as environment_of_jobs


def script(
    *script_args: str,
    script: str,
    name: str = "",
    image: str = NO_IMAGE,
    h: str | None = None,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    num_replicas: int = 1,
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    channel: dict[str, str] | None = None,
    output: str = "",
    checkpoints: str = "",
    metric: dict[str, str | None] | None = None,
    distribution: Literal["none", "torchrun", "mpi"] = "none",
    nproc: int = 1,
    mpi_options: str = "",
    environment: str = "",
    toolkit: bool = True,
) -> AppDef:
    """Run a Python or shell script. ``shunter run ./train.py --lr 0.1`` is short for this.

    The script runs under the toolkit, which gives it SM_* variables, a directory for its model, its data and
    the other hosts, and reports why it failed.

    Args:
        script_args: arguments of the script
        script: the script, such as train.py or run.sh
        name: name of the job; the script's unless given
        image: image to run in
        h: named resource, instead of cpu, gpu and memMB
        cpu: cpus of a replica
        gpu: gpus of a replica
        memMB: memory of a replica in MiB
        num_replicas: number of replicas
        env: environment variables
        max_retries: number of restarts after a failure
        mounts: mounts, such as type=bind,src=/data,dst=/data,readonly
        channel: input data, such as training=s3://bucket/prefix; the script finds it in SM_CHANNEL_TRAINING
        output: URI that the model and other results are sent to
        checkpoints: URI that checkpoints are sent to and restored from
        metric: metrics to read from the output: a name such as loss, or NAME=REGEX
        distribution: how the replicas work together
        nproc: processes on each replica, with a distribution
        mpi_options: more options of mpirun
        environment: packages that it runs with: a requirements.txt, a project with a uv.lock, a script with a
            header; none for those that are there. By default what the script's own header asks for
        toolkit: whether the script runs under the toolkit
    """
    script = _in_project(script)
    stem = os.path.splitext(os.path.basename(script))[0] or "script"
    if distribution == "none" and (nproc != 1 or mpi_options):
        raise ConfigError(
            "nproc and mpi_options need a distribution",
            hint="Add --distribution torchrun or --distribution mpi.",
        )
    for key in channel or {}:
        if not key or "/" in key or key in (".", ".."):
            raise ConfigError(
                f"a channel cannot be named {key!r}: its name becomes that of a directory",
                hint="Choose another name, such as --channel training=DIRECTORY.",
            )
    specification: dict[str, Any] = {
        "channels": {key: _absolute(uri) for key, uri in (channel or {}).items()},
        "output": {"uri": _absolute(output)} if output else {},
        "checkpoints": {"uri": _absolute(checkpoints)} if checkpoints else {},
        "metrics": [_metric(key, regex) for key, regex in (metric or {}).items()],
        "distribution": _distribution(distribution, nproc, mpi_options),
        "environment": _environment(environment, script, toolkit=toolkit),
    }
    specification = {key: value for key, value in specification.items() if value}
    if specification and not toolkit:
        names = " and ".join(specification)
        raise ConfigError(
            f"{names} need the toolkit, which --toolkit=false leaves out",
            hint=f"Leave --toolkit=false out, or {names}.",
        )
    program = _program(script)
    role = Role(
        stem,
        image,
        entrypoint=program[0],
        args=[*program[1:], *script_args],
        env=dict(env or {}),
        num_replicas=num_replicas,
        max_retries=max_retries,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        mounts=parse_mounts(mounts or []),
    )
    if toolkit:
        role.metadata[METADATA_KEY] = {
            "version": 1,
            "name": macros.app_id,
            "program": _without_dot(script),
            "arguments": list(script_args),
            "host_count": num_replicas,
            **specification,
        }
    else:
        role.metadata[TOOLKIT_KEY] = False
    return AppDef(name=name or stem, roles=[role])


def _in_project(script: str) -> str:
    """Return a script of the current directory by its path in there, which it has after travelling."""
    if not os.path.isabs(script) or not os.path.isfile(script):
        return script
    path = os.path.relpath(script)
    return script if path.startswith(os.pardir) else path


def _without_dot(script: str) -> str:
    """Return a script without a leading ``./``: SM_MODULE_NAME is the same however it is called."""
    while script.startswith("./") and script[2:3] not in ("", "/", "-"):
        script = script[2:]
    return script


def _program(script: str) -> list[str]:
    """Return how a script is run by itself: by Python; ``*.sh`` by what its first line names, or ``sh``."""
    if not script.endswith(".sh"):
        return ["python", script]
    try:
        with open(script, encoding="utf-8", errors="replace") as file:
            line = file.readline(256)
    except OSError:  # it may be in the image
        line = ""
    words = line[2:].split() if line.startswith("#!") else []
    return [*(words or ["sh"]), script]


def _metric(name: str, regex: str | None) -> dict[str, str]:
    check_definition(name, regex or "")
    return {"name": name, "regex": regex} if regex else {"name": name}


def _distribution(kind: str, nproc: int, mpi_options: str) -> dict[str, Any]:
    if kind == "none":
        return {}
    options = {"mpi_options": mpi_options} if mpi_options else {}
    return {"kind": kind, "processes_per_host": nproc, **options}


def _environment(source: str, script: str, *, toolkit: bool) -> dict[str, Any] | None:
    if source == environment_of_jobs.NONE or (not source and not toolkit):
        return None
    if source:
        return environment_of_jobs.describe(source)
    return environment_of_jobs.of_script(script)


def _absolute(uri: str) -> str:
    """Return a URI unchanged, and a local path as an absolute one."""
    return uri if "://" in uri else os.path.abspath(os.path.expanduser(uri))
