"""`DockerWorkspaceMixin` as schedulers of plugins use it: images are made and pushed at once."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from shunter.docker.command import DockerCommand
from shunter.docker.images import inspect_image
from shunter.errors import BackendError
from shunter.specs import AppDef, Role
from shunter.specs.workspace import Workspace
from shunter.workspace.docker_workspace import DockerWorkspaceMixin
from tests.registry.server import RegistryServer, logged_in, registry
from tests.workspace.machines import LABEL, base, code, command, docker

__all__ = ["base", "code", "command", "logged_in", "registry"]
pytestmark = pytest.mark.xdist_group("docker")


def test_an_image_is_made_in_the_daemon(base: str, code: Path, command: DockerCommand) -> None:
    role = Role("r", base)
    DockerWorkspaceMixin().build_workspace_and_update_role(role, str(code), {})
    assert role.image != base
    assert inspect_image(command, role.image) is not None
    names = docker("run", "--rm", "--label", LABEL, role.image, "ls").decode().split()
    assert {path.name for path in code.iterdir() if not path.name.startswith(".")} <= set(names)


def test_roles_with_a_workspace_get_an_image_each(base: str, code: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "more.txt").write_text("more")
    both = Workspace({str(code): "", str(tmp_path / "more"): "below"})
    roles = [Role("none", base), Role("both", base, workspace=both)]
    DockerWorkspaceMixin().build_workspaces(roles, {})
    assert roles[0].image == base
    content = docker("run", "--rm", "--label", LABEL, roles[1].image, "cat", "below/more.txt")
    assert content == b"more"


def test_an_image_of_the_daemon_is_pushed(
    base: str, logged_in: RegistryServer, command: DockerCommand
) -> None:
    repository = f"{logged_in.host}/jobs/{uuid.uuid4().hex[:10]}"
    mixin = DockerWorkspaceMixin()
    image = docker("inspect", "--format", "{{.Id}}", base).decode().strip()
    app = AppDef("job", [Role("r", image)])
    mixin.push_images(mixin.dryrun_push_images(app, {"image_repo": repository}))
    name = app.roles[0].image
    docker("rmi", name)
    docker("pull", name)
    assert inspect_image(command, name) is not None


def test_a_push_that_fails_is_an_error(base: str, command: DockerCommand) -> None:
    try:
        with pytest.raises(BackendError, match="cannot push"):
            DockerWorkspaceMixin().push_images({base: ("127.0.0.1:1/nothing", "1")})
    finally:
        docker("rmi", "127.0.0.1:1/nothing:1")
