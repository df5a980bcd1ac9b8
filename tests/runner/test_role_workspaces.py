"""Workspaces that roles name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shunter.compat.plugin_scheduler import PluginScheduler
from shunter.errors import ConfigError
from shunter.runner import Runner, get_runner
from shunter.schedulers.responses import ListAppResponse
from shunter.specs import AppDef, AppDryRunInfo, Role, Workspace
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


def test_one_workspace_named_by_all_is_the_working_directory(folders: Path) -> None:
    app = dinner(folders)
    app.roles[1].workspace = Workspace({str(folders / "chef"): ""})
    with get_runner("s") as runner:
        info = runner.dryrun(app, "local_cwd", {})
    assert info.app is not None
    assert info.app.roles[0].entrypoint == "./greet.sh"
    assert info.travels == str(folders / "chef")


def test_different_workspaces_are_refused(folders: Path) -> None:
    with (
        get_runner("s") as runner,
        pytest.raises(ConfigError, match=r"different workspaces: .*/chef; "),
    ):
        runner.dryrun(dinner(folders), "local_cwd", {})


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
