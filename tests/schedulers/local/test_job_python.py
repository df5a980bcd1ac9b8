"""Which Python a job has: with real environments, of users and of tools."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from shunter.schedulers.supervisor import job_python

#: What a job says of its Python: itself, and what a shell in it finds.
SHOW = """
import json, shutil, sys
print(json.dumps([sys.executable, shutil.which("python") or shutil.which("python3")]))
"""


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two environments: ``tool``, with shunter and without any extra, and ``mine``, with nothing."""
    folder = tmp_path_factory.mktemp("environments")
    for name in ("tool", "mine"):
        venv.create(folder / name, symlinks=True)
    (packages,) = (folder / "tool/lib").glob("python*/site-packages")
    for name in ("shunter", "argcomplete", "docstring_parser", "psutil", "urllib3"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (packages / name).symlink_to(Path(spec.origin).parent)
    return folder


class Shell:
    """A directory, and a shell without an activated environment, whose PATH has ``path`` alone."""

    def __init__(self, environments: Path, directory: Path, path: str) -> None:
        self.tool = environments / "tool"
        self.directory = directory
        left_out = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")
        self.environ = {name: value for name, value in os.environ.items() if name not in left_out}
        self.environ |= {"PATH": path, "SHUNTER_SAGEMAKER_DOCKER": "never"}

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [str(self.tool / "bin/python"), "-m", "shunter", *words]
        done = subprocess.run(
            command, cwd=self.directory, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def pythons(self, script: str = "./show.py", *options: str) -> list[str]:
        """Run a script; returns what it says of its Python."""
        self.run("run", *options, "--wait", script)
        line = self.run("log", "-").stdout.splitlines()[-1]
        found: list[str] = json.loads(line.partition(" ")[2])
        return found

    def plan(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("plan", "--json", "./show.py").stdout)
        return found


@pytest.fixture
def shell(environments: Path, tmp_path: Path) -> Shell:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    for place in (folder, folder / "src"):
        (place / "show.py").write_text(SHOW)
    for name in job_python._TOOL_FILES:
        (environments / "tool" / name).unlink(missing_ok=True)
    return Shell(environments, folder, f"{environments}/mine/bin:/usr/bin:/bin")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("receipt", "scheduler"),
    [
        ("uv-receipt.toml", "local_cwd"),
        pytest.param("pipx_metadata.json", "sagemaker_local", marks=pytest.mark.slow),
    ],
)
def test_a_tool_of_uv_or_pipx_leaves_jobs_the_python_of_the_shell(
    shell: Shell, environments: Path, receipt: str, scheduler: str
) -> None:
    (shell.tool / receipt).touch()
    mine = str(environments / "mine/bin")
    assert {os.path.dirname(path) for path in shell.pythons("./show.py", "-s", scheduler)} == {mine}
    # uvx puts its own environment first
    shell.environ["PATH"] = f"{shell.tool}/bin:{shell.environ['PATH']}"
    assert {os.path.dirname(path) for path in shell.pythons("./show.py", "-s", scheduler)} == {mine}
    if scheduler == "sagemaker_local":  # boto3 is not installed there
        assert (
            "it has not been checked that AWS would take"
            in shell.run("plan", "-s", scheduler, "./show.py").stderr
        )


@pytest.mark.slow
def test_a_system_with_python3_alone(shell: Shell, environments: Path, tmp_path: Path) -> None:
    (shell.tool / "uv-receipt.toml").touch()
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").symlink_to(Path(sys.base_prefix, "bin/python3"))
    shell.environ["PATH"] = str(programs)
    assert shell.pythons() == [f"{programs}/python3"] * 2


@pytest.mark.slow
def test_the_environment_of_an_ordinary_installation_is_the_users(shell: Shell) -> None:
    own = str(shell.tool / "bin/python")
    assert shell.pythons() == [own, own]
    assert shell.plan()["python"].endswith(f" {own} (the environment that shunter is installed in)")


@pytest.mark.slow
@pytest.mark.parametrize("is_tool", [True, False])
def test_a_projects_environment_is_used_without_activation(
    shell: Shell, environments: Path, is_tool: bool
) -> None:
    if is_tool:
        (shell.tool / "uv-receipt.toml").touch()
    project = shell.directory / ".venv"
    venv.create(project, symlinks=True)
    theirs = str(project / "bin/python")
    assert shell.pythons("./src/show.py") == [theirs, theirs]
    assert shell.plan()["python"].endswith(f" {theirs} (the project's .venv)")
    shell.directory /= "src"  # from below
    assert shell.pythons() == [theirs, theirs]
    shell.environ["VIRTUAL_ENV"] = str(environments / "mine")
    assert shell.pythons() == [str(environments / "mine/bin/python")] * 2
    assert "(the activated environment)" in shell.plan()["python"]
    # a folder of that name without a Python is none
    del shell.environ["VIRTUAL_ENV"]
    (project / "bin/python").unlink()
    assert shell.pythons() != [theirs, theirs]


@pytest.mark.slow
def test_without_any_other_python_the_tools_own_is_used_and_that_is_said(shell: Shell) -> None:
    (shell.tool / "pipx_metadata.json").touch()
    shell.environ["PATH"] = str(shell.directory)
    own = str(shell.tool / "bin/python")
    warned = shell.run("run", "--wait", "./show.py").stderr
    assert f"no Python was found but {own}, which is shunter's own" in warned
    assert shell.pythons() == [own, own]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_an_environment_of_strangers_is_not_used(shell: Shell) -> None:
    project = shell.directory / ".venv"
    venv.create(project, symlinks=True)
    os.chown(project, 12345, 12345)
    done = shell.run("run", "--wait", "./show.py")
    assert f"the environment {project} is not used" in done.stderr
    assert shell.pythons() == [str(shell.tool / "bin/python")] * 2


@pytest.mark.slow
def test_another_python_is_what_has_changed(shell: Shell, environments: Path) -> None:
    (shell.tool / "uv-receipt.toml").touch()
    (shell.directory / "train.py").write_text("import sys; sys.exit('mine' not in sys.prefix)\n")
    shell.run("run", "--wait", "./train.py")
    version = ".".join(map(str, sys.version_info[:3]))
    mine = f"{version} {environments}/mine/bin/python"
    venv.create(shell.directory / ".venv", symlinks=True)
    theirs = f"{version} {shell.directory}/.venv/bin/python"
    shell.run("run", "--wait", "./train.py", code=1)
    why = json.loads(shell.run("why", "-", "--json").stdout)
    (change,) = why["changes"]
    assert change.startswith("python: ")
    difference = json.loads(shell.run("diff", "--json").stdout)
    assert difference["environment"]["python"] == [mine, theirs]
