"""The shapes that TorchX's users rely on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import shunter.compat.torchx  # noqa: F401
from shunter.compat.runner.api import TorchxRunner
from shunter.runner.api import Runner
from shunter.schedulers.responses import DescribeAppResponse
from shunter.specs import AppDef, AppState, Role, Workspace
from shunter.specs.status import ReplicaStatus, RoleStatus

import torchx  # isort: skip
from torchx import specs  # isort: skip


def test_a_handle_is_a_tuple() -> None:
    handle = specs.parse_app_handle("local_cwd://torchx/a-1")
    assert handle == ("local_cwd", "torchx", "a-1")
    assert (handle[2], handle.app_id) == ("a-1", "a-1")
    with pytest.raises(specs.MalformedAppHandleException):
        specs.parse_app_handle("nonsense")


def test_a_workspace_of_several_projects_is_recorded_so_that_it_can_be_read(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    workspace = specs.Workspace({str(tmp_path / "a"): "", str(tmp_path / "b"): "there"})
    with TorchxRunner("s") as runner:
        role = Role("r", "", entrypoint="cat", args=["file", "there/file"])
        info = runner.dryrun(AppDef("job", [role]), "local_cwd", workspace=workspace)
        assert Workspace.from_str(info.travels) == workspace
        handle = runner.schedule(info)
        assert runner.wait(handle, 0.1).state == specs.AppState.SUCCEEDED
        assert "".join(runner.log_lines(handle, "r")) == "ab"


def test_a_workspace_is_merged_into_a_folder(tmp_path) -> None:
    (tmp_path / "a" / "sub").mkdir(parents=True)
    (tmp_path / "a" / "sub" / "one").write_text("1")
    specs.Workspace({str(tmp_path / "a"): "there"}).merge_into(str(tmp_path / "out"))
    assert (tmp_path / "out" / "there" / "sub" / "one").read_text() == "1"


def test_keys_of_capabilities_and_metadata() -> None:
    bandwidth: Any = specs.CapabilityKey("aws", "bandwidth", int)
    resource = specs.Resource(cpu=1, gpu=0, memMB=1)
    assert bandwidth.get(resource) is None
    bandwidth.set(resource, 400)
    assert (resource.capabilities, bandwidth.get(resource)) == ({"aws.bandwidth": 400}, 400)
    for wrong, kind in (("400", "str"), (True, "bool")):
        resource.capabilities["aws.bandwidth"] = wrong
        with pytest.raises(TypeError, match=f"aws.bandwidth: expected `int`, got `{kind}`"):
            bandwidth.get(resource)
    found = (specs.TORCHX_CONTEXT_NAME, specs.NA, specs.UNKNOWN, specs.app_metadata.CONTEXT)
    assert found == ("TORCHX_CONTEXT_NAME", "<<NA>>", "<UNKNOWN>", "torchx/context")


class _Options(torchx.schedulers.api.StructuredOpts):
    job_queue: str
    """Where jobs wait."""
    mail: str | None = dataclasses.field(default=None, metadata={"cfg_key": "mail-user"})


def test_structured_options() -> None:
    options = dataclasses.dataclass(_Options)
    made = options.from_cfg({"jobQueue": "q", "mail-user": "me"})
    assert (made.job_queue, made.mail, made["jobQueue"], made.get("none")) == ("q", "me", "q", None)
    declared = options.as_runopts()
    assert [(name, opt.is_required, opt.help) for name, opt in declared] == [
        ("job_queue", True, "Where jobs wait."),
        ("mail-user", False, ""),
    ]


def test_options_are_cast_and_checked() -> None:
    option = specs.runopt(None, list[str], False, "help")
    assert option.cast_to_type("a,b") == ["a", "b"]
    assert option.is_type_list_of_str
    assert not option.is_type_dict_of_str
    assert specs.runopts.is_type(1, int)
    assert not specs.runopts.is_type("1", int)


def test_exceptions_are_made_as_in_torchx() -> None:
    assert "h" in str(specs.UnknownAppException("h"))
    assert "s" in str(specs.UnknownSchedulerException("s"))
    wrong = specs.InvalidRunConfigException("reason", "key", {"key": 1})
    assert (wrong.cfg_key, wrong.args[0]) == ("key", "reason")
    assert "FAILED" in str(specs.api.AppStatusError(specs.AppStatus(AppState.FAILED)))


@pytest.mark.parametrize(
    ("ours", "theirs"), [("UNREACHABLE", "UNKNOWN"), ("SUSPENDED", "PENDING"), ("RUNNING", "RUNNING")]
)
def test_states_that_torchx_does_not_know(ours: str, theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = ReplicaStatus(0, AppState[ours], "r")
    answer = DescribeAppResponse("a", AppState[ours], roles_statuses=[RoleStatus("r", [replica])]).to_status()
    monkeypatch.setattr(Runner, "status", lambda self, handle, **more: answer)
    status = torchx.runner.get_runner().status("local_cwd://torchx/a")
    assert (status.state.name, status.roles[0].replicas[0].state.name) == (theirs, theirs)


def test_roles_with_a_workspace() -> None:
    with torchx.runner.get_runner() as runner:
        roles = [Role(name, "", entrypoint="true", workspace=specs.Workspace({".": ""})) for name in "ab"]
        assert runner.dryrun(AppDef("job", roles), "local_cwd").travels == "."
