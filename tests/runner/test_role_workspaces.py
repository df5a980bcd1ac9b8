"""Roles with workspaces of their own: each is started where its code is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shunter.compat.plugin_scheduler import PluginScheduler
from shunter.errors import ConfigError
from shunter.runner import Runner, get_runner
from shunter.schedulers.responses import ListAppResponse
from shunter.specs import AppDef, AppDryRunInfo, AppState, Role, Workspace
from shunter.workspace.api import WorkspaceMixin


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("chef", "guest"):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "greet.sh"
        program.write_text(f'#!/bin/sh\necho "{name} $*" in $(ls)\n')
        program.chmod(0o755)
    return tmp_path


def dinner(folders: Path, image: str = "") -> AppDef:
    """Two roles whose programs have one name and lie in two folders, and one without code of its own."""
    roles = [
        Role(name, image, entrypoint="./greet.sh", args=["no. ${replica_id}", "$HOME"])
        for name in ("chef", "guest")
    ]
    for role in roles:
        role.workspace = str(folders / role.name)
    return AppDef("dinner", [*roles, Role("door", image, entrypoint="ls")])


def check(scheduler: str, app: AppDef) -> None:
    with get_runner("s") as runner:
        handle = runner.run(app, scheduler, {})
        status = runner.wait(handle)
        assert status is not None
        assert status.state is AppState.SUCCEEDED
        assert list(runner.log_lines(handle, "chef")) == ["chef no. 0 $HOME in greet.sh\n"]
        assert list(runner.log_lines(handle, "guest")) == ["guest no. 0 $HOME in greet.sh\n"]
        assert list(runner.log_lines(handle, "door")) == ["chef\n", "guest\n"]
        again = runner.rerun(handle)
        assert runner.wait(again).state is AppState.SUCCEEDED  # type: ignore[union-attr]
        assert list(runner.log_lines(again, "guest")) == ["guest no. 0 $HOME in greet.sh\n"]
        runner.delete(handle)
        runner.delete(again)


def test_each_role_starts_where_its_code_is(folders: Path) -> None:
    app = dinner(folders)
    check("local_cwd", app)
    assert app.roles[0].entrypoint == "./greet.sh"  # the caller's job is left as it was
    assert app.roles[0].workspace == str(folders / "chef")


@pytest.mark.slow
def test_each_role_starts_where_its_code_is_in_containers(folders: Path, image: str) -> None:
    check("local_docker", dinner(folders, image))


@pytest.mark.parametrize("scheduler", ["slurm", "sge", "lsf", "ray"])
def test_folders_of_roles_on_clusters(folders: Path, scheduler: str) -> None:
    app = dinner(folders)
    app.roles[0].args = ["${img_root}/data"]
    cfg = {"ray": {"dashboard_address": "127.0.0.1:1"}, "sge": {"pe": "mpi"}}.get(scheduler, {})
    with get_runner("s") as runner:
        info = runner.dryrun(app, scheduler, cfg)
    assert info.shipment is not None
    assert {"chef/greet.sh", "guest/greet.sh"} <= {entry.path for entry in info.shipment.manifest.entries}
    assert info.app is not None
    chef = info.app.roles[0]
    assert (chef.entrypoint, chef.args[2:]) == ("sh", ["chef", "./greet.sh", "${img_root}/chef/data"])
    assert info.travels == f"{folders}/chef=chef,{folders}/guest=guest"


def test_one_workspace_named_by_all_is_the_working_directory(folders: Path) -> None:
    app = dinner(folders)
    app.roles[1].workspace = Workspace({str(folders / "chef"): ""})
    with get_runner("s") as runner:
        info = runner.dryrun(app, "local_cwd", {})
    assert info.app is not None
    assert info.app.roles[0].entrypoint == "./greet.sh"
    assert info.travels == str(folders / "chef")


def test_what_cannot_be_put_together_is_refused(folders: Path) -> None:
    with get_runner("s") as runner:
        app = dinner(folders)
        app.roles[1].workspace = Workspace({str(folders / "guest"): "", str(folders / "chef"): "lib"})
        with pytest.raises(ConfigError, match="chef is in more than one"):
            runner.dryrun(app, "local_cwd", {})
        app = dinner(folders, "busybox")
        (folders / "guest" / "Dockerfile.torchx").write_text("FROM x\n")
        with pytest.raises(ConfigError, match=r"role 'guest' has a workspace with a Dockerfile\.torchx"):
            runner.dryrun(app, "local_docker", {})
        app.roles[1].workspace = "@0123456789"
        with pytest.raises(ConfigError, match="the code of an earlier job"):
            runner.dryrun(app, "local_cwd", {})


class Kitchen(WorkspaceMixin[None], PluginScheduler[Mapping[str, Any]]):
    """A scheduler of 2026, which builds the workspace of each role."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Any]:
        return AppDryRunInfo([role.image for role in app.roles], repr)

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        role.image = f"built of {workspace}"

    def _validate(self, app: AppDef, scheduler: str, cfg: Any = None) -> None:
        pass

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        return "id"

    def describe(self, app_id: str) -> None:
        return None

    def list(self, cfg: Any = None) -> list[ListAppResponse]:
        return []


def test_a_plugin_builds_the_workspaces_of_roles_itself(folders: Path) -> None:
    with Runner("s", {"kitchen": lambda session_name, **_: Kitchen("kitchen", session_name)}) as runner:
        info = runner.dryrun(dinner(folders), "kitchen", {})
    assert info.request == [f"built of {folders / 'chef'}", f"built of {folders / 'guest'}", ""]
