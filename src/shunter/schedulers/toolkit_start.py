"""How the toolkit gets into a job: the commands of roles with a training specification, points, or a lease.

Roles with ``metadata["train"]`` follow the contract of ``docs/contract.md``: the toolkit is started in place
of their script, and reads the job document from a variable. Schedulers that carry out the contract themselves
read the metadata instead. What takes the lease of a race comes before any other command.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator

from shunter._toolkit import opt_ml, race_lease, script_text, usage_log
from shunter.errors import ConfigError
from shunter.schedulers.capabilities import Capabilities
from shunter.specs.app import AppDef, Role
from shunter.specs.mounts import BindMount
from shunter.specs.sweep_points import points_of, run_own_command
from shunter.specs.training import (
    DOCUMENT,
    METADATA_KEY,
    PROGRAM_KEY,
    PROGRAMS,
    SWEEP_KEY,
    channel_uri,
    check_channels,
    local_path,
    lost_results,
    toolkit_arguments,
)
from shunter.workspace import environment
from shunter.workspace.toolkit_files import ToolkitPlace

#: Characters of a document that carries the arguments; a variable takes 128 KiB, and macros grow.
LONGEST_DOCUMENT = 64 * 1024

Places = Callable[[Role], ToolkitPlace | None]


def start_toolkits(app: AppDef, backend: str, capabilities: Capabilities, place_of: Places) -> list[str]:
    """Change, in place, the command of every role that the toolkit runs, or that has a command per replica.

    Returns a warning for each script that will not find what it uses.

    Args:
        app: the job.
        backend: name of its scheduler.
        capabilities: what the scheduler can do.
        place_of: returns where a role's replicas will find the toolkit; None if it cannot be shipped there.

    Raises:
        ConfigError: the scheduler cannot bring the toolkit to the job, or a channel's data are missing.
    """
    warnings: list[str] = []
    for role in app.roles:
        prefix = [role.entrypoint]
        if METADATA_KEY in role.metadata and not capabilities.is_local:  # here the supervisor samples
            role.env.setdefault(usage_log.VARIABLE, "1")
        if METADATA_KEY in role.metadata and capabilities.reads_training_specs:
            environment.add_variable(role, {})
        translate: Callable[[list[str]], list[str]] = list
        if METADATA_KEY in role.metadata:
            if not capabilities.reads_training_specs and DOCUMENT not in role.env:
                place = place_of(role)
                if capabilities.results_by_log:
                    _log_results(role)
                prefix = _start_training(role, place, backend, is_local=capabilities.is_local)
                if place is not None and place.base:
                    warnings += _uses_of_opt_ml(role)
        elif role.metadata.get(PROGRAM_KEY) in PROGRAMS:
            place = place_of(role)
            if place is not None and place.base:  # in an image, the packages installed there run it
                # with site, as a program may need fsspec, which the toolkit does not
                prefix = [word for word in place.command if word != "-S"]
                translate = functools.partial(toolkit_arguments, role.metadata[PROGRAM_KEY])
                role.entrypoint, role.args = prefix[0], [*prefix[1:], *translate(role.args)]
        if SWEEP_KEY in role.metadata:
            run_own_command(
                role, [[*prefix, *translate(point["args"])] for point in points_of(role.metadata)]
            )
        is_started_by_toolkit = METADATA_KEY in role.metadata and capabilities.reads_training_specs
        if race_lease.VARIABLE in role.env and not is_started_by_toolkit:  # which takes the lease itself
            role.env[race_lease.PROGRAM] = _text_of_lease_program()
            role.args = [*race_lease.COMMAND[1:], role.entrypoint, *role.args]
            role.entrypoint = race_lease.COMMAND[0]
    return warnings


@functools.cache
def _text_of_lease_program() -> str:
    return inspect.getsource(race_lease)


def _start_training(role: Role, place: ToolkitPlace | None, backend: str, *, is_local: bool) -> list[str]:
    """Let the toolkit run a role's script, in place; returns what precedes the script's arguments."""
    if place is None:
        raise ConfigError(
            f"{backend} cannot provide the toolkit to role {role.name!r}",
            hint="Run the script without it (train.script --toolkit=false), or on another scheduler.",
        )
    if place.base and is_local:
        check_channels(role.metadata)
    elif is_local:  # in a container of this machine
        _mount_local_paths(role)
    environment.add_variable(role, place.environments)
    document = {"code": place.code, **role.metadata[METADATA_KEY]}
    document.pop(environment.KEY, None)
    prefix = [*place.command, "train"]
    arguments: list[str] = []
    if SWEEP_KEY in role.metadata or len(json.dumps(document)) > LONGEST_DOCUMENT:
        prefix.append("--")
        arguments = document.pop("arguments", [])
    role.entrypoint, role.args = prefix[0], [*prefix[1:], *arguments]
    role.env[DOCUMENT] = json.dumps(document)  # macros in it are substituted, as in arguments
    if place.base:
        role.env.setdefault("SAGEMAKER_BASE_DIR", place.base)
        if is_local:  # its replicas are processes of one machine
            role.env.setdefault("SHUNTER_HOST_NETWORK", "loopback")
    for name, value in place.env.items():
        role.env.setdefault(name, value)
    return prefix


def _log_results(role: Role) -> None:
    """Have the toolkit write small results to the log, unless they are kept somewhere."""
    specification = role.metadata[METADATA_KEY]
    if lost_results(specification, (mount.dst_path for mount in role.mounts)) and not (
        specification.get("output") or {}
    ).get("uri"):
        output = {**(specification.get("output") or {}), "log": True}
        role.metadata[METADATA_KEY] = {**specification, "output": output}


def _uses_of_opt_ml(role: Role) -> Iterator[str]:
    """Yield a warning if a role's script, a process, uses ``/opt/ml`` and does not ask for it."""
    if opt_ml.is_wanted(role.env):
        return
    program = role.metadata[METADATA_KEY].get("program", "")
    folder, name = os.path.split(os.path.abspath(program))
    for file, text in script_text.texts(folder, name):
        if script_text.uses_base(text):
            yield (
                f"role {role.name!r}: {file} uses /opt/ml, which a job of processes does not have: use "
                f"SM_MODEL_DIR and the other SM_ variables, or ask for it by --env {opt_ml.VARIABLE}=1"
            )
            return


def _mount_local_paths(role: Role) -> None:
    """Show a container the directories of this machine that channels and results name, at the same paths."""
    specification = role.metadata[METADATA_KEY]
    read_only_by_path = {
        local_path(channel_uri(channel)): True for channel in specification.get("channels", {}).values()
    }
    for earlier in (specification.get("checkpoints") or {}).get("earlier", {}).values():
        read_only_by_path[local_path(earlier["uri"])] = True
    for section in ("output", "checkpoints"):
        read_only_by_path[local_path(specification.get(section, {}).get("uri", ""))] = False
    for path, read_only in read_only_by_path.items():
        mounted = any(
            path == m.dst_path or path.startswith(m.dst_path.rstrip("/") + "/") for m in role.mounts
        )
        if path and not mounted:
            role.mounts.append(BindMount(path, path, read_only))
