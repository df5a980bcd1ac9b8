"""Roles with separate workspaces: the code of a job travels as one workspace, with a folder for each role.

The program of such a role is started in its folder, by a shell, so that this holds on every scheduler that
ships code.
"""

from __future__ import annotations

import os

from shunter.errors import ConfigError
from shunter.specs.app import AppDef, Role
from shunter.specs.macro_substitution import macros
from shunter.specs.workspace import DOCKERFILES, Workspace, our_workspace

#: Starts the program of a role in its folder: the first argument, relative to the working directory.
_START = 'cd "$0" && exec "$@"'


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
        _check(workspace, name, runs_images=runs_images)
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


def _check(workspace: Workspace, name: str, *, runs_images: bool) -> None:
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
    role.args = ["-c", _START, folder, role.entrypoint, *role.args]
    role.entrypoint = "sh"
    role.workspace = None
