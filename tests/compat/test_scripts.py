"""What scripts and plugins that were written for TorchX rely on, beyond the names."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import sys
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import shunter.compat.torchx.distributed as distributed
import shunter.compat.torchx.plugins as plugin_decorators
import shunter.compat.torchx.runner as torchx_runner
import shunter.compat.torchx.runner.config as runner_config
import shunter.compat.torchx.schedulers.api as schedulers
import shunter.compat.torchx.specs.api as specs
import shunter.compat.torchx.specs.builders as builders
import shunter.compat.torchx.specs.finder as finder
import shunter.compat.torchx.util.types as util_types
from shunter.backoff import polling
from shunter.cli import main
from shunter.compat.torchx.workspace import WorkspaceMixin
from shunter.compat.torchx.workspace.dir_workspace import DirWorkspaceMixin
from shunter.compat.torchx.workspace.docker_workspace import DockerWorkspaceMixin
from shunter.plugins import namespace_plugins

SMALL = specs.Resource(cpu=1, gpu=0, memMB=1024)


def echo(name: str = "echo", image: str = "img", **more: Any) -> Any:
    return specs.Role(name=name, image=image, resource=SMALL, entrypoint="echo", args=["hi"], **more)


def runner_of(scheduler: Any, name: str = "mocked") -> Any:
    return torchx_runner.Runner("session", {name: lambda session, **_: scheduler})


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
        mock.describe.return_value = schedulers.DescribeAppResponse(ui_url="https://x")
        assert runner.status(handle).ui_url == "https://x"
        mock.list.return_value = [schedulers.ListAppResponse(app_id="a", state=specs.AppState.RUNNING)]
        assert [row.app_handle for row in runner.list("mocked")] == ["mocked://session/a"]
        mock.log_iter.return_value = iter(["one", "two\n"])
        assert list(runner.log_lines(handle, "echo", 2, "QPS.*")) == ["one\n", "two\n"]
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

    def list(self, cfg: Any = None) -> list[Any]:
        return []

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


# ---- jobs


def test_a_workspace_without_files_is_left_out_as_torchx_does(tmp_path: Path) -> None:
    with torchx_runner.Runner("s") as runner, pytest.warns(UserWarning, match="has no files"):
        info = runner.dryrun(
            specs.AppDef("job", [specs.Role("r", "", entrypoint="true")]), "local_cwd", {}, str(tmp_path)
        )
    assert info.travels is None


def test_names_of_variables_with_a_value_in_them_are_taken_as_processes_take_them() -> None:
    app = specs.AppDef("job", [specs.Role("r", "", entrypoint="true")])
    app.roles[0].env = {"SANITIZER=1": "1", "A": "b=c"}
    with (
        torchx_runner.Runner("s") as runner,
        pytest.warns(UserWarning, match="'=', which begins .*SANITIZER=1"),
    ):
        info = runner.dryrun(app, "local_cwd", {})
    assert info.app is not None
    env = info.app.roles[0].env
    assert (env["SANITIZER"], env["A"]) == ("1=1", "b=c")
    assert app.roles[0].env == {"SANITIZER=1": "1", "A": "b=c"}


def test_what_monarch_does_with_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of `monarch.job.spmd` 0.7.0: serve, wait for replicas, their hosts, kill."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    local = importlib.import_module("shunter.compat.torchx.schedulers.local_scheduler")
    args = ["-c", "import time; time.sleep(600)"]
    role = specs.Role("trainer", image="", entrypoint=sys.executable, args=args)
    app = specs.AppDef(name="spmd", roles=[role])
    runner = torchx_runner.Runner("", {"local_cwd": local.create_scheduler})
    info = runner.dryrun(app=app, scheduler="local_cwd", cfg={}, workspace=str(tmp_path))
    handle = runner.schedule(info)
    assert handle.startswith("local_cwd:///spmd-")
    polls = polling(None)
    while True:
        status = runner.status(handle)
        assert status is not None
        if status.state >= specs.AppState.RUNNING and status.roles and status.roles[0].replicas:
            break
        polls.pause()
    assert min(each.state for each in status.roles[0].replicas) == specs.AppState.RUNNING
    assert [each.hostname for each in sorted(status.roles[0].replicas, key=lambda r: r.id)] == ["localhost"]
    runner.cancel(handle)
    last = runner.wait(handle, wait_interval=1)
    assert last is not None
    assert last.state == specs.AppState.CANCELLED
    runner.close()


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


# ---- components


def test_defaults_of_other_names_have_no_effect() -> None:
    def fn(a: str, b: int = 1) -> Any:
        return specs.AppDef(f"{a}{b}")

    assert builders.materialize_appdef(fn, ["--a", "x"], {"b": "2", "worker": ["1"]}).name == "x2"


def test_a_scheduler_that_does_not_exist_is_a_missing_key() -> None:
    with torchx_runner.get_runner() as runner, pytest.raises(KeyError, match="there is no scheduler 'nope'"):
        runner.status("nope://s/a")


@pytest.mark.parametrize("text", ["FOO", "FOO,", "FOO;", "FOO=", "FOO=;BAR=v1"])
def test_pairs_without_a_value_do_not_parse(text: str) -> None:
    with pytest.raises(ValueError, match="FOO"):
        util_types.to_dict(text)
    assert util_types.to_dict("FOO='',BAR=v1") == {"FOO": "", "BAR": "v1"}


@pytest.mark.parametrize("mount", [["src=x"], ["blah=x"], ["type=bind"], ["type=odd"]])
def test_mounts_that_do_not_parse_raise_what_torchx_raises(mount: list[str]) -> None:
    for error in (KeyError, ValueError):
        with pytest.raises(error):
            builders.parse_mounts(mount)


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


def test_a_file_without_components_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.py"):
        finder.get_component(f"{tmp_path / 'none.py'}:train")
    with pytest.raises(finder.ComponentNotFoundException, match=r"none\.py"):
        runner_of(MagicMock()).run_component(f"{tmp_path / 'none.py'}:train", [], "mocked")


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
        "named_resources/hosts.py": "@register.named_resource(aliases=['box'], fractionals={0.5: 'half'})\n"
        "def host(fractional=1.0): return Resource(cpu=int(4 * fractional), gpu=0, memMB=512)\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        head = "from torchx.plugins import register\nfrom torchx.specs import Resource\n"
        (package / name).write_text(head + text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("torchx_plugins")]:
        del sys.modules[name]


def test_a_scheduler_in_a_package_below_the_namespace(namespace: None) -> None:
    plugins = {plugin.name: plugin for plugin in namespace_plugins("schedulers", [])}
    assert plugins["pods"].call("mine") == "mine"
    assert plugins["pods"].value == "torchx_plugins.schedulers.cloud.pods:pods"


def test_the_names_of_a_resource_are_in_its_module(namespace: None) -> None:
    found = {plugin.name for plugin in namespace_plugins("named_resources", [])}
    module = sys.modules["torchx_plugins.named_resources.hosts"]
    assert set(module.NAMED_RESOURCES) == {"host", "box", "host_half"} <= found
    assert (module.box(), module.host_half().cpu) == (module.host(), 2)
    assert module.host_half._plugin_base_name == "host"
    with pytest.raises(ValueError, match="'host' twice"):
        plugin_decorators.register.named_resource()(inspect.unwrap(module.host))
