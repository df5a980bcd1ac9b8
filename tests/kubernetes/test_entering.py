"""Commands in replicas that run, by kubectl."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError, UnknownAppException
from shunter.schedulers.joined_terminal import SHELL
from shunter.schedulers.kubernetes_scheduler.scheduler import KubernetesScheduler
from tests.cli.conftest import Terminal
from tests.kubernetes.jobs import app, role
from tests.kubernetes.stub import Stub

Scheduler = KubernetesScheduler


@pytest.fixture
def running(stub: Stub, scheduler: Scheduler) -> str:
    app_id = scheduler.submit(app(role(entrypoint="sh", args=["-c", "exec sleep 100"])), {})
    stub.wait_for(lambda: stub.get("jobs", app_id.partition(":")[2])["status"].get("ready"))
    return app_id


def test_a_command_in_a_replica(
    running: str, stub: Stub, scheduler: Scheduler, kubectl: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert scheduler.execute(running, "trainer", 0, ["sh", "-c", "echo in; exit 7"], tty=False) == 7
    assert capfd.readouterr().out == "in\n"
    [pod] = stub.all("pods")
    where = ["--namespace=default", "--container=trainer", "--stdin"]
    words = ["--context=stub", "exec", pod["metadata"]["name"], *where, "--", "sh", "-c", "echo in; exit 7"]
    assert json.loads(kubectl.read_text()) == words


def test_a_shell_on_a_terminal(running: str, kubectl: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    words = ["exec", f"kubernetes://test/{running}", "trainer/0"]
    shown = Terminal([sys.executable, "-m", "shunter", *words], tmp_path, environ)
    try:
        shown.type(b"echo $((6 * 7)); exit 6\r")
        shown.wait_for(b"42\r\n")
        assert shown.finish() == 6
    finally:
        shown.kill()
    assert json.loads(kubectl.read_text())[-len(SHELL) - 2 :] == ["--tty", "--", *SHELL]


def test_without_kubectl(running: str, scheduler: Scheduler, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="needs kubectl, which is not installed"):
        scheduler.execute(running, "trainer", 0, ["true"], tty=False)


def test_replicas_that_cannot_be_entered(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    app_id = scheduler.submit(app(), {})
    with pytest.raises(ConfigError, match="is not running, so nothing can be started in it: it is PENDING"):
        scheduler.execute(app_id, "trainer", 0, ["true"], tty=False)
    with pytest.raises(UnknownAppException):
        scheduler.execute("default:nothing", "trainer", 0, ["true"], tty=False)
