"""What an ordinary installation has: built, installed into an empty environment, and used there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPENDENCIES = ("argcomplete", "docstring_parser", "pathspec", "psutil", "urllib3")


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_one_installation_is_enough_for_jobs_under_the_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    # from the archive of the sources, as an index would have it
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    (tmp_path / "sources").mkdir()
    run("tar", "-xf", str(archive), cwd=tmp_path / "sources")
    (unpacked,) = (tmp_path / "sources").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=unpacked)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env")
    python = str(tmp_path / "env/bin/python")
    install = ["pip", "--python", python, "--quiet", "install", "--no-deps", "--no-index", "--no-compile"]
    run(sys.executable, "-m", *install, str(wheel), cwd=tmp_path)
    (packages,) = (tmp_path / "env/lib").glob("python*/site-packages")
    for name in DEPENDENCIES:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (packages / name).symlink_to(Path(spec.origin).parent)
    run(
        python,
        "-c",
        "import importlib.util as u; assert u.find_spec('shunter_toolkit') is None",
        cwd=tmp_path,
    )
    (tmp_path / "train.py").write_text(
        "import os, sys; print(os.environ['SM_HOSTS'].count('127.'), sys.prefix)"
    )
    shunter = str(tmp_path / "env/bin/shunter")
    run(shunter, "run", "-s", "local_cwd", "--wait", "./train.py", cwd=tmp_path)
    assert run(shunter, "log", "-", cwd=tmp_path) == f"train/0 1 {tmp_path / 'env'}\n"
