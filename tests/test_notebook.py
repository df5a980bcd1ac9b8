"""The cell magic ``%%workspacefile``, in a real IPython where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard import notebook
from trainyard.errors import UsageError


@pytest.fixture(autouse=True)
def fresh() -> None:
    notebook.get_workspace.cache_clear()


def test_cells_become_files_of_the_workspace(capsys: pytest.CaptureFixture[str]) -> None:
    notebook.workspacefile("sub/train.py ", "print('hello')\n")
    notebook.workspacefile("b.txt", "x")
    notebook.workspacefile("b.txt", "y")
    place = Path(notebook.get_workspace())
    assert (place / "sub/train.py").read_text() == "print('hello')\n"
    assert (place / "b.txt").read_text() == "y"
    assert "added b.txt" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["", " ", "/etc/passwd", "../out", "a/../..", "."])
def test_nothing_is_written_elsewhere(line: str) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        notebook.workspacefile(line, "x")


class Shell:
    """What of IPython's shell is asked for."""

    def __init__(self) -> None:
        self.magics: dict[str, str] = {}

    def register_magic_function(self, function: object, kind: str) -> None:
        self.magics[function.__name__] = kind  # type: ignore[attr-defined]


def test_the_magic_is_registered() -> None:
    shell = Shell()
    notebook.load_ipython_extension(shell)
    assert shell.magics == {"workspacefile": "cell"}


def test_a_job_runs_the_cells(tmp_path: Path) -> None:
    code = """
import os
from trainyard.notebook import get_workspace, workspacefile
from trainyard.runner import get_runner
workspacefile("train.py", "print('from the notebook')")
with get_runner() as runner:
    handle = runner.run_component(
        "utils.python", ["--script", "train.py"], "local_cwd", workspace=get_workspace())
    assert runner.wait(handle).state.name == "SUCCEEDED"
    print(*runner.log_lines(handle, "python"))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "from the notebook" in done.stdout
