"""What tests and plugins of TorchX's users rely on: replaced names, texts of states, events, helpers."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import MagicMock, patch

import pytest

import shunter.compat.torchx.cli.argparse_util as argparse_util
import shunter.compat.torchx.cli.cmd_log as cmd_log
import shunter.compat.torchx.components.dist as dist
import shunter.compat.torchx.distributed as distributed
import shunter.compat.torchx.plugins._registry as registries
import shunter.compat.torchx.runner as torchx_runner
import shunter.compat.torchx.runner.api as runner_api
import shunter.compat.torchx.runner.events as runner_events
import shunter.compat.torchx.runner.events.api as events_api
import shunter.compat.torchx.schedulers as schedulers
import shunter.compat.torchx.specs as specs
import shunter.compat.torchx.specs.builders as builders
import shunter.compat.torchx.util.datetime as util_datetime
import shunter.compat.torchx.util.entrypoints as entrypoints
import shunter.compat.torchx.util.io as util_io
import shunter.compat.torchx.util.modules as modules
import shunter.compat.torchx.util.shlex as util_shlex
import shunter.compat.torchx.util.strings as strings
import shunter.compat.torchx.util.types as util_types
import shunter.compat.torchx.version as version
import shunter.compat.version as our_version
from shunter.compat.torchx.test.fixtures import TestWithTmpDir as WithTmpDir
from shunter.runner import events

STATE = {"id": 0, "state": 5, "role": "worker", "hostname": "host"}


def runner_of(scheduler: Any, name: str = "mocked") -> Any:
    return torchx_runner.Runner("session", {name: lambda session, **_: scheduler})


def job() -> Any:
    resource = specs.Resource(cpu=1, gpu=0, memMB=1024)
    return specs.AppDef("a", [specs.Role("r", "img", resource=resource, entrypoint="echo", args=["hi"])])


# ---- names that are replaced


def test_a_replaced_name_is_replaced_where_our_code_reads_it() -> None:
    mock = MagicMock()
    factories = {"only": lambda *_, **__: mock}
    place = "shunter.compat.torchx.runner.api"
    for _ in range(2):  # the first time, the name has not been looked up yet
        with (
            patch(f"{place}.get_scheduler_factories", return_value=factories),
            torchx_runner.get_runner() as runner,
        ):
            assert runner.scheduler_backends() == ["only"]
        with torchx_runner.get_runner() as runner:
            assert "local_cwd" in runner.scheduler_backends()
    with patch.object(runner_api, "get_configured_trackers", return_value={"mine": "file.conf"}):
        with runner_of(mock) as runner:
            runner.dryrun(job(), "mocked")
        env = mock.submit_dryrun.call_args.args[0].roles[0].env
        assert (env["TORCHX_TRACKERS"], env["TORCHX_TRACKER_MINE_CONFIG"]) == ("mine", "file.conf")


def test_a_name_that_stands_in_a_module_of_ours_is_replaced_too() -> None:
    assert distributed.is_local_rank0()
    with patch("shunter.compat.torchx.distributed.local_rank", return_value=2):
        assert not distributed.is_local_rank0()
    assert distributed.is_local_rank0()


def test_a_name_that_is_found_out_at_each_use_is_so_after_it_was_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = version.TORCHX_IMAGE
    with patch.object(version, "TORCHX_IMAGE", "mine"):
        assert (version.TORCHX_IMAGE, our_version.TORCHX_IMAGE) == ("mine", "mine")
    assert before == version.TORCHX_IMAGE
    monkeypatch.setattr(our_version, "default_image", lambda: "other")
    assert version.TORCHX_IMAGE == "other"


# ---- schedulers


def test_the_default_scheduler_is_torchx_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert schedulers.get_default_scheduler_name() == "local_docker"
    names = list(schedulers.get_scheduler_factories())
    assert names[:3] == ["local_docker", "local_cwd", "slurm"]
    assert "sge" in names
    assert "local_cwd" not in schedulers.get_scheduler_factories(skip_defaults=True)


# ---- events


def _fail(call: Any) -> None:
    call._torchx_event.app_id = "id"
    raise ValueError("wrong")


def test_an_event_is_timed_recorded_and_given_to_receivers_of_ours() -> None:
    received: list[events.Event] = []
    events.add_handler(received.append)
    try:
        with pytest.raises(ValueError, match="wrong"), runner_events.log_event("run", "slurm") as call:
            _fail(call)
    finally:
        events.remove_handler(received.append)
    (event,) = received
    assert (event.api, event.scheduler, event.app_id) == ("run", "slurm", "id")
    assert (event.exception_type, event.exception_message) == ("ValueError", "wrong")
    assert event.session == runner_events.get_session_id_or_create_new()
    assert "Traceback" in (event.raw_exception or "")


def test_the_function_that_records_events_may_be_replaced() -> None:
    with patch.object(runner_events, "record") as record, runner_events.log_event("run", workspace="w"):
        pass
    (event,) = record.call_args.args
    assert (event.api, event.workspace, event.source) == ("run", "w", events_api.SourceType.UNKNOWN)
    assert events_api.TorchxEvent.deserialize(event.serialize()) == event
    assert json.loads(str(event))["api"] == "run"


def test_handlers_of_events() -> None:
    assert isinstance(runner_events.get_logging_handler(), logging.NullHandler)
    assert isinstance(runner_events.get_logging_handler("console"), logging.StreamHandler)
    mine = logging.NullHandler()
    point = MagicMock(load=lambda: mine)
    point.name = "mine"
    with patch("shunter.compat.runner.events.entry_points", return_value=[point]):
        assert runner_events.get_logging_handler("mine") is mine
        with pytest.raises(KeyError):
            runner_events.get_logging_handler("other")


# ---- states


def failed(error: str) -> Any:
    replica = specs.ReplicaStatus(
        id=0, state=specs.AppState.FAILED, role="worker", hostname="host", structured_error_msg=error
    )
    return specs.AppStatus(specs.AppState.RUNNING, roles=[specs.RoleStatus("worker", [replica])])


def test_a_state_is_written_as_yaml() -> None:
    status = specs.AppStatus(specs.AppState.FAILED, structured_error_msg='{"message": "x y"}')
    assert repr(status) == (
        "AppStatus:\n  msg: ''\n  num_restarts: 0\n  roles: []\n  state: FAILED (5)\n"
        "  structured_error_msg:\n    message: x y\n  ui_url: null\n"
    )
    shown = repr(failed("killed by signal 9"))
    assert "  roles:\n  - replicas:\n    - hostname: host\n      id: 0\n" in shown
    assert "      state: FAILED (5)\n      structured_error_msg: killed by signal 9\n" in shown
    with pytest.raises(specs.AppStatusError, match=r"(?s)job did not succeed:.*FAILED"):
        status.raise_for_status()
    specs.AppStatus(specs.AppState.SUCCEEDED).raise_for_status()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            '{"message":{"message":"e","errorCode":-1,"extraInfo":{"timestamp":1293182}}}',
            "worker[0]:FAILED (exitcode: -1) timestamp: 1970-01-1",
        ),
        ('{"message": "e"}', "(exitcode: <N/A>) timestamp: <N/A> hostname: host error_msg: e "),
        ("<NONE>", "*worker[0]:FAILED (no reply file) "),
    ],
)
def test_errors_of_replicas(error: str, shown: str) -> None:
    assert shown in " ".join(failed(error).format().split())


def test_a_state_as_json_has_numbers_for_replicas() -> None:
    document = failed("e").to_json()
    assert (document["state"], document["url"]) == ("RUNNING", None)
    assert document["roles"] == [
        {"role": "worker", "replicas": [{**STATE, "structured_error_msg": "e"}]},
    ]
    assert failed("e").to_json(["other"])["roles"] == []
    assert "worker" not in failed("e").format(["other"])


def test_a_runner_answers_with_such_a_state() -> None:
    mock = MagicMock()
    mock.describe.return_value = schedulers.api.DescribeAppResponse(state=specs.AppState.SUCCEEDED)
    with runner_of(mock) as runner:
        status = runner.status("mocked://session/id")
    assert isinstance(status, specs.AppStatus)
    assert repr(status).startswith("AppStatus:\n  msg: <NONE>\n")


# ---- components


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        ([], 2, "missing: --aa"),
        (["--a", "x", "--z", "1"], 2, "unknown option --z"),
        (["--help"], 0, "a text"),
    ],
)
def test_arguments_that_do_not_fit_end_the_program_as_argparse_does(
    args: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fn(aa: str) -> Any:
        """Make a job.

        Args:
            aa: a text
        """
        return specs.AppDef(aa)

    for make in (builders.materialize_appdef, builders.component_args_from_str, specs.materialize_appdef):
        with pytest.raises(SystemExit) as ended:
            make(fn, args)
        assert ended.value.code == code
        shown = capsys.readouterr()
        assert text in (shown.err if code else shown.out)


def test_a_component_s_missing_arguments_end_the_program_and_are_an_error_of_values() -> None:
    with torchx_runner.get_runner() as runner:
        for expected in (SystemExit, ValueError):
            with pytest.raises(expected, match="missing: --file"):
                runner.run_component("utils.touch", [], "local_cwd")


def test_helpers_of_ddp() -> None:
    assert dist.parse_nnodes("1:2x3") == (1, 2, 3, "1:2")
    assert (dist.get_role_name("a/b.py", None), dist.get_role_name(None, "a.b")) == ("b", "b")
    with pytest.raises(ValueError, match="neither is given"):
        dist.get_role_name(None, None)


# ---- command line


def test_actions_of_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".torchxconfig").write_text("[cli:run]\nworkspace = /w\n")
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--workspace", action=argparse_util.torchxconfig_run, required=True)
    parser.add_argument("--once", action=argparse_util.ArgOnceAction)
    assert parser.parse_args(["--once", "1"]) == argparse.Namespace(workspace="/w", once="1")
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", action=argparse_util.ArgOnceAction)
    with pytest.raises(SystemExit):
        parser.parse_args(["--once", "1", "--once", "2"])


def test_helpers_of_log(capsys: pytest.CaptureFixture[str]) -> None:
    app = specs.AppDef("a", [specs.Role("r", "", num_replicas=2), specs.Role("s", "")])
    assert cmd_log.find_role_replicas(app, None) == [("r", 0), ("r", 1), ("s", 0)]
    assert cmd_log.find_role_replicas(app, "s") == [("s", 0)]
    assert cmd_log._prefix_line("p ", "a\nb\n") == "p a\np b\n"
    cmd_log.validate("slurm:///id/r/0,1")
    with pytest.raises(SystemExit):
        cmd_log.validate("id")
    assert "is not of the form" in capsys.readouterr().err


# ---- small helpers


def test_a_test_with_a_directory() -> None:
    class Case(WithTmpDir):  # type: ignore[misc, valid-type]
        def runTest(self) -> None:
            self.write("a/b.txt", ["1\n", "2"])
            script = self.write_shell_script("bin/x.sh", ["echo $1"])
            assert self.read("a/b.txt") == ["1\n", "2"]
            assert os.access(script, os.X_OK)
            self.create_dir_tree("tree", {"c": {"d.txt": "3"}, "e": {}})
            self.assertDirTree("tree", {"c": {"d.txt": "3"}, "e": {}})
            self.assertDirIsEmpty("tree/e")
            with pytest.raises(AssertionError):
                self.assertDirTree("tree", {"c": {}})
            seen.append(self.touch("f"))

    seen: list[Path] = []
    result = Case().run()
    assert result is not None
    assert not result.failures + result.errors
    assert not seen[0].parent.exists()


def test_helpers_of_util(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert util_types.decode("a,b", Annotated[list[str], "-l"]) == ["a", "b"]
    assert strings.normalize_str("-My_Name 1") == "myname1"
    assert util_shlex.join(["a", "b c"]) == "a 'b c'"
    monkeypatch.setattr("time.time", lambda: 100_000.5)
    assert util_datetime.get_past_epoch_time(1) == 13_600_500
    assert modules.load_module("os.path:join") is os.path.join
    assert modules.load_module("no.such.module") is None
    (tmp_path / "conf").write_text("text")
    assert util_io.read_conf_file(str(tmp_path / "conf")) == "text"


def test_groups_of_entry_points_that_a_test_puts_in_place() -> None:
    offered = EntryPoints(
        [EntryPoint("one", "os.path:join", "a.group"), EntryPoint("two", "os.path", "b.group")]
    )
    with patch.object(entrypoints.metadata, "entry_points", return_value=offered):
        assert entrypoints.load("a.group", "one") is os.path.join
        assert list(entrypoints.load_group("a.group")) == ["one"]
        assert entrypoints.load_group("b.group")["two"]("ignored") is os.path
        assert entrypoints.load_group("c.group") is None


# ---- the registry of plugins


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    package = tmp_path / "torchx_plugins" / "schedulers"
    (package / "cloud").mkdir(parents=True)
    (package / "cloud" / "pods.py").write_text(
        "from torchx.plugins import register\n@register.scheduler()\ndef pods(session, **_): return session\n"
    )
    (package / "lost.py").write_text("raise RuntimeError('lost: no way')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield registries.PluginRegistry(plugin_sources=registries.PluginSource.NAMESPACE_PKG)
    for name in [name for name in sys.modules if name.startswith("torchx_plugins")]:
        del sys.modules[name]


def test_the_registry_lists_plugins_and_those_that_cannot_be_used(namespace: Any) -> None:
    assert namespace.get(registries.PluginType.SCHEDULER)["pods"]("mine") == "mine"
    document = namespace.to_dict()
    assert {"name": "pods", "module": "torchx_plugins.schedulers.cloud.pods"} in document["scheduler"]
    (error,) = document["errors"]
    assert error["error"] == "RuntimeError: lost: no way"
    namespace.clear()
    (failed,) = namespace.load_errors(registries.PluginType.SCHEDULER)
    assert (failed.error, namespace.load_errors(registries.PluginType.TRACKER)) == (error["error"], [])
    assert registries.registry() is registries.registry()
