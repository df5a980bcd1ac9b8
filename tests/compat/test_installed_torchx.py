"""Objects of an installed TorchX, in our runner; plugins in its packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from shunter import plugins
from shunter.components.component import Component
from shunter.errors import ConfigError
from shunter.runner import get_runner
from shunter.specs import app as ours
from tests.backends import torchx_python

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
    assert info.travels == "."
    assert app.roles[0].env == {"A": "1"}


def test_their_roles_may_change_the_request() -> None:
    class Loud(Role):
        def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
            dryrun_info.changed = (scheduler, self.name)
            return dryrun_info

    with get_runner() as runner:
        info = runner.dryrun(AppDef("job", [Loud("r", "", "true")]), "local_cwd")
    assert info.changed == ("local_cwd", "r")


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
        "from shunter.plugins import entry_points\n"
        "print([point.name for point in entry_points('schedulers') if point.name == 'mine'])\n"
        "from shunter.specs import named_resources\n"
        "big, half = named_resources['big'], named_resources['big_2']\n"
        "print(big.gpu, named_resources['huge'].gpu, half.gpu)\n"
        "print(half.is_fractional(), half.get_resource_name())\n"
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
        "from shunter.runner import get_runner\n"
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


@pytest.mark.slow
def test_a_scheduler_that_derives_from_the_real_torchx_s_works_in_our_runner(tmp_path: Path) -> None:
    done = subprocess.run(
        [torchx_python(), str(Path(__file__).with_name("scheduler_of_torchx.py"))],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "SHUNTER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "dryrun": {"app": "job", "cfg": {"queue": "q", "nice": 3}},
        "run": "renamed://s/job-0",
        "wait": ["SUCCEEDED", "on the shelf", "host"],
        "log_lines": ["r/1\n", "stderr\n"],
        "describe": ["true", ["x"]],
        "run_component": "renamed://s/echo-1",
        "cancel": "CANCELLED",
        "list": [["renamed://s/job-0", "SUCCEEDED"], ["renamed://s/echo-1", "CANCELLED"]],
        "nothing": [None, None],
        "options": ["queue", "nice"],
        "wrong option": "option 'queue' (str): 1 is not of type str",
    }
