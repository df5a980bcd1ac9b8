"""From a job and options to a scheduler's request, with the runner's variables and the code of its roles."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from shunter._toolkit import race_lease
from shunter.errors import ConfigError
from shunter.plugins import entry_points
from shunter.runner.calls import bring_calls
from shunter.runner.config import tracker_variable
from shunter.schedulers.api import Dependency, Scheduler, TakesLeases
from shunter.specs.app import NO_IMAGE, AppDef, Role, macros, validate_app
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import make_app_handle
from shunter.specs.serialize import to_json
from shunter.specs.submission import Submission
from shunter.specs.training import METADATA_KEY
from shunter.specs.translation import our_app
from shunter.specs.workspace import DOCKERFILES, Workspace, is_url, our_workspace
from shunter.workspace.fetching import fetched

JOB_ID = "TORCHX_JOB_ID"
ROLE_IDX = "TORCHX_ROLE_IDX"
ROLE_NAME = "TORCHX_ROLE_NAME"
REPLICA_IDX = "TORCHX_REPLICA_IDX"
SESSION_ID = "TORCHX_INTERNAL_SESSION_ID"
PARENT_RUN_ID = "TORCHX_PARENT_RUN_ID"
TRACKERS = "TORCHX_TRACKERS"

#: What TorchX published last: Python, torch and torchx.
TORCHX_VERSION = "0.7.0"
TORCHX_IMAGE = f"ghcr.io/pytorch/torchx:{TORCHX_VERSION}"
ENTRY_POINT = "get_torchx_image"
#: Starts the program of a role in its folder: the first argument, relative to the working directory.
_START_IN_FOLDER = 'cd "$0" && exec "$@"'


def prepare(
    scheduler: Scheduler[Any],
    app: AppDef,
    submission: Submission,
    after: Sequence[Dependency],
    trackers: Mapping[str, str | None],
    image: str | None = None,
) -> AppDryRunInfo[Any]:
    """Check a job and make the request for it. Touches nothing; ``app`` is not changed.

    Args:
        scheduler: where it is to run.
        app: the job of the submission.
        submission: how it is to run.
        after: jobs that it has to wait for.
        trackers: experiment trackers by name, each with its configuration.
        image: the configured one for roles without an image, see `name_images`.

    Raises:
        ConfigError: the job is not complete, or cannot run on this scheduler.
        InvalidRunConfigException: an option is unknown, missing or of the wrong type.
    """
    if not _is_ours(app):
        app = our_app(app)
    validate_app(app)
    workspace = our_workspace(submission.workspace)
    capabilities = scheduler.capabilities
    own = deepcopy(app)
    if (not workspace or workspace.implicit) and any(role.workspace for role in own.roles):
        if capabilities.ships_roles:
            workspace = Workspace()
        else:
            workspace = take_workspaces(own, runs_images=capabilities.runs_images) or workspace
    named = workspace
    if any(is_url(source) for source in workspace.projects):
        workspace = fetched(workspace)
    notes: list[str] = []
    if capabilities.runs_images:
        notes += name_images(own, image)
    definition = to_json(own)  # without the runner's variables, which a repetition sets again
    workspace = bring_calls(own, workspace, capabilities, has_code=submission.images is not None)
    inject(own, scheduler.backend, scheduler.session_name, submission.parent_run_id, trackers)
    if submission.lease and not isinstance(scheduler, TakesLeases):
        for role in own.roles:
            role.env[race_lease.VARIABLE] = submission.lease
    info = scheduler.submit_dryrun(own, submission.options, workspace, after)
    info.warnings = [*notes, *info.warnings]
    info.submission = submission
    if isinstance(scheduler, TakesLeases):
        info.lease = submission.lease
    info.definition = definition
    # an implicit workspace that did not travel is not recorded
    info.travels = None if workspace.implicit and info.shipment is None else str(named) or None
    return info


def _is_ours(app: Any) -> bool:
    """Tell whether a job is of our classes throughout, rather than of those of an installed TorchX."""
    roles: Any = getattr(app, "roles", None)
    return isinstance(app, AppDef) and (
        not isinstance(roles, list) or all(isinstance(role, Role) for role in roles)
    )


# ---- the image of roles without one


def name_images(app: AppDef, setting: str | None) -> Iterator[str]:
    """Give an image to the roles that have none, in place; yields a warning for each built-in one.

    ``setting`` is the image of the configuration; None if it names none, ``<NONE>`` for none at all. Without
    one, scripts (``train.script``) get none, since only their project knows their packages.
    """
    for role in app.roles:
        if role.image != NO_IMAGE:
            continue
        if setting:
            role.image = setting
        elif METADATA_KEY not in role.metadata:
            role.image = default_image()
            yield (
                f"role {role.name!r}: no image is given, so it runs in {role.image} "
                "(to choose another: --image, or image in [run] of shunter.toml)"
            )


def default_image() -> str:
    """Return the image of builtins where the configuration names none: a plug-in's, else TorchX's last."""
    for point in entry_points("version"):
        if point.name == ENTRY_POINT:
            return str(point.call(TORCHX_VERSION))
    return TORCHX_IMAGE


# ---- roles with separate workspaces: the job's code is one workspace, with a folder for each role


def take_workspaces(app: AppDef, *, runs_images: bool) -> Workspace | None:
    """Return the workspace that holds those of all roles; None if no role names one.

    Where they differ, each role that names one is changed, so that it starts in the folder with its code.
    ``runs_images`` says whether code is put into images.

    Raises:
        ConfigError: the workspaces cannot be put together.
    """
    found: dict[Workspace, str] = {}
    for role in app.roles:
        if role.workspace:
            found.setdefault(our_workspace(role.workspace), role.name)
    if len(found) < 2:
        return next(iter(found), None)
    projects: dict[str, str] = {}
    for workspace, name in found.items():
        _check_role_workspace(workspace, name, runs_images=runs_images)
        for source, to in workspace.projects.items():
            if source in projects:
                raise ConfigError(
                    f"the workspaces of the roles of {app.name!r} differ, and {source} is in more than one",
                    hint=f"Give the roles one workspace, with a folder for each: {source}=shared,...",
                )
            projects[source] = f"{name}/{to}" if to else name
    for role in app.roles:
        if role.workspace:
            _start_in(role, found[our_workspace(role.workspace)], runs_images=runs_images)
    return Workspace(projects)


def _check_role_workspace(workspace: Workspace, name: str, *, runs_images: bool) -> None:
    if workspace.frozen:
        raise ConfigError(
            f"role {name!r} asks for the code of an earlier job, and other roles for other code",
            hint="Submit them as two jobs.",
        )
    if not runs_images:
        return
    for source in (source for source, to in workspace.projects.items() if not to):
        for file in DOCKERFILES:  # one would be built for the whole job
            if os.path.exists(os.path.join(os.path.expanduser(source), file)):
                raise ConfigError(
                    f"role {name!r} has a workspace with a {file}, and other roles have other workspaces",
                    hint="Build that image first and name it in the role, or submit the roles as jobs.",
                )


def _start_in(role: Role, folder: str, *, runs_images: bool) -> None:
    if "train" in role.metadata:
        raise ConfigError(
            f"role {role.name!r} is a training script, which shares one workspace with all roles of its job",
            hint="Give the roles one workspace, with a folder for each: app=.,lib=../lib.",
        )
    if not runs_images:  # in an image, the macro is the root of its files, not where the code is
        place = f"{macros.img_root}/{folder}"
        role.entrypoint = role.entrypoint.replace(macros.img_root, place)
        role.args = [argument.replace(macros.img_root, place) for argument in role.args]
        role.env = {key: value.replace(macros.img_root, place) for key, value in role.env.items()}
    role.args = ["-c", _START_IN_FOLDER, folder, role.entrypoint, *role.args]
    role.entrypoint = "sh"
    role.workspace = None


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
