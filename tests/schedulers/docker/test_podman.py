"""The same jobs by the command of Podman, which has no daemon."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.runner import Runner, get_runner
from shunter.schedulers.docker_scheduler.job import ContainerJob
from shunter.specs import AppDef, AppState, Role
from tests.backends import need

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]

#: What this machine lacks: systemd, a pure cgroup v2, the right to raise limits.
CONFIG = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
init_path = "/usr/bin/catatonit"
runtime = "runc"
"""


@pytest.fixture
def podman_image(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The usual image, in a store of Podman's own."""
    need("podman")
    (tmp_path / "containers.conf").write_text(CONFIG)
    store = f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/root"\nrunroot = "{tmp_path}/run"\n'
    (tmp_path / "storage.conf").write_text(store)
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
    saved = subprocess.run(["docker", "save", image], capture_output=True, check=True).stdout
    subprocess.run(["podman", "load"], input=saved, capture_output=True, check=True)
    monkeypatch.setenv("SHUNTER_DOCKER", "podman")
    yield f"localhost/{image}"
    subprocess.run(["podman", "rm", "--all", "--force"], capture_output=True, check=True)
    subprocess.run(["podman", "rmi", "--all", "--force"], capture_output=True, check=True)


@pytest.fixture
def runner() -> Iterator[Runner]:
    with get_runner("podman") as runner:
        yield runner


def test_code_travels_and_replicas_reach_each_other(
    podman_image: str, runner: Runner, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    script = """
for name in worker-0 worker-1; do
    until python3 -c "import socket; print(socket.gethostbyname('$name'))" 2>/dev/null; do sleep 0.1; done
done | wc -l
echo from $HOSTNAME
exit $1
"""
    (code / "hello.sh").write_text(script)
    role = Role("worker", podman_image, entrypoint="sh", args=["hello.sh", "0"], num_replicas=2)
    handle = runner.run(AppDef("job", [role]), "local_docker", workspace=str(code))
    status = runner.wait(handle)
    assert status is not None
    assert status.state == AppState.SUCCEEDED, status.msg
    app_id = handle.rpartition("/")[2]
    for k in (0, 1):
        lines = [line.strip() for line in runner.log_lines(handle, "worker", k)]
        assert lines[-2:] == ["2", f"from {app_id}-worker-{k}"]
    assert "podman" in ContainerJob.of(app_id).docker().program
    runner.delete(handle)
    assert subprocess.run(["podman", "ps", "-aq"], capture_output=True, check=True).stdout == b""


def test_a_job_is_cancelled_from_a_shell_that_knows_nothing_of_it(
    podman_image: str, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "trap 'echo saved; exit 3' TERM; echo up; while :; do sleep 0.1; done"
    role = Role("r", podman_image, entrypoint="sh", args=["-c", script])
    handle = runner.run(AppDef("job", [role]), "local_docker")
    monkeypatch.delenv("SHUNTER_DOCKER")
    lines = runner.log_lines(handle, "r", 0, should_tail=True)
    assert any(line.strip() == "up" for line in lines)
    runner.cancel(handle)
    status = runner.wait(handle)
    assert status is not None
    assert status.state == AppState.CANCELLED
    assert [line.strip() for line in runner.log_lines(handle, "r", 0)][-1] == "saved"
    runner.delete(handle)
