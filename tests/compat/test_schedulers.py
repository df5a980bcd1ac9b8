"""Schedulers of others, written for TorchX and installed as packages, through the whole command line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter import plugins
from shunter.compat.plugin_scheduler import PluginScheduler
from shunter.runner import get_runner
from shunter.schedulers.docker_scheduler.scheduler import DockerScheduler
from shunter.specs import AppDef, AppState, Resource, Role
from tests.backends import need
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli

PLUGIN = Path(__file__).parent / "plugin"
ENTRY_POINTS = """[torchx.schedulers]
owl = nightshift:create_scheduler
lark = dayshift:create_scheduler
"""


def install(site: Path) -> None:
    """Install the plugin as pip does."""
    info = site / "nightshift-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nightshift\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    for path in PLUGIN.glob("*.py"):
        shutil.copy(path, site)


@pytest.fixture
def night(cli: Cli) -> Cli:
    site = cli.directory.parent / "site"
    install(site)
    cli.environ["PYTHONPATH"] += f":{site}"
    cli.environ["TORCHX_DEPOT"] = str(cli.directory.parent / "depot")
    return cli


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("TORCHX_DEPOT", str(tmp_path / "depot"))
    plugins._entry_points_of_group.cache_clear()
    yield
    plugins._entry_points_of_group.cache_clear()


def app(*, name: str = "hello") -> AppDef:
    role = Role("greeter", "none", entrypoint="echo", args=["hi ${replica_id}"], num_replicas=2)
    role.resource = Resource(1, 0, 10)
    return AppDef(name, [role])


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["owl", "lark"])
def test_a_plugin_for_torchx_goes_through_the_whole_command_line(night: Cli, scheduler: str) -> None:
    shown = night("run", "-s", scheduler, "-cfg", "queue=q,nice=5", "--dryrun", "utils.echo", "--msg", "x")
    assert "night job on q, nice 5" in shown.out
    assert not (night.directory.parent / "depot").exists()
    options = ["-cfg", "queue=slow", "--workspace", ""]
    handle = night("run", "-s", scheduler, *options, "utils.echo", "--num_replicas", "2").out.strip()
    assert handle.startswith(f"{scheduler}://shunter/echo-")
    status = night("status", "--json", handle).json
    assert (status["state"], status["msg"]) == ("RUNNING", "by moonlight")
    assert [replica["id"] for replica in status["roles"][0]["replicas"]] == [0, 1]
    assert [row["handle"] for row in night("list", "-s", scheduler, "--json").json] == [handle]
    assert night("log", handle).out == "echo/0 hello world\necho/1 hello world\n"
    assert night("log", handle, "--regex", "absent").out == ""
    assert "hello world" in night("describe", handle).out
    night("cancel", handle)
    assert night("status", "--json", handle).json["state"] == "CANCELLED"
    assert "where it waits" in night("runopts", scheduler).out
    assert night("status", f"{scheduler}://shunter/nothing", code=5).err


def test_mistakes_are_reported_in_a_line(night: Cli) -> None:
    closed = night("run", "-s", "lark", "-cfg", "queue=closed", "--workspace=", "utils.echo", code=3)
    assert "refuses the job: the queue of lark is closed" in closed.err
    assert "'queue' (str) is required" in night("run", "-s", "owl", "utils.echo", code=3).err
    assert "owl has no option 'quee'" in night("run", "-s", "owl", "-cfg", "quee=x", "utils.echo", code=3).err
    handle = night("run", "-s", "owl", "-cfg", "queue=q", "utils.echo").out.strip()
    assert "owl cannot delete jobs" in night("delete", handle, code=4).err


def test_the_matrix_shows_what_a_plugin_implements(night: Cli) -> None:
    rows = night("schedulers", "--json").json
    assert (rows["owl"]["follow"], rows["owl"]["workspaces"], rows["owl"]["delete"]) == (True, False, False)
    assert rows["lark"]["workspaces"]


@pytest.mark.usefixtures("installed")
def test_a_plugin_builds_the_workspace_itself_and_one_that_cannot_says_so(tmp_path: Path) -> None:
    with get_runner() as runner:
        info = runner.dryrun(app(), "lark", {"queue": "q"}, str(tmp_path))
        assert info.request.roles[0]["image"] == f"code of {tmp_path}"
        assert "job_dir" in runner.scheduler_run_opts("lark")
        info = runner.dryrun(app(), "owl", {"queue": "q"}, str(tmp_path))
        assert info.warnings == [f"owl cannot ship a workspace, so {tmp_path} does not travel with the job"]


@pytest.mark.usefixtures("installed")
def test_a_request_has_torchx_s_back_references() -> None:
    with get_runner() as runner:
        info = runner.dryrun(app(), "owl", {"queue": "q"})
        assert (info._scheduler, info._cfg["nice"]) == ("owl", 3)
        assert info._app.roles[0].env["TORCHX_JOB_ID"] == "owl://shunter/${app_id}"
        handle = runner.schedule(info)
        assert runner.wait(handle).state == AppState.SUCCEEDED
        assert list(runner.log_lines(handle, "greeter", 1)) == ["hi 1\n"]
        assert [job.app_handle for job in runner.list("owl")] == [handle]


def test_a_plugin_with_the_name_of_a_builtin_scheduler_is_named_and_not_used(night: Cli) -> None:
    info = night.directory.parent / "site" / "nightshift-1.0.dist-info" / "entry_points.txt"
    info.write_text(
        ENTRY_POINTS
        + "slurm = nightshift:create_scheduler\n"
        + "kubernetes = torchx.schedulers.kubernetes_scheduler:create_scheduler\n"
    )
    done = night("schedulers")
    (said,) = [line for line in done.err.splitlines() if "is not used" in line]
    assert "'slurm' is shunter's (shunter.schedulers.slurm_scheduler)" in said
    assert "the plugin nightshift:create_scheduler" in said
    assert "night job" not in done.out


@pytest.mark.usefixtures("installed")
def test_ours_count_as_torchx_schedulers_and_so_do_plugins() -> None:
    with get_runner() as runner:
        assert isinstance(runner.scheduler("local_cwd"), PluginScheduler)
        assert isinstance(runner.scheduler("owl").made, PluginScheduler)


def test_the_docker_client_of_programs_built_on_torchx() -> None:
    need("docker")
    docker = pytest.importorskip("docker")
    scheduler = DockerScheduler("x")
    assert isinstance(scheduler._docker_client, docker.DockerClient)
    assert scheduler._docker_client is scheduler._docker_client
    handed_in = object()
    assert DockerScheduler("x", handed_in)._docker_client is handed_in
