"""Components for everyday programs: a command, a shell line, a Python script, a copy."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from shlex import quote
from typing import Annotated

from shunter import torchx_alias
from shunter._toolkit import script_command
from shunter.components import train
from shunter.errors import ComponentArgumentError, ConfigError
from shunter.specs.app import NO_IMAGE, AppDef, Role, macros
from shunter.specs.durations import parse_duration
from shunter.specs.mounts import parse_mounts
from shunter.specs.resource_catalog import resource
from shunter.specs.resources import Resource
from shunter.specs.training import PROGRAM_KEY, program_arguments
from shunter.specs.translation import our_app


def _program_role(name: str, image: str, program: str, *args: str) -> Role:
    return Role(
        name,
        image,
        entrypoint="python",
        args=program_arguments(program, *args),
        resource=_small(),
        metadata={PROGRAM_KEY: program},
    )


def _small() -> Resource:
    return Resource(cpu=1, gpu=0, memMB=1024)


#: Builtins and reserved words of shells: `exec` cannot be put before them.
_SHELL_WORDS = """
! . : [ [[ ]] alias bg bind break builtin caller case cd chdir command compgen complete compopt continue
coproc declare dirs disown do done echo elif else enable esac eval exec exit export false fc fg fi for
function getopts hash help history if in jobs kill let local logout mapfile popd printf pushd pwd read
readarray readonly return select set shift shopt source suspend test then time times trap true type
typeset ulimit umask unalias unset until wait while { }
"""
_NOT_PROGRAMS = frozenset(_SHELL_WORDS.split())
#: An assignment before a command; if its value were quoted, it would be taken for the command.
_ASSIGNMENT = r"[A-Za-z_][A-Za-z0-9_]*=[\w@%+=:,./-]*"
#: The kernel limits an argument to 128 KiB; macros may lengthen this one.
LONGEST_LINE = 120 * 1024


def shell_arguments(words: Sequence[str]) -> list[str]:
    """Return the arguments of ``sh`` that run a command without expanding anything in it.

    If possible the shell replaces itself by the program (exec), so that signals reach it and its exit code is
    the replica's. A command that is too long for one argument is passed as separate arguments.
    """
    first = next(
        (k for k, word in enumerate(words) if not re.fullmatch(_ASSIGNMENT, word, re.ASCII)), len(words)
    )
    becomes = ["exec"] if first < len(words) and words[first] not in _NOT_PROGRAMS else []
    before = [*words[:first], *becomes]
    line = " ".join([*before, *map(quote, words[first:])])
    if len(line.encode("utf-8", "surrogateescape")) <= LONGEST_LINE:
        return ["-c", line]
    return ["-c", " ".join([*before, '"$@"']), "sh", *words[first:]]


def echo(msg: str = "hello world", image: str = NO_IMAGE, num_replicas: int = 1) -> AppDef:
    """Print a message.

    Args:
        msg: what to print
        image: image to run in
        num_replicas: number of replicas
    """
    role = Role("echo", image, entrypoint="echo", args=[msg], num_replicas=num_replicas, resource=_small())
    return AppDef("echo", [role])


def touch(file: str, image: str = NO_IMAGE) -> AppDef:
    """Create an empty file, or update the time of an existing one.

    Args:
        file: the file
        image: image to run in
    """
    return AppDef("touch", [Role("touch", image, entrypoint="touch", args=[file], resource=_small())])


def sh(
    *args: str,
    image: str = NO_IMAGE,
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    entrypoint: str | None = None,
    name: str = "sh",
) -> AppDef:
    """Run a command through a shell.

    Arguments reach the command unchanged; the shell expands nothing in them. For shell syntax, name a shell:
    shunter run utils.sh -- sh -c 'echo $HOME; date'

    Args:
        args: the command and its arguments
        image: image to run in
        num_replicas: number of replicas
        cpu: cpus of a replica
        gpu: gpus of a replica
        memMB: memory of a replica in MiB
        h: named resource, instead of cpu, gpu and memMB
        env: environment variables
        max_retries: number of restarts after a failure
        mounts: mounts, such as type=bind,src=/data,dst=/data,readonly
        entrypoint: program to start with the arguments, instead of the shell
        name: name of the job
    """
    if not args and entrypoint is None:
        raise ComponentArgumentError(
            "utils.sh: there is no command", hint="Example: shunter run utils.sh ls -l"
        )
    role = Role(
        "sh",
        image,
        entrypoint=entrypoint or "sh",
        args=list(args) if entrypoint else shell_arguments(args),
        env={"LOGLEVEL": os.environ.get("LOGLEVEL", "WARNING"), **(env or {})},
        num_replicas=num_replicas,
        max_retries=max_retries,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name, [role])


def dev(
    idle: str = "30m",
    name: str = "dev",
    image: str = NO_IMAGE,
    h: str | None = None,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    channel: dict[str, str] | None = None,
    output: str = "",
    checkpoints: str = "",
    environment: str = "",
) -> AppDef:
    """Keep an interactive job until nobody uses it. ``shunter dev`` starts it and opens a shell in it.

    Args:
        idle: end the job when it has not been used for this long; 0 for never
        name: name of the job
        image: image to run in
        h: named resource, instead of cpu, gpu and memMB
        cpu: cpus
        gpu: gpus
        memMB: memory in MiB
        env: environment variables
        mounts: mounts, such as type=bind,src=/data,dst=/data,readonly
        channel: input data, such as training=s3://bucket/prefix; it is in SM_CHANNEL_TRAINING
        output: URI that what is in SM_MODEL_DIR, and other results, are sent to
        checkpoints: URI that checkpoints are sent to and restored from
        environment: packages: a requirements.txt, a project with a uv.lock, a script with a header
    """
    app = train.script(
        "dev",
        "--idle",
        f"{parse_duration(idle):g}",
        script=script_command.TOOLKIT,
        name=name,
        image=image,
        h=h,
        cpu=cpu,
        gpu=gpu,
        memMB=memMB,
        env=env,
        mounts=mounts,
        channel=channel,
        output=output,
        checkpoints=checkpoints,
        environment=environment,
    )
    app.roles[0].name = "dev"
    return app


def python(
    *args: str,
    m: str | None = None,
    c: str | None = None,
    script: str | None = None,
    image: str = NO_IMAGE,
    name: str = "torchx_utils_python",
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
    num_replicas: int = 1,
    mounts: list[str] | None = None,
) -> AppDef:
    """Run Python: a module (-m), a command (-c) or a script (--script); exactly one of them.

    Args:
        args: arguments of the program
        m: module to run
        c: Python code to run
        script: script to run
        image: image to run in
        name: name of the job
        cpu: cpus of a replica
        gpu: gpus of a replica
        memMB: memory of a replica in MiB
        h: named resource, instead of cpu, gpu and memMB
        num_replicas: number of replicas
        mounts: mounts, such as type=bind,src=/data,dst=/data,readonly
    """
    _exactly_one("utils.python", {"-m": m, "-c": c, "--script": script})
    if script is not None:
        program = [script]
    else:
        program = ["-m", m] if m is not None else ["-c", c or ""]
    role = Role(
        "python",
        image,
        entrypoint="python",
        args=[*program, *args],
        env={"HYDRA_MAIN_MODULE": m} if m else {},
        num_replicas=num_replicas,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name, [role])


def _exactly_one(component: str, options: dict[str, str | None]) -> None:
    present = [option for option, value in options.items() if value is not None]
    if len(present) != 1:
        number = f"{' and '.join(present)} are given" if present else "none is given"
        raise ComponentArgumentError(f"{component}: exactly one of {', '.join(options)} is needed; {number}")


def binary(
    *args: str,
    entrypoint: str,
    name: str = "torchx_utils_binary",
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
) -> AppDef:
    """Run an existing program, without an image.

    Args:
        args: arguments of the program
        entrypoint: the program
        name: name of the job
        num_replicas: number of replicas
        cpu: cpus of a replica
        gpu: gpus of a replica
        memMB: memory of a replica in MiB
        h: named resource, instead of cpu, gpu and memMB
    """
    role = Role(
        "binary",
        NO_IMAGE,
        entrypoint=entrypoint,
        args=list(args),
        num_replicas=num_replicas,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
    )
    return AppDef(name, [role])


def copy(src: str, dst: str, image: str = NO_IMAGE, mounts: list[str] | None = None) -> AppDef:
    """Copy a file. Takes paths and URLs; URLs need fsspec.

    The image must have shunter, shunter-toolkit or torchx installed; processes need nothing.

    Args:
        src: the file, as a path or URL
        dst: where to, as a path or URL
        image: image to run in
        mounts: mounts, such as type=bind,src=/data,dst=/data,readonly
    """
    role = _program_role("copy", image, "copying", "--src", src, "--dst", dst)
    role.mounts = parse_mounts(mounts or [])
    return AppDef("copy", [role])


def booth(
    x1: float,
    x2: float,
    trial_idx: int = 0,
    tracker_base: str = "/tmp/torchx-util-booth",
    image: str = NO_IMAGE,
) -> AppDef:
    """Evaluate Booth's function at a point: a trial for trying out hyperparameter searches.

    The image must have shunter, shunter-toolkit or torchx installed; processes need nothing.

    Args:
        x1: first coordinate
        x2: second coordinate
        trial_idx: number of the trial
        tracker_base: directory (or URL) in which the result is written, as JSON in a file named by the trial
        image: image to run in
    """
    args = [f"--x1={x1}", f"--x2={x2}", f"--trial_idx={trial_idx}", f"--tracker_base={tracker_base}"]
    return AppDef("booth", [_program_role(f"booth-{trial_idx}", image, "booth", *args)])


def hydra(
    *overrides: str,
    config_name: Annotated[str, "-cn"],
    config_dir: Annotated[str, "-cd"] = ".torchx",
) -> AppDef:
    """Make a job from a Hydra configuration whose key ``app``, or which itself, instantiates an AppDef.

    Needs hydra-core. What only the job knows is written ``${torchx.app_id:}``, and likewise for each macro.

    Args:
        overrides: Hydra overrides, such as app.roles.0.num_replicas=2
        config_name: name of the configuration (the file, without .yaml)
        config_dir: directory of the configurations
    """
    directory = os.path.abspath(os.path.expanduser(config_dir))
    if not os.path.isdir(directory):
        raise ConfigError(
            f"utils.hydra: there is no directory {directory}", hint="Name it with --config-dir."
        )
    app = our_app(_compose(directory, config_name, overrides))
    if not isinstance(app, AppDef):
        raise ConfigError(
            f"utils.hydra: {config_name} in {directory} makes a {type(app).__name__}, not an AppDef",
            hint="Below its key app stands: _target_: shunter.specs.AppDef",
        )
    return app


def _compose(directory: str, config_name: str, overrides: Sequence[str]) -> object:
    try:
        hydra_module = import_module("hydra")
        hydra_error = import_module("hydra.errors").HydraException
        instantiate = import_module("hydra.utils").instantiate
        resolvers = import_module("omegaconf").OmegaConf
    except ImportError:
        raise ConfigError(
            "utils.hydra needs the package hydra-core, which is not installed",
            hint="pip install hydra-core",
        ) from None
    try:
        with hydra_module.initialize_config_dir(config_dir=directory, version_base=None):
            config = hydra_module.compose(config_name=config_name, overrides=list(overrides))
        for macro in fields(macros.Values):
            escaped = "\\" + getattr(macros, macro.name)  # no reference to a key of the configuration
            resolvers.register_new_resolver(f"torchx.{macro.name}", partial(str, escaped), replace=True)
        torchx_alias.install()  # which the configuration names, maybe
        app: object = instantiate(config.get("app", config), _convert_="all")
    except hydra_error as error:
        raise ConfigError(f"utils.hydra: {config_name} in {directory}: {error}") from error
    return app
