"""Programs of builtins in what an image may have: trainyard, the toolkit alone, torchx.

The command of the component is run as the image would, by Pythons without anything else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import backends
from tests.docs.documents import ROOT

from trainyard.components import metrics, serve, utils
from trainyard.specs import Role
from trainyard.workspace.toolkit_files import toolkit_archive

SOURCES = {"trainyard": str(ROOT / "src"), "toolkit": str(ROOT / "toolkit" / "src")}
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
    assert done.stderr.endswith("has none of trainyard-toolkit, trainyard and torchx\n")
