"""From a job and options to a scheduler's request: adds the runner's variables, starts the toolkit.

Roles with ``metadata["train"]`` follow the contract of ``docs/contract.md``: the toolkit is started in place
of their script, and reads the job document from a variable. Schedulers that carry out the contract themselves
read the metadata instead.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from shunter.errors import ConfigError
from shunter.runner.config import tracker_variable
from shunter.runner.default_image import name_images
from shunter.runner.role_workspaces import take_workspaces
from shunter.schedulers.api import Scheduler
from shunter.specs.app import AppDef, Role, validate_app
from shunter.specs.builtin_programs import PROGRAMS, toolkit_arguments
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import make_app_handle
from shunter.specs.mounts import BindMount
from shunter.specs.serialize import to_json
from shunter.specs.substitution import macros
from shunter.specs.sweep_points import points_of, run_own_command
from shunter.specs.training import (
    DOCUMENT,
    METADATA_KEY,
    PROGRAM_KEY,
    SWEEP_KEY,
    channel_uri,
    check_channels,
    local_path,
)
from shunter.specs.translation import our_app
from shunter.specs.workspace import Workspace, is_url, our_workspace
from shunter.workspace.fetching import fetched

JOB_ID = "TORCHX_JOB_ID"
ROLE_IDX = "TORCHX_ROLE_IDX"
ROLE_NAME = "TORCHX_ROLE_NAME"
REPLICA_IDX = "TORCHX_REPLICA_IDX"
SESSION_ID = "TORCHX_INTERNAL_SESSION_ID"
PARENT_RUN_ID = "TORCHX_PARENT_RUN_ID"
TRACKERS = "TORCHX_TRACKERS"

#: Characters of a document that carries the arguments; a variable takes 128 KiB, and macros grow.
LONGEST_DOCUMENT = 64 * 1024


def prepare(
    scheduler: Scheduler[Any],
    app: AppDef,
    cfg: Mapping[str, Any] | None,
    workspace: Workspace | str | None,
    parent_run_id: str | None,
    trackers: Mapping[str, str | None],
    image: str | None = None,
) -> AppDryRunInfo[Any]:
    """Check a job and make the request for it. Touches nothing; ``app`` is not changed.

    ``image`` is the configured one for roles without an image, see `runner.default_image`.

    Raises:
        ConfigError: the job is not complete, or cannot run on this scheduler.
        InvalidRunConfigException: an option is unknown, missing or of the wrong type.
    """
    if not _is_ours(app):
        app = our_app(app)
    validate_app(app)
    workspace = our_workspace(workspace)
    own = deepcopy(app)
    if (not workspace or workspace.implicit) and any(role.workspace for role in own.roles):
        if scheduler.builds_roles:
            workspace = Workspace()
        else:
            workspace = take_workspaces(own, runs_images=scheduler.runs_images) or workspace
    named = workspace
    if any(is_url(source) for source in workspace.projects):
        workspace = fetched(workspace)
    notes: list[str] = []
    if scheduler.runs_images:
        notes += name_images(own, image)
    definition = to_json(own)  # without the runner's variables, which a repetition sets again
    inject(own, scheduler.backend, scheduler.session_name, parent_run_id, trackers)
    start_toolkits(own, scheduler)
    start_programs(own, scheduler)
    start_points(own)
    info = scheduler.make_dryrun(own, cfg or {}, workspace)
    info.warnings = [*notes, *info.warnings]
    info.record |= {
        "app": definition,
        # an implicit workspace that did not travel is not recorded
        "workspace": None if workspace.implicit and info.shipment is None else str(named) or None,
        "parent_run_id": parent_run_id,
    }
    return info


def _is_ours(app: Any) -> bool:
    """Tell whether a job is of our classes throughout, rather than of those of an installed TorchX."""
    roles: Any = getattr(app, "roles", None)
    return isinstance(app, AppDef) and (
        not isinstance(roles, list) or all(isinstance(role, Role) for role in roles)
    )


# ---- the variables that every job gets


@functools.cache
def internal_session_id() -> str:
    """Return the id of this process and the jobs that it launches; a job's own launches inherit it."""
    return os.environ.get(SESSION_ID) or os.urandom(16).hex()


def inject(
    app: AppDef,
    scheduler: str,
    session: str,
    parent_run_id: str | None = None,
    trackers: Mapping[str, str | None] | None = None,
) -> None:
    """Add the variables that scripts rely on to every role, in place.

    Args:
        app: the job; its own values for trackers stay.
        scheduler: name of the scheduler.
        session: the session part of the job's handle.
        parent_run_id: the run that this one belongs to.
        trackers: experiment trackers by name, each with its configuration.
    """
    for index, role in enumerate(app.roles):
        role.env[JOB_ID] = make_app_handle(scheduler, session, macros.app_id)
        role.env[ROLE_IDX] = str(index)
        role.env[ROLE_NAME] = role.name
        role.env[REPLICA_IDX] = macros.replica_id
        role.env[SESSION_ID] = internal_session_id()
        if parent_run_id:
            role.env[PARENT_RUN_ID] = parent_run_id
        if trackers:
            role.env.setdefault(TRACKERS, ",".join(trackers))
            for name, config in trackers.items():
                if config is not None:
                    role.env.setdefault(tracker_variable(name), config)


# ---- the toolkit


def start_toolkits(app: AppDef, scheduler: Scheduler[Any]) -> None:
    """Make every role with a training specification start the toolkit instead of its script, in place.

    Raises:
        ConfigError: the scheduler cannot bring the toolkit to the job, or a channel's data are missing.
    """
    for role in app.roles:
        if METADATA_KEY in role.metadata and not scheduler.reads_training_specs:
            _start_toolkit(role, scheduler)


def start_programs(app: AppDef, scheduler: Scheduler[Any]) -> None:
    """Let the toolkit run the programs of builtins where it comes with the job anyway, in place.

    In an image nothing changes: the packages installed there run the programs.
    """
    for role in app.roles:
        name = role.metadata.get(PROGRAM_KEY)
        if name is None:
            continue
        place = scheduler.toolkit_place(role) if name in PROGRAMS else None
        if place is not None and place.base:
            # with site, as a program may need fsspec, which the toolkit does not
            command = [word for word in place.command if word != "-S"]
            role.entrypoint = command[0]
            role.args = [*command[1:], *toolkit_arguments(name, role.args)]


def start_points(app: AppDef) -> None:
    """Let each replica of a sweep run the command of its point, in place."""
    for role in app.roles:
        if SWEEP_KEY not in role.metadata:
            continue
        points = points_of(role.metadata)
        if DOCUMENT in role.env:
            before = role.args[: role.args.index("--") + 1]
            arguments = [[*before, *point["args"]] for point in points]
        elif role.metadata.get(PROGRAM_KEY) is not None and role.args[:1] != points[0]["args"][:1]:
            name = role.metadata[PROGRAM_KEY]
            start = len(role.args) - len(toolkit_arguments(name, points[0]["args"]))
            arguments = [[*role.args[:start], *toolkit_arguments(name, point["args"])] for point in points]
        else:
            arguments = [point["args"] for point in points]
        run_own_command(role, [[role.entrypoint, *words] for words in arguments])


def _start_toolkit(role: Role, scheduler: Scheduler[Any]) -> None:
    place = scheduler.toolkit_place(role)
    if place is None:
        raise ConfigError(
            f"{scheduler.backend} cannot provide the toolkit to role {role.name!r}",
            hint="Run the script without it (train.script --toolkit=false), or on another scheduler.",
        )
    if place.base and scheduler.is_local:
        check_channels(role.metadata)
    elif scheduler.is_local:  # in a container of this machine
        _mount_local_paths(role)
    document = {"code": place.code, **role.metadata[METADATA_KEY]}
    role.entrypoint = place.command[0]
    role.args = [*place.command[1:], "train"]
    if SWEEP_KEY in role.metadata or len(json.dumps(document)) > LONGEST_DOCUMENT:
        role.args += ["--", *document.pop("arguments", [])]
    role.env[DOCUMENT] = json.dumps(document)  # macros in it are substituted, as in arguments
    if place.base:
        role.env.setdefault("SAGEMAKER_BASE_DIR", place.base)
        if scheduler.is_local:  # its replicas are processes of one machine
            role.env.setdefault("SHUNTER_HOST_NETWORK", "loopback")
    for name, value in place.env.items():
        role.env.setdefault(name, value)


def _mount_local_paths(role: Role) -> None:
    """Show a container the directories of this machine that channels and results name, at the same paths."""
    specification = role.metadata[METADATA_KEY]
    wanted = {
        local_path(channel_uri(channel)): True for channel in specification.get("channels", {}).values()
    }
    for section in ("output", "checkpoints"):
        wanted[local_path(specification.get(section, {}).get("uri", ""))] = False
    for path, read_only in wanted.items():
        mounted = any(
            path == m.dst_path or path.startswith(m.dst_path.rstrip("/") + "/") for m in role.mounts
        )
        if path and not mounted:
            role.mounts.append(BindMount(path, path, read_only))
