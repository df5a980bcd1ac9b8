"""Objects of an installed TorchX, in our runner; plugins in its packages."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from tests.backends import torchx_python
from trainyard import plugins
from trainyard.components.component import Component
from trainyard.errors import ConfigError
from trainyard.runner import get_runner
from trainyard.specs import app as ours

ROOT = Path(__file__).resolve().parents[2]

# What TorchX's classes look like: their names and fields, and nothing of ours.
RetryPolicy = Enum("RetryPolicy", {"REPLICA": "REPLICA", "APPLICATION": "APPLICATION"}, type=str)


@dataclass
class Resource:
    cpu: int
    gpu: int
    memMB: int
    capabilities: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)


@dataclass
class BindMount:
    src_path: str
    dst_path: str
    read_only: bool = False


@dataclass
class Role:
    name: str
    image: str
    entrypoint: str = "<MISSING>"
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    num_replicas: int = 1
    retry_policy: Any = RetryPolicy.APPLICATION
    resource: Resource = field(default_factory=lambda: Resource(1, 0, 10))
    mounts: list[Any] = field(default_factory=list)

    def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
        return dryrun_info


@dataclass
class AppDef:
    name: str
    roles: list[Any] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass
class Workspace:
    projects: dict[str, str]


def test_a_job_of_their_classes_is_taken_by_its_structure() -> None:
    app = AppDef("job", [Role("r", "", "echo", ["${app_id}"], {"A": "1"}, retry_policy=RetryPolicy.REPLICA)])
    with get_runner() as runner:
        info = runner.dryrun(app, "local_cwd", workspace=Workspace({".": ""}))
    assert isinstance(info.app, ours.AppDef)
    (role,) = info.app.roles
    assert (role.entrypoint, role.resource.memMB, role.retry_policy) == ("echo", 10, ours.RetryPolicy.REPLICA)
    assert info.record["workspace"] == "."
    assert app.roles[0].env == {"A": "1"}


def test_their_roles_may_change_the_request() -> None:
    class Loud(Role):
        def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
            dryrun_info.record["changed"] = (scheduler, self.name)
            return dryrun_info

    with get_runner() as runner:
        info = runner.dryrun(AppDef("job", [Loud("r", "", "true")]), "local_cwd")
    assert info.record["changed"] == ("local_cwd", "r")


def test_their_mounts_are_seen() -> None:
    app = AppDef("job", [Role("r", "busybox", "true", mounts=[BindMount("/a", "/b")])])
    with get_runner() as runner:
        info = runner.dryrun(app, "local_docker")
    assert info.app is not None
    assert [mount.dst_path for mount in info.app.roles[0].mounts] == ["/b"]


def test_a_component_may_return_their_job() -> None:
    def component(n: int = 1) -> AppDef:
        """Count."""
        return AppDef("job", [Role("r", "", "echo", [str(n)])])

    found = Component("component", component).call({"n": 3})
    assert isinstance(found, ours.AppDef)
    assert found.roles[0].args == ["3"]


def test_what_is_no_job_is_refused() -> None:
    with get_runner() as runner, pytest.raises(ConfigError, match="roles is of type"):
        runner.dryrun(ours.AppDef("job", "nonsense"), "local_cwd")  # type: ignore[arg-type]


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages ``torchx_plugins.*`` with a scheduler, resources, and a module that cannot be imported."""
    for folder, name, text in (
        (
            "schedulers",
            "mine.py",
            (
                "from torchx.plugins import register\n"
                "@register.scheduler(name='mine')\n"
                "def create(session_name, **kwargs):\n"
                "    return ('made', session_name)\n"
            ),
        ),
        (
            "named_resources",
            "sizes.py",
            (
                "from torchx.plugins import powers_of_two_gpus, register\n"
                "from torchx.specs import Resource\n"
                "@register.named_resource(aliases=['huge'], fractionals=powers_of_two_gpus)\n"
                "def big(fractional=1.0):\n"
                "    return Resource(cpu=64, gpu=int(4 * fractional), memMB=1024)\n"
            ),
        ),
        ("named_resources", "broken.py", "import no_such_module\n"),
    ):
        (tmp_path / "torchx_plugins" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "torchx_plugins" / folder / name).write_text(text)
    return tmp_path


def test_plugins_of_namespace_packages(namespace: Path) -> None:
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from trainyard.plugins import entry_points\n"
        "print([point.name for point in entry_points('schedulers') if point.name == 'mine'])\n"
        "from trainyard.specs import named_resources\n"
        "big, half = named_resources['big'], named_resources['big_2']\n"
        "print(big.gpu, named_resources['huge'].gpu, half.gpu)\n"
        "print(half.is_fractional(), half.get_resource_name())\n"
        "import trainyard.compat.torchx\n"
        "from torchx import plugins\n"
        "print(plugins.registry().to_dict()['errors'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(namespace)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        "['mine']",
        "4 4 2",
        "True big_2",
        (
            "[{'module': 'torchx_plugins.named_resources.broken', "
            "'error': \"ModuleNotFoundError: No module named 'no_such_module'\"}]"
        ),
    ], done.stderr


def test_a_plugin_that_cannot_be_imported_is_named(namespace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(namespace))
    with pytest.warns(RuntimeWarning, match="torchx_plugins.named_resources.broken cannot be loaded"):
        plugins.entry_points("named_resources")
    for name in [name for name in sys.modules if name.startswith("torchx_plugins")]:
        del sys.modules[name]


@pytest.mark.slow
def test_a_job_of_the_real_torchx_runs() -> None:
    python = torchx_python()
    code = (
        "import torchx.specs as specs\n"
        "from torchx.components.utils import echo\n"
        "from trainyard.runner import get_runner\n"
        "with get_runner() as runner:\n"
        "    role = specs.Role('r', '', entrypoint='true', resource=specs.Resource(1, 0, 10))\n"
        "    for app in (specs.AppDef('job', [role]), echo(msg='hello')):\n"
        "        print(runner.wait(runner.run(app, 'local_cwd')).state.name)\n"
    )
    done = subprocess.run(
        [python, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["SUCCEEDED", "SUCCEEDED"], done.stderr


#: A scheduler as TorchX documents it, by its own base class; it runs each role as a process.
TOY = """
import subprocess
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from torchx.specs import AppDryRunInfo, AppState, RoleStatus, ReplicaStatus, runopts
from torchx.specs.api import AppDef

class Toy(Scheduler):
    def __init__(self, session_name, **kwargs):
        super().__init__("toy", session_name)
        self.jobs = {}

    def _run_opts(self):
        opts = runopts()
        opts.add("shout", type_=bool, default=False, help="in capitals")
        return opts

    def _submit_dryrun(self, app, cfg):
        assert isinstance(app, AppDef), type(app)  # what TorchX would give it
        return AppDryRunInfo((app, dict(cfg)), lambda request: f"toy {request[0].name}")

    def schedule(self, dryrun_info):
        app, cfg = dryrun_info.request
        app_id = f"{app.name}-{len(self.jobs)}"
        self.jobs[app_id] = [
            subprocess.Popen([role.entrypoint, *role.args], stdout=subprocess.PIPE, text=True)
            for role in app.roles
        ]
        return app_id

    def describe(self, app_id):
        if app_id not in self.jobs:
            return None
        codes = [process.poll() for process in self.jobs[app_id]]
        state = AppState.RUNNING if None in codes else AppState.FAILED if any(codes) else AppState.SUCCEEDED
        if any(code == -15 for code in codes):
            state = AppState.CANCELLED
        return DescribeAppResponse(
            app_id=app_id, state=state,
            roles_statuses=[RoleStatus("r", [ReplicaStatus(id=0, state=state, role="r", hostname="h")])],
        )

    def _cancel_existing(self, app_id):
        for process in self.jobs[app_id]:
            process.terminate()
            process.wait()

    def list(self, cfg=None):
        return [ListAppResponse(app_id, self.describe(app_id).state) for app_id in self.jobs]

    def log_iter(self, app_id, role_name, k=0, regex=None, since=None, until=None, should_tail=False,
                 streams=None):
        return iter(self.jobs[app_id][k].stdout.read().splitlines())


def create_scheduler(session_name, **kwargs):
    return Toy(session_name)
"""

USES_TOY = """
import torchx.specs as specs
from torchx.components.utils import echo
from trainyard.runner import get_runner

def job(*command):
    return specs.AppDef("job", [specs.Role("r", "", entrypoint=command[0], args=list(command[1:]),
                                           resource=specs.Resource(1, 0, 10))])

with get_runner() as runner:
    print(runner.dryrun(job("true"), "toy", {"shout": True}))
    good = runner.run(job("echo", "hello"), "toy", {"shout": True})
    print(good.partition("://")[0], runner.wait(good).state.name)
    print("".join(runner.log_lines(good, "r")).strip())
    bad = runner.run(job("false"), "toy")
    print(runner.wait(bad).state.name)
    long = runner.run(job("sleep", "600"), "toy")
    print(runner.status(long).state.name)
    runner.cancel(long)
    print(runner.wait(long).state.name)
    print(sorted(row.state.name for row in runner.list("toy")))
    component = runner.run_component("utils.echo", ["--msg", "by component"], "toy")
    print(runner.wait(component).state.name, "".join(runner.log_lines(component, "echo")).strip())
    print(runner.describe(good).name)
    try:
        runner.run(job("true"), "toy", {"whisper": True})
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.slow
def test_a_scheduler_of_the_real_torchx_s_base_class_runs(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "toy-1.0.dist-info").mkdir()
    points = "[torchx.schedulers]\ntoy = toy:create_scheduler\n"
    (tmp_path / "toy-1.0.dist-info" / "entry_points.txt").write_text(points)
    done = subprocess.run(
        [torchx_python(), "-c", USES_TOY],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        "toy job",
        "toy SUCCEEDED",
        "hello",
        "FAILED",
        "RUNNING",
        "CANCELLED",
        "['CANCELLED', 'FAILED', 'SUCCEEDED']",
        "SUCCEEDED by component",
        "job",
        "InvalidRunConfigException",
    ], done.stderr
