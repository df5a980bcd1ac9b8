"""Programs of builtins in what an image may have: shunter, the toolkit alone, torchx.

The command of the component is run as the image would, by Pythons without anything else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests import backends
from tests.docs.documents import ROOT
from tests.toolkit.image import bridge_gateway

from shunter.components import metrics, serve, utils
from shunter.runner import get_runner
from shunter.specs import AppDef, AppState, BindMount, Resource, Role
from shunter.workspace.toolkit_files import toolkit_archive

SOURCES = {"shunter": str(ROOT / "src"), "toolkit": str(ROOT / "toolkit" / "src")}
#: A Python without the packages of this one's environment.
BARE = os.path.realpath(sys.executable)


def start(role: Role, python: str, path: str, folder: Path) -> subprocess.CompletedProcess[str]:
    assert role.entrypoint == "python"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path}
    args = [python, *(["-S", "-E"] if not path else []), *role.args]
    return subprocess.run(args, env=env, cwd=folder, capture_output=True, text=True, check=False)


def check(python: str, path: str, folder: Path) -> None:
    """Run each program, and compare what it leaves with what TorchX's leaves."""
    (folder / "a").write_bytes(b"content\n")
    (role,) = utils.copy("a", "deep/b").roles
    done = start(role, python, path, folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "deep/b").read_bytes() == b"content\n"
    (role,) = utils.booth(1, 2, 3, str(folder / "trials")).roles
    done = start(role, python, path, folder)
    assert done.returncode == 0, done.stderr
    assert {str(p.relative_to(folder / "trials")): p.read_text() for p in (folder / "trials").iterdir()} == {
        "3": '{\n  "booth_eval": 5.0\n}'
    }
    (role,) = metrics.tensorboard("logs", start_on_file=str(folder / "a")).roles
    at = role.args.index("--") + 1
    role.args[at:] = [BARE, "-c", "print('board'); raise SystemExit(7)"]
    done = start(role, python, path, folder)
    assert (done.returncode, "board\n" in done.stdout) == (7, True), done.stderr
    role.args[role.args.index("--start_on_file") + 1] = str(folder / "never")
    role.args[role.args.index("--timeout") + 1] = "0.01"
    assert start(role, python, path, folder).returncode == 34


@pytest.mark.parametrize("place", SOURCES)
def test_installed(place: str, tmp_path: Path) -> None:
    check(BARE, SOURCES[place], tmp_path)


def test_the_toolkit_where_the_launcher_puts_it(tmp_path: Path) -> None:
    archive = tmp_path / "toolkit.pyz"
    archive.write_bytes(toolkit_archive())
    check(BARE, str(archive), tmp_path)


@pytest.mark.slow
def test_torchx(tmp_path: Path) -> None:
    check(backends.torchx_python(), "/nonexistent", tmp_path)


def test_a_python_with_none_of_them_says_so(tmp_path: Path) -> None:
    (role,) = serve.torchserve("model.mar", "http://localhost:8081").roles
    done = start(role, BARE, "", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("has none of shunter-toolkit, shunter and torchx\n")


# ---- in containers


class Management(BaseHTTPRequestHandler):
    """Fetches the model that a registration names, as TorchServe's management API does."""

    models: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        (url,) = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)["url"]
        with urllib.request.urlopen(url) as response:
            self.models.append(response.read())
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "registered"}')

    def log_message(self, *args: object) -> None:
        pass


def torchx_packages() -> str:
    """Return the folder in which TorchX is installed."""
    show = "import os, torchx; print(os.path.dirname(torchx.__path__[0]))"
    return subprocess.check_output([backends.torchx_python(), "-c", show], text=True).strip()


@pytest.fixture
def management(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Management, "models", [])
    gateway = bridge_gateway()
    with ThreadingHTTPServer((gateway, 0), Management) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{gateway}:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("docker")
@pytest.mark.parametrize("place", [*SOURCES, "torchx"])
def test_containers(place: str, image: str, management: str, tmp_path: Path) -> None:
    """All four programs of one job, in a container that has one of the three installed."""
    packages = torchx_packages() if place == "torchx" else SOURCES[place]
    installed = packages if place == "torchx" else str(ROOT)  # in a clone the toolkit is linked into shunter
    (tmp_path / "a").write_bytes(b"content\n")
    board = metrics.tensorboard("logs", start_on_file=f"{tmp_path}/a", image=image)
    args = board.roles[0].args
    args[args.index("--") + 1 :] = ["python", "-c", "print('board')"]
    parts = [
        utils.copy(f"{tmp_path}/a", f"{tmp_path}/deep/b", image=image),
        utils.booth(1, 2, 3, f"{tmp_path}/trials", image=image),
        board,
        serve.torchserve(f"{tmp_path}/a", management, image=image),
    ]
    app = AppDef("programs", [role for part in parts for role in part.roles])
    for role in app.roles:
        role.env["PYTHONPATH"] = packages
        role.resource = Resource(cpu=1, gpu=0, memMB=256)
        role.mounts += [
            BindMount(installed, installed, read_only=True),
            BindMount(str(tmp_path), str(tmp_path)),
        ]
    with get_runner() as runner:
        handle = runner.run(app, "local_docker")
        try:
            status = runner.wait(handle)
            assert status is not None
            logs = {role.name: "".join(runner.log_lines(handle, role.name)) for role in app.roles}
            assert status.state == AppState.SUCCEEDED, logs
        finally:
            runner.delete(handle)
    assert (tmp_path / "deep/b").read_bytes() == b"content\n"
    assert [p.read_text() for p in (tmp_path / "trials").iterdir()] == ['{\n  "booth_eval": 5.0\n}']
    assert "board\n" in logs[board.roles[0].name]
    assert Management.models == [b"content\n"]
