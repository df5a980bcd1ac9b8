"""What tests of TorchX's users rely on: replaced names, schedulers that are mocks, helpers, texts.

Each test says what a test of TorchX's own suite expects, in our words.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import inspect
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, EntryPoints
from io import BytesIO, StringIO
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import MagicMock, patch

import pytest

import shunter.compat.torchx.cli.cmd_log as cmd_log
import shunter.compat.torchx.cli.cmd_run as cmd_run
import shunter.compat.torchx.distributed as distributed
import shunter.compat.torchx.plugins as plugin_decorators
import shunter.compat.torchx.plugins._registry as registries
import shunter.compat.torchx.runner as torchx_runner
import shunter.compat.torchx.runner.api as runner_api
import shunter.compat.torchx.runner.config as runner_config
import shunter.compat.torchx.runner.events as runner_events
import shunter.compat.torchx.schedulers.api as schedulers
import shunter.compat.torchx.schedulers.docker_scheduler as docker
import shunter.compat.torchx.schedulers.local_scheduler as local
import shunter.compat.torchx.schedulers.streams as streams
import shunter.compat.torchx.specs.api as specs
import shunter.compat.torchx.specs.builders as builders
import shunter.compat.torchx.specs.file_linter as file_linter
import shunter.compat.torchx.specs.finder as finder
import shunter.compat.torchx.util.entrypoints as entrypoints
import shunter.compat.torchx.util.types as util_types
from shunter import plugins
from shunter.cli import main
from shunter.compat import torchx_slurm as slurm
from shunter.compat.torchx.test.fixtures import TestWithTmpDir as WithTmpDir
from shunter.compat.torchx.workspace import WorkspaceMixin
from shunter.compat.torchx.workspace.dir_workspace import DirWorkspaceMixin
from shunter.compat.torchx.workspace.docker_workspace import DockerWorkspaceMixin

SMALL = specs.Resource(cpu=1, gpu=0, memMB=1024)


def echo(name: str = "echo", image: str = "img", **more: Any) -> Any:
    return specs.Role(name=name, image=image, resource=SMALL, entrypoint="echo", args=["hi"], **more)


@pytest.fixture(autouse=True)
def london(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "Europe/London")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def runner_of(scheduler: Any, name: str = "mocked") -> Any:
    return torchx_runner.Runner("session", {name: lambda session, **_: scheduler})


# ---- schedulers that are mocks


def test_a_mock_is_asked_as_a_scheduler_of_torchx_is() -> None:
    mock = MagicMock()
    mock.run_opts.return_value.resolve.return_value = {"foo": "bar"}
    with runner_of(mock) as runner:
        app = specs.AppDef("name", [echo()])
        runner.dryrun(app, "mocked", cfg={})
        made, cfg = mock.submit_dryrun.call_args.args
        assert (made.name, cfg) == ("name", {"foo": "bar"})
        assert made.roles[0].env["TORCHX_JOB_ID"] == "mocked://session/${app_id}"
        mock._validate.assert_called_once()
        mock.schedule.return_value = "id"
        handle = runner.run(app, "mocked")
        assert handle == "mocked://session/id"
        assert runner.describe(handle) == app
        mock.describe.return_value = schedulers.DescribeAppResponse(ui_url="https://x")
        assert runner.status(handle).ui_url == "https://x"
        mock.list.return_value = [schedulers.ListAppResponse(app_id="a", state=specs.AppState.RUNNING)]
        assert [row.app_handle for row in runner.list("mocked")] == ["mocked://session/a"]
        mock.log_iter.return_value = iter(["one", "two\n"])
        assert list(runner.log_lines(handle, "echo", 2, "QPS.*")) == ["one", "two\n"]
        mock.log_iter.assert_called_once_with("id", "echo", 2, "QPS.*", None, None, False, streams=None)
    mock.close.assert_called_once()


def test_options_of_a_mock_are_read() -> None:
    mock, options = MagicMock(), specs.runopts()
    options.add("foo", type_=str, default="", help="")
    options.add("items", type_=list[str], default=[], help="")
    mock.run_opts.return_value = options
    with runner_of(mock) as runner:
        assert runner.cfg_from_str("mocked", "foo=bar", "items=a;b") == {"foo": "bar", "items": ["a", "b"]}


def test_what_does_not_exist_is_no_error_but_in_logs() -> None:
    mock = MagicMock()
    mock.describe.return_value = None
    mock.exists.return_value = False
    with runner_of(mock) as runner:
        handle = "mocked://session/unknown"
        assert (runner.status(handle), runner.wait(handle, wait_interval=0.1)) == (None, None)
        assert [runner.cancel(handle), runner.stop(handle), runner.delete(handle)] == [None] * 3
        with pytest.raises(specs.UnknownAppException):
            runner.log_lines(handle, "trainer")


class Builder(WorkspaceMixin, schedulers.Scheduler):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("builder", "session")

    def schedule(self, dryrun_info: Any) -> str:
        return "id"

    def _submit_dryrun(self, app: Any, cfg: Any) -> Any:
        return specs.AppDryRunInfo(app, repr)

    def describe(self, app_id: str) -> None:
        return None

    def build_workspace_and_update_role(self, role: Any, workspace: str, cfg: Any) -> None:
        role.image, role.env["SOURCE"] = f"{role.image}_new", workspace


@pytest.mark.parametrize(
    ("given", "own", "built"),
    [
        ("//w", (None, None), ["//w", None]),
        ("//w", ("//a", None), ["//w", None]),
        ("//w", ("//a", "//b"), ["//w", "//b"]),
        (None, ("//a", "//b"), ["//a", "//b"]),
        (None, (None, "//b"), [None, "//b"]),
    ],
)
def test_the_workspace_that_is_given_is_the_first_role_s(given: Any, own: Any, built: list[Any]) -> None:
    roles = [
        echo(f"r{index}", workspace=each and specs.Workspace.from_str(each)) for index, each in enumerate(own)
    ]
    with runner_of(Builder(), "builder") as runner:
        made = runner.dryrun(specs.AppDef("a", roles), "builder", workspace=given).request
    assert [role.env.get("SOURCE") for role in made.roles] == built
    assert [role.image for role in made.roles] == ["img_new" if each else "img" for each in built]


def test_a_scheduler_submits_what_it_does_not_validate() -> None:
    app = specs.AppDef("a", [specs.Role("r", "img", entrypoint="x")])
    assert Builder().submit(app, {}, workspace="//w") == "id"
    assert app.roles[0].image == "img_new"
    assert Builder().describe_native("id") is None


# ---- names that are replaced


def test_a_replaced_name_is_replaced_where_it_is_read(tmp_path: Path) -> None:
    mock = MagicMock()
    factories = {"only": lambda *_, **__: mock}
    with (
        patch.object(runner_api, "get_scheduler_factories", return_value=factories),
        torchx_runner.get_runner() as runner,
    ):
        assert runner.scheduler_backends() == ["only"]
    with torchx_runner.get_runner() as runner:
        assert "local_cwd" in runner.scheduler_backends()
    with patch.object(runner_api, "get_configured_trackers", return_value={"mine": "file.conf"}):
        with runner_of(mock) as runner:
            runner.dryrun(specs.AppDef("a", [echo()]), "mocked")
        env = mock.submit_dryrun.call_args.args[0].roles[0].env
        assert (env["TORCHX_TRACKERS"], env["TORCHX_TRACKER_MINE_CONFIG"]) == ("mine", "file.conf")
    (tmp_path / ".torchxconfig").touch()
    with patch.object(runner_config, "DEFAULT_CONFIG_DIRS", [str(tmp_path / "none"), str(tmp_path)]):
        assert runner_config.find_configs() == [str(tmp_path / ".torchxconfig")]
    assert str(tmp_path / ".torchxconfig") not in runner_config.find_configs()


def test_events_of_the_runner_are_recorded_as_torchx_s() -> None:
    mock = MagicMock()
    with patch.object(runner_events, "record") as record, runner_of(mock) as runner:
        runner.dryrun(specs.AppDef("a", [echo()]), "mocked")
    (event,) = [call.args[0] for call in record.call_args_list if call.args[0].api == "dryrun"]
    assert (event.scheduler, event.session) == ("mocked", runner_events.get_session_id_or_create_new())


def test_trackers_of_the_variables_go_to_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_TRACKERS", "one,two")
    monkeypatch.setenv("TORCHX_TRACKER_ONE_CONFIG", "x")
    mock = MagicMock()
    with runner_of(mock) as runner:
        runner.dryrun(specs.AppDef("a", [echo()]), "mocked")
    env = mock.submit_dryrun.call_args.args[0].roles[0].env
    assert {key: env[key] for key in env if key.startswith("TORCHX_TRACKER")} == {
        "TORCHX_TRACKERS": "one,two",
        "TORCHX_TRACKER_ONE_CONFIG": "x",
    }


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
    assert "structured_error_msg: killed by signal 9\n" in repr(
        specs.AppStatus(specs.AppState.FAILED, structured_error_msg="killed by signal 9")
    )
    shown = repr(failed("<NONE>"))
    assert "  roles:\n  - replicas:\n    - " in shown
    assert "      state: FAILED (5)\n" in shown
    with pytest.raises(specs.AppStatusError, match=r"(?s)job did not succeed:.*FAILED"):
        status.raise_for_status()
    specs.AppStatus(specs.AppState.SUCCEEDED).raise_for_status()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            '{"message":{"message":"e","errorCode":-1,"extraInfo":{"timestamp":1293182}}}',
            "(exitcode: -1) timestamp: 1970-01-16 00:13:02 hostname: host error_msg: e ",
        ),
        (
            '{"message": "e", "timestamp": 1293182, "errorCode": 1}',
            "(exitcode: 1) timestamp: 1970-01-16 00:13:02 hostname: host error_msg: e ",
        ),
        ('{"message": "e"}', "(exitcode: <N/A>) timestamp: <N/A> hostname: host error_msg: e "),
        ('["a", "b"]', 'error_msg: ["a", "b"] '),
        ('{"message": {"message": 5}}', 'error_msg: {"message": {"message": 5}} '),
        ('"text"', 'error_msg: "text" '),
    ],
)
def test_errors_of_replicas_of_every_layout(error: str, shown: str) -> None:
    assert shown in " ".join(failed(error).format().split())


# ---- options


@dataclass
class Inner(schedulers.StructuredOpts):  # type: ignore[misc]
    x: str | None = None
    """An x."""

    mail_user: str = field(default="me", metadata={"cfg_key": "mail-user"})
    """Whom to write to."""


@dataclass
class Outer(schedulers.StructuredOpts):  # type: ignore[misc]
    name: str
    inner_group: Inner = field(default_factory=Inner)
    other: Inner | None = None


def test_groups_of_options() -> None:
    options = Outer.as_runopts()
    keys = ["name", "inner_group.x", "inner_group.mail-user", "other.x", "other.mail-user"]
    assert [key for key, _ in options] == keys
    assert (options.get("inner_group.mail-user").default, options.get("name").is_required) == ("me", True)
    assert Outer.get_docstrings()["inner_group.x"] == "An x."
    made = Outer.from_cfg({"name": "n", "innerGroup.x": "b"})
    assert (made.inner_group, made.other) == (Inner(x="b"), None)
    assert list(made) == keys[:3]
    assert (len(made), made["innerGroup.x"], made.get("other.x"), "inner_group.z" in made) == (
        3,
        "b",
        None,
        False,
    )
    assert made | Inner(x="c") == {**dict(made), "x": "c", "mail-user": "me"}
    with pytest.raises(specs.InvalidRunConfigException, match="two spellings"):
        Outer.from_cfg({"name": "n", "inner_group.mailUser": "a", "inner_group.mail-user": "b"})


def test_names_of_options_in_camel_case(tmp_path: Path) -> None:
    options = specs.runopts()
    options.add("run_as", type_=str, help="who", required=True)
    options.add("env", type_=dict[str, str], help="variables", default=[])
    assert options.get("runAs") is options.get("run_as")
    assert options.resolve({"runAs": "me"}) == {"run_as": "me", "env": []}
    assert options.resolve({"runAs": "me", "run_as": "me", "odd": 1}, ignore_unknown=True)["odd"] == 1
    assert options.cfg_from_str("runAs=me") == {"run_as": "me"}
    assert options.cfg_from_json_repr('{"runAs": "me"}') == {"run_as": "me"}
    for read, text in (
        (options.resolve, {"runAs": "a", "run_as": "b"}),
        (options.cfg_from_str, "runAs=a,run_as=b"),
        (options.cfg_from_json_repr, '{"runAs": "a", "run_as": "b"}'),
    ):
        with pytest.raises(specs.InvalidRunConfigException, match=r"run_as.*two spellings"):
            read(text)
    with pytest.raises(specs.InvalidRunConfigException, match="no option 'odd'"):
        options.resolve({"run_as": "me", "odd": 1})
    cfg = {"prepend_cwd": True}
    runner_config.load("local_cwd", StringIO("[local_cwd]\nlogDir = /a\nprependCwd = False\n"), cfg)
    assert cfg == {"prepend_cwd": True, "log_dir": "/a"}
    with pytest.raises(specs.InvalidRunConfigException, match="two spellings"):
        runner_config.load("local_cwd", StringIO("[local_cwd]\nlogDir = /a\nlog_dir = /b\n"), {})


# ---- overrides of roles


def test_roles_that_share_their_overrides_share_the_values() -> None:
    calls: list[int] = []
    overrides: dict[str, Any] = {"image": lambda: calls.append(1) or "late"}  # type: ignore[func-returns-value]
    one, two = specs.Role("a", "early", overrides=overrides), specs.Role("b", "early", overrides=overrides)
    assert (one.image, two.image, one.image, len(calls)) == ("late", "late", "late", 1)
    assert overrides["image"]() == "late"
    one.image = "mine"
    assert (one.image, two.image) == ("mine", "late")


def test_a_value_of_a_role_is_found_out_by_means_of_another() -> None:
    overrides: dict[str, Any] = {"entrypoint": lambda: "main.py"}
    role = specs.Role("r", "early", overrides=overrides)
    overrides["image"] = lambda: f"for-{role.entrypoint}"
    assert role.image == "for-main.py"


def test_a_role_with_macros_substituted_shares_its_overrides() -> None:
    async def late() -> str:
        return "late"

    role = specs.Role("r", "early", args=["${app_id}"], overrides={"image": late()})
    values = specs.macros.Values(img_root="", app_id="a1", replica_id="0", rank0_env="")
    applied = values.apply(role)
    assert applied.overrides is role.overrides
    assert (applied.args, applied.image, role.image) == (["a1"], "late", "late")
    plain = specs.Role("p", "img")
    assert values.apply(plain).overrides is not plain.overrides


def test_overrides_within_an_event_loop() -> None:
    async def value() -> str:
        await asyncio.sleep(0)
        return "late"

    async def read(source: Any) -> str:
        return str(specs.Role("r", "early", overrides={"image": source}).image)

    assert asyncio.run(read(value())) == "late"


# ---- helpers


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


# ---- components


def test_defaults_of_other_names_have_no_effect() -> None:
    def fn(a: str, b: int = 1) -> Any:
        return specs.AppDef(f"{a}{b}")

    assert builders.materialize_appdef(fn, ["--a", "x"], {"b": "2", "worker": ["1"]}).name == "x2"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ([], 2, "missing: --aa"),
        (["--a", "x", "--z", "1"], 2, "unknown option --z"),
        (["--help"], 0, "a text"),
    ],
)
def test_arguments_that_do_not_fit_end_the_program_as_argparse_does(
    args: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fn(aa: str) -> Any:
        """Make a job.

        Args:
            aa: a text
        """
        return specs.AppDef(aa)

    for make in (builders.materialize_appdef, builders.component_args_from_str, builders.parse_args):
        with pytest.raises(SystemExit) as ended:
            make(fn, args)
        assert ended.value.code == code
        shown = capsys.readouterr()
        assert said in (shown.err if code else shown.out)


def test_a_component_s_missing_arguments_end_the_program_and_are_an_error_of_values() -> None:
    with torchx_runner.get_runner() as runner:
        for expected in (SystemExit, ValueError):
            with pytest.raises(expected, match="missing: --file"):
                runner.run_component("utils.touch", [], "local_cwd")


def test_a_scheduler_that_does_not_exist_is_a_missing_key() -> None:
    with torchx_runner.get_runner() as runner, pytest.raises(KeyError, match="there is no scheduler 'nope'"):
        runner.status("nope://s/a")


@pytest.mark.parametrize("text", ["FOO", "FOO,", "FOO;", "FOO=", "FOO=;BAR=v1"])
def test_pairs_without_a_value_do_not_parse(text: str) -> None:
    with pytest.raises(ValueError, match="FOO"):
        util_types.to_dict(text)
    assert util_types.to_dict("FOO='',BAR=v1") == {"FOO": "", "BAR": "v1"}


@pytest.mark.parametrize("size", [0, -1])
def test_the_local_scheduler_remembers_at_least_one_job(size: int) -> None:
    with pytest.raises(ValueError, match=f"greater than 0, not {size}"):
        local.create_scheduler("s", cache_size=size)


def test_the_types_of_arguments() -> None:
    def fn(i: Annotated[int, "-i"], o: int | None, b: bool) -> None: ...

    parameters = inspect.signature(fn, eval_str=True).parameters
    assert [util_types.get_argparse_param_type(parameters[name]) for name in "iob"] == [int, str, str]
    assert util_types.decode("a,b", Annotated[list[str], "-l"]) == ["a", "b"]


@pytest.mark.parametrize("mount", [["src=x"], ["blah=x"], ["type=bind"], ["type=odd"]])
def test_mounts_that_do_not_parse_raise_what_torchx_raises(mount: list[str]) -> None:
    for error in (KeyError, ValueError):
        with pytest.raises(error):
            builders.parse_mounts(mount)


def test_help_of_arguments() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--foo", type=int, required=True, help="foo")
    parser.add_argument("--bar", type=int, help="bar", default=1)
    formatter = file_linter.TorchXArgumentHelpFormatter(prog="x")
    assert [formatter._get_help_string(action) for action in parser._actions][1:] == [
        "foo (required)",
        "bar (default: 1)",
    ]


@pytest.mark.parametrize("module", ["gcp_batch_scheduler", "kubernetes_mcad_scheduler"])
def test_removed_schedulers_say_what_to_use(module: str) -> None:
    made = importlib.import_module(f"shunter.compat.torchx.schedulers.{module}")
    with pytest.raises(specs.UnknownSchedulerException, match=r"(?s)TorchX removed it.*[Kk]ubernetes"):
        made.create_scheduler("session")


@pytest.mark.parametrize(
    ("prepend", "path"), [(False, "/extra:/home/bob:IMAGE"), (True, "IMAGE:/extra:/home/bob")]
)
def test_the_path_of_local_processes(
    prepend: bool, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    scheduler = local.LocalScheduler("session", local.LocalDirectoryImageProvider, extra_paths=["/extra"])
    app = specs.AppDef(
        "a", [specs.Role("foo", str(tmp_path), entrypoint="x", args=["1"], env={"PATH": "/home/bob"})]
    )
    info = scheduler.submit_dryrun(app, {"prepend_cwd": prepend, "log_dir": str(tmp_path)})
    (param,) = info.request.role_params["foo"]
    expected = path.replace("IMAGE", str(tmp_path))
    assert (param.args, param.env["PATH"]) == (["x", "1"], expected)
    param.stdout = param.stderr = param.combined = None
    with patch("subprocess.Popen") as popen:
        scheduler._popen(role_name="foo", replica_id=0, replica_params=param)
    scheduler.close()
    assert popen.call_args.kwargs["env"]["PATH"] == f"{expected}:/bin:/usr/bin"


# ---- requests, helpers and log lines


def slurm_replica(**more: Any) -> Any:
    role = specs.Role("r", "/image", entrypoint="echo", args=["job ${app_id}", "it's $X"], **more)
    return slurm.SlurmReplicaRequest.from_role("r-0", role, {"partition": "p", "qos": None})


@pytest.mark.parametrize(
    ("version", "gpus"), [((24, 5), ["gpus-per-task=3", "ntasks=1"]), ((24, 11), ["gpus-per-node=3"])]
)
def test_a_replica_on_slurm(version: tuple[int, int], gpus: list[str]) -> None:
    with patch.object(slurm, "version", return_value=version):
        request = slurm_replica(resource=specs.Resource(cpu=2, gpu=3, memMB=10), env={"A": "b c"})
    group, step = request.materialize()
    wanted = [
        "job-name=r-0",
        "requeue",
        "partition=p",
        "ntasks-per-node=1",
        "cpus-per-task=2",
        "mem=10",
        *gpus,
    ]
    assert group == [f"--{option}" for option in wanted]
    assert shlex.split(" ".join(step)) == [
        "--output=slurm-$SLURM_JOB_ID-r-0.out",
        "--error=slurm-$SLURM_JOB_ID-r-0.err",
        "--wait=60",
        "--kill-on-bad-exit=1",
        "--export=ALL,A=b c",
        "echo",
        "job $SLURM_JOB_ID",
        "it's $X",
    ]


@pytest.mark.parametrize(
    ("exits", "restarts", "code", "calls"),
    [
        (0, "", 0, ["srun"]),
        (3, "", 9, ["srun", "scontrol requeue 7"]),
        (3, "1", 9, ["srun", "scontrol requeue 7"]),
        (3, "2", 3, ["srun"]),
    ],
)
def test_a_script_for_slurm(exits: int, restarts: str, code: int, calls: list[str], tmp_path: Path) -> None:
    replicas = {name: slurm_replica() for name in ("r-0", "r-1")}
    request = slurm.SlurmBatchRequest(["sbatch", "--parsable"], replicas, None, max_retries=2)
    script = request.materialize()
    assert [line.split()[1] for line in script.splitlines() if line.startswith("#SBATCH")] == [
        "--job-name=r-0",
        "hetjob",
        "--job-name=r-0",
    ]
    for name, exit_code in (("srun", exits), ("scontrol", 9)):
        words = '"$@"' if name == "scontrol" else ""
        (tmp_path / name).write_text(
            f"#!/bin/sh\necho {name} {words} >> {tmp_path}/calls\nexit {exit_code}\n"
        )
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": restarts}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, check=False)
    assert done.returncode == code
    assert (tmp_path / "calls").read_text().splitlines() == calls


def test_slurm_s_version_where_it_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.version() == (24, 5)


def test_a_tee_into_bytes_and_into_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    for out, expected in ((BytesIO(), b"one\n"), (StringIO(), "one\n")):
        tee = streams.Tee(out, str(tmp_path / "a"))
        tee.close()
        assert out.getvalue() == expected


def test_the_network_may_be_there_already() -> None:
    pytest.importorskip("docker")
    from docker.errors import APIError

    client = MagicMock()
    docker.ensure_network(client)
    client.networks.create.assert_called_once_with(name="torchx", driver="bridge", check_duplicate=True)
    client.networks.create.side_effect = APIError("network with name torchx already exists")
    docker.ensure_network(client)
    client.networks.create.side_effect = APIError("permission denied")
    with pytest.raises(APIError, match="permission denied"):
        docker.ensure_network(client)


def test_a_run_described_as_json_starts_in_the_current_directory() -> None:
    document = {"component_name": "utils.echo", "scheduler": "local_cwd", "scheduler_args": {}}
    assert cmd_run.torchx_run_args_from_json(document).workspace == os.getcwd()
    assert cmd_run.torchx_run_args_from_json({**document, "workspace": "/w"}).workspace == "/w"


def test_logs_are_awaited_by_the_runner_that_a_test_replaces(caplog: pytest.LogCaptureFixture) -> None:
    runner = MagicMock()
    states = (specs.AppState.PENDING, specs.AppState.PENDING, specs.AppState.RUNNING)
    runner.status.side_effect = [specs.AppStatus(state) for state in states]
    runner.describe.return_value = specs.AppDef("a", [echo("r", num_replicas=2)])
    runner.log_lines.side_effect = lambda *args, **more: iter(["a line\n"])
    out = StringIO()
    with (
        patch("shunter.compat.torchx.cli.cmd_log.get_runner", return_value=runner),
        caplog.at_level("INFO"),
    ):
        cmd_log.get_logs(out, "local_docker://s/a/r", regex=None)
    green, end = cmd_log.GREEN, cmd_log.ENDC
    assert sorted(out.getvalue().splitlines()) == [f"{green}r/{k}{end} a line" for k in (0, 1)]
    assert [r.getMessage() for r in caplog.records] == ["Waiting for local_docker://s/a to start"]


def test_main_in_a_program_whose_streams_take_text_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = StringIO(), StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(["run", "-s", "local_cwd", "--log", "utils.sh", "echo", "hello"]) == 0
        assert main(["log", out.getvalue().strip()]) == 0
    assert "sh/0 hello\n" in err.getvalue()
    assert out.getvalue().endswith("sh/0 hello\n")


# ---- options, components, workspaces


def test_options_are_of_a_type_as_python_has_it() -> None:
    is_type = specs.runopts.is_type
    assert is_type(True, int)
    assert not is_type(1, float)
    assert not is_type("1", int)
    assert is_type({"a": "b"}, dict[str, str])
    assert not is_type([1], list[str])
    assert not is_type(None, list[str])


def test_options_are_looked_at_by_torchx_s_name() -> None:
    options = specs.runopts()
    options.add("queue", str, "where to wait", default="all")
    assert list(options._opts) == ["queue"]


def test_answers_show_themselves_under_torchx_s_names() -> None:
    assert repr(schedulers.DescribeAppResponse(app_id="a")).startswith("DescribeAppResponse(app_id='a', ")
    assert repr(schedulers.ListAppResponse("a", specs.AppState.RUNNING)).startswith(
        "ListAppResponse(app_id='a'"
    )
    replica = specs.ReplicaStatus(0, specs.AppState.RUNNING, "r", "host")
    assert repr(specs.RoleStatus("r", [replica])).startswith(
        "RoleStatus(role='r', replicas=[ReplicaStatus(id=0, "
    )


def test_a_file_without_components_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.py"):
        finder.get_component(f"{tmp_path / 'none.py'}:train")
    with pytest.raises(finder.ComponentNotFoundException, match=r"none\.py"):
        runner_of(MagicMock()).run_component(f"{tmp_path / 'none.py'}:train", [], "mocked")


def test_docstrings_have_a_note_for_each_parameter() -> None:
    def described(a: str, b: int = 1) -> None:
        """What it does.

        Args:
            a: the first
        """

    def bare(c: str) -> None:
        pass

    assert file_linter.get_fn_docstring(described) == ("What it does.", {"a": "the first", "b": " "})
    text, notes = file_linter.get_fn_docstring(bare)
    assert text.startswith("bare ")
    assert notes == {"c": " "}


class NoUnderscore(file_linter.ComponentFunctionValidator):
    """Refuses names with an underscore."""

    def validate(self, app_specs_func_def: Any) -> Any:
        return [self._message(app_specs_func_def, "has an underscore")] * ("_" in app_specs_func_def.name)


def test_own_rules_for_components(tmp_path: Path) -> None:
    path = tmp_path / "ruled.py"
    path.write_text("from torchx.specs import AppDef\ndef a_b() -> AppDef: ...\ndef ab() -> AppDef: ...\n")
    rules = [NoUnderscore()]
    assert finder.get_component(f"{path}:a_b").fn_name == "a_b"
    assert finder.get_component(f"{path}:ab", rules).fn_name == "ab"
    with pytest.raises(finder.ComponentValidationException, match=r"ruled.py:2: has an underscore"):
        finder.get_component(f"{path}:a_b", rules)


def test_a_component_that_is_not_valid_is_listed_with_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ruled_team.py").write_text(
        "from torchx.specs import AppDef\ndef bad(x) -> AppDef: ...\ndef good() -> AppDef: ...\n"
    )
    (tmp_path / "team-1.dist-info").mkdir()
    (tmp_path / "team-1.dist-info" / "entry_points.txt").write_text(
        "[torchx.components]\nteam = ruled_team\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._entry_points_of_group.cache_clear()
    try:
        found = finder.get_components()
    finally:
        plugins._entry_points_of_group.cache_clear()
    assert found["team.good"].validation_errors == []
    (problem,) = found["team.bad"].validation_errors
    assert "the parameter 'x' has no type annotation" in problem
    with pytest.raises(finder.ComponentValidationException):
        found["team.bad"].fn()


def test_groups_of_entry_points_that_a_test_puts_in_place() -> None:
    offered = EntryPoints(
        [EntryPoint("one", "os.path:join", "a.group"), EntryPoint("two", "os.path", "b.group")]
    )
    with patch.object(entrypoints.metadata, "entry_points", return_value=offered):
        assert entrypoints.load("a.group", "one") is os.path.join
        assert list(entrypoints.load_group("a.group")) == ["one"]
        assert entrypoints.load_group("b.group")["two"]("ignored") is os.path
        assert entrypoints.load_group("c.group") is None


@patch.object(runner_api, "log_event")
def test_events_of_the_runner_s_module_can_be_replaced(log_event: MagicMock) -> None:
    assert runner_api.log_event is log_event


def test_a_workspace_in_lines_with_comments() -> None:
    text = "# what travels\n/a:\n\n/b/c: lib\n"
    assert specs.Workspace.from_str(text).projects == {"/a": "", "/b/c": "lib"}


def test_a_job_dir_leaves_out_what_torchxignore_names(tmp_path: Path) -> None:
    for name in ("data/a", "src/data/b", "notes.txt", "src/notes.txt", "src/job.py"):
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).touch()
    (tmp_path / "here" / ".torchxignore").write_text("    data\n    *.txt\n")
    role = specs.Role("r", "img")
    there = tmp_path / "there"
    DirWorkspaceMixin().build_workspace_and_update_role(role, str(tmp_path / "here"), {"job_dir": str(there)})
    copied = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert copied == {".torchxignore", "src/data/b", "src/job.py"}


def test_images_of_this_machine_get_the_name_of_the_repository() -> None:
    def job() -> Any:
        return specs.AppDef("job", [echo("a", "sha256:0a1b"), echo("b", "python:3")])

    mixin = DockerWorkspaceMixin()
    with pytest.raises(KeyError, match="image_repo"):
        mixin.dryrun_push_images(job(), {})
    app = job()
    pushed = mixin.dryrun_push_images(app, {"image_repo": "example.com/team"})
    assert pushed == {"sha256:0a1b": ("example.com/team", "0a1b")}
    assert [role.image for role in app.roles] == ["example.com/team:0a1b", "python:3"]


def test_a_name_of_a_module_that_is_served_whole_is_replaced_too() -> None:
    place = "shunter.compat.torchx.distributed.local_rank"
    assert distributed.is_local_rank0()
    with patch(place, return_value=2):
        assert not distributed.is_local_rank0()
    assert distributed.is_local_rank0()


@pytest.mark.parametrize("grouped", [False, True])
def test_a_group_without_torchrun_is_warned_of(
    grouped: bool, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    fake = MagicMock()
    fake.distributed.is_initialized.return_value = grouped
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "torch.distributed", fake.distributed)
    assert distributed.local_rank() == 0
    assert [str(each.message)[:21] for each in recwarn] == ["LOCAL_RANK is not set"] * grouped


# ---- plugins in packages of a namespace


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    package = tmp_path / "torchx_plugins"
    files = {
        "schedulers/cloud/pods.py": "@register.scheduler()\ndef pods(session, **_): return session\n",
        "schedulers/lost.py": "raise RuntimeError('lost: no way')\n",
        "named_resources/hosts.py": "@register.named_resource(aliases=['box'], fractionals={0.5: 'half'})\n"
        "def host(fractional=1.0): return Resource(cpu=int(4 * fractional), gpu=0, memMB=512)\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        head = "from torchx.plugins import register\nfrom torchx.specs import Resource\n"
        (package / name).write_text(head + text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield registries.PluginRegistry(plugin_sources=registries.PluginSource.NAMESPACE_PKG)
    for name in [name for name in sys.modules if name.startswith("torchx_plugins")]:
        del sys.modules[name]


def test_plugins_in_packages_below_the_namespace(namespace: Any) -> None:
    assert namespace.get(registries.PluginType.SCHEDULER)["pods"]("mine") == "mine"
    text = str(namespace)
    assert "module: torchx_plugins.schedulers.cloud.pods" in text
    assert 'error: "RuntimeError: lost: no way"' in text


def test_the_names_of_a_resource_are_in_its_module(namespace: Any) -> None:
    found = namespace.get(registries.PluginType.NAMED_RESOURCE)
    module = sys.modules["torchx_plugins.named_resources.hosts"]
    assert set(module.NAMED_RESOURCES) == {"host", "box", "host_half"} <= set(found)
    assert (module.box(), module.host_half().cpu) == (module.host(), 2)
    assert module.host_half._plugin_base_name == "host"
    with pytest.raises(ValueError, match="'host' twice"):
        plugin_decorators.register.named_resource()(inspect.unwrap(module.host))


@pytest.mark.parametrize(("group", "name"), [("", "utils.echo"), ("team", "team.utils.echo")])
def test_builtins_are_found_in_their_package(group: str, name: str) -> None:
    found = {each.name: each for each in finder.ModuleComponentsFinder("torchx.components", group).find()}
    assert found[name].fn("hi").roles[0].args[-1] == "hi"
    assert found[name].description
