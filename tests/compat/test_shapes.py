"""The shapes that TorchX's users rely on."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path

import pytest

import shunter.compat.torchx  # noqa: F401
from shunter.compat.torchx_runner import TorchxRunner
from shunter.errors import ConfigError
from shunter.runner.api import Runner
from shunter.schedulers.responses import DescribeAppResponse
from shunter.specs import AppDef, AppState, AppStatus, Role, Workspace
from shunter.specs.status import ReplicaStatus, RoleStatus

import torchx  # isort: skip
from torchx import specs  # isort: skip


def test_a_status_is_a_dataclass_and_writes_what_torchx_wrote() -> None:
    replica = specs.ReplicaStatus(0, AppState.FAILED, "a", "host")
    status = specs.AppStatus(AppState.FAILED, 2, "boo", roles=[specs.RoleStatus("a", [replica])])
    assert dataclasses.replace(status, msg="other").msg == "other"
    assert dataclasses.asdict(status)["roles"][0]["replicas"][0]["hostname"] == "host"
    assert status == AppStatus(AppState.FAILED, 2, "boo", roles=[RoleStatus("a", [replica])])
    assert replica == ReplicaStatus(0, AppState.FAILED, "a", "host")
    with pytest.raises(TypeError):
        hash(status)
    assert status.to_json(filter_roles=["a"]) == {
        "state": "FAILED",
        "num_restarts": 2,
        "roles": [
            {
                "role": "a",
                "replicas": [
                    {
                        "id": 0,
                        "state": 5,
                        "role": "a",
                        "hostname": "host",
                        "structured_error_msg": "<NONE>",
                        "hostaddr": "host",
                    }
                ],
            }
        ],
        "msg": "boo",
        "structured_error_msg": "<NONE>",
        "url": None,
    }
    assert status.format().splitlines()[:5] == [
        "AppStatus:",
        "    State: FAILED",
        "    Num Restarts: 2",
        "    Roles: ",
        " *a[0]:FAILED (no reply file)",
    ]
    with pytest.raises(specs.api.AppStatusError) as raised:
        status.raise_for_status()
    assert raised.value.status is status


def test_an_error_file_is_unfolded_in_the_text() -> None:
    error = json.dumps({"message": {"message": "bang", "errorCode": 3, "extraInfo": {"timestamp": "17"}}})
    replica = specs.ReplicaStatus(1, AppState.FAILED, "a", "host", error)
    text = specs.AppStatus(AppState.FAILED, roles=[specs.RoleStatus("a", [replica])]).format()
    assert "  a[1]:FAILED (exitcode: 3)" in text
    assert "        error_msg: bang" in text


def test_rows_of_a_list_are_equal_by_job_and_state() -> None:
    row = torchx.schedulers.api.ListAppResponse
    assert len({row("a", AppState.RUNNING), row("a", AppState.RUNNING), row("a", AppState.FAILED)}) == 2
    described = torchx.schedulers.api.DescribeAppResponse(app_id="a")
    assert dataclasses.replace(described, state=AppState.RUNNING).state is AppState.RUNNING


def test_a_handle_is_a_tuple() -> None:
    handle = specs.parse_app_handle("local_cwd://torchx/a-1")
    assert handle == ("local_cwd", "torchx", "a-1")
    assert (handle[2], handle.app_id) == ("a-1", "a-1")
    with pytest.raises(specs.MalformedAppHandleException):
        specs.parse_app_handle("nonsense")


def test_a_workspace_is_a_dataclass() -> None:
    workspace = specs.Workspace(projects={"/a": "b"})
    assert dataclasses.asdict(workspace) == {"projects": {"/a": "b"}}
    assert dataclasses.replace(workspace, projects={"/c": ""}) == Workspace({"/c": ""})
    assert {workspace: 1}[specs.Workspace({"/a": "b"})] == 1
    assert specs.Workspace.from_str("/c").is_unmapped_single_project()
    assert str(specs.Workspace({"/a": ""})) == "/a"
    assert str(specs.Workspace({"/a": "b", "/c": ""})) == "/a:b;/c"
    assert repr(specs.Workspace({"/a": "b"})) == "Workspace(projects={'/a': 'b'})"


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


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("aws_batch", "AWSBatchOpts"),
        ("docker", "DockerOpts"),
        ("kubernetes", "KubernetesOpts"),
        ("slurm", "SlurmOpts"),
    ],
)
def test_options_are_made_from_mappings_and_read_as_such(module: str, name: str) -> None:
    kind = getattr(getattr(torchx.schedulers, f"{module}_scheduler"), name)
    key = {"docker": "env", "slurm": "partition"}.get(module, "queue")
    made = kind({key: "q"})
    assert (made[key], made.get(key), getattr(made, key), made.get("nothing")) == ("q", "q", "q", None)
    assert made == kind(**{key: "q"}) == kind.from_cfg({key: "q", "unknown": 1})
    assert key in dict(made)
    assert kind.as_runopts().get(key) is not None
    with pytest.raises(TypeError, match="no option 'unknown'"):
        kind(unknown=1)


def test_a_scheduler_takes_such_options() -> None:
    opts = torchx.schedulers.local_scheduler.LocalOpts({"prepend_cwd": True})
    with torchx.runner.get_runner() as runner:
        info = runner.dryrun(AppDef("a", [Role("r", "", entrypoint="true")]), "local_cwd", opts)
        assert info.cfg["prepend_cwd"] is True
        assert runner.run(AppDef("a", [Role("r", "", entrypoint="true")]), "local_cwd", dryrun=True).app_id


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


def test_factories_of_schedulers() -> None:
    factories = torchx.schedulers.get_scheduler_factories()
    assert next(iter(factories)) == torchx.schedulers.get_default_scheduler_name() == "local_docker"
    assert torchx.schedulers.get_scheduler_factories(group="torchx.schedulers", skip_defaults=True) == {}
    assert factories["local_cwd"]("session").session_name == "session"


def test_events_have_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    events = torchx.runner.events
    with events.log_event("api", "local_cwd", runcfg="{}") as context:
        context._torchx_event.app_id = "a-1"
    event = context._torchx_event
    assert (event.api, event.scheduler, event.app_id, event.runcfg) == ("api", "local_cwd", "a-1", "{}")
    assert event.wall_time_usec is not None
    assert events.api.TorchxEvent.deserialize(event.serialize()) == event
    with pytest.raises(ZeroDivisionError), events.log_event("api") as context:
        _ = 1 / 0
    assert context._torchx_event.exception_type == "ZeroDivisionError"
    assert isinstance(events.get_logging_handler("console"), logging.StreamHandler)
    with pytest.raises(KeyError):
        events.get_logging_handler("nowhere")


def test_schedulers_that_are_gone_say_what_to_use() -> None:
    for name in ("gcp_batch", "kubernetes_mcad"):
        module = getattr(torchx.schedulers, f"{name}_scheduler")
        with pytest.raises(ConfigError, match=f"there is no scheduler '{name}'"):
            module.create_scheduler("session")


def test_roles_with_a_workspace() -> None:
    with torchx.runner.get_runner() as runner:
        roles = [Role(name, "", entrypoint="true", workspace=specs.Workspace({".": ""})) for name in "ab"]
        assert runner.dryrun(AppDef("job", roles), "local_cwd").travels == "."
