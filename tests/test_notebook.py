"""The cell magics ``%%workspacefile`` and ``%%shunter``, in a real IPython."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shunter import notebook
from shunter.errors import ShunterError, UsageError


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
    assert shell.magics == {"workspacefile": "cell", "shunter": "cell"}


def test_a_job_runs_the_cells(tmp_path: Path) -> None:
    code = """
import os
from shunter.notebook import get_workspace, workspacefile
from shunter.runner import get_runner
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


NOTEBOOK = """
import sys
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
shell.run_line_magic("load_ext", "shunter.notebook")
for cell in sys.stdin.read().split("=====\\n"):
    done = shell.run_cell(cell)
    print("ERROR", done.error_in_exec) if done.error_in_exec else None
    shown = getattr(done.result, "_repr_html_", None)
    print(shown() if shown else done.result)
"""


@pytest.fixture
def run_cells(tmp_path: Path) -> Callable[..., str]:
    """Return what a notebook of these cells shows."""
    pytest.importorskip("IPython")

    def run(*cells: str) -> str:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "IPYTHONDIR": str(tmp_path / "ipython")}
        done = subprocess.run(
            [sys.executable, "-c", NOTEBOOK],
            input="=====\n".join(cells),
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "job_magic.py" not in done.stdout + done.stderr  # our own frames
        return done.stdout

    return run


def test_a_cell_runs_as_a_job_and_shows_it(run_cells: Callable[..., str]) -> None:
    shown = run_cells(
        "%%workspacefile greeting.py\nTEXT = '<b>hello</b>'\n",
        "%%shunter train.script --num-replicas 2 -- --lr 0.1\n"
        "import sys, greeting\nprint(greeting.TEXT, *sys.argv[1:])\n",
        "_.status.state.name",
    )
    assert "cell/1 <b>hello</b> --lr 0.1" in shown  # the log, under the cell
    assert "cell/1</td><td>SUCCEEDED</td>" in shown
    assert "<pre>&lt;b&gt;hello&lt;/b&gt; --lr 0.1</pre>" in shown
    assert shown.rstrip().endswith("SUCCEEDED")


@pytest.mark.slow
def test_a_failed_cell_says_why(run_cells: Callable[..., str]) -> None:
    shown = run_cells("%%shunter\nraise SystemExit(open('nothing').read())\n")
    assert "FAILED: cell/0: exit code 1" in shown
    assert "<p>cell/0 looks for a file that does not exist: FileNotFoundError: [Errno 2]" in shown


@pytest.mark.slow
def test_a_detached_job_is_cancelled(run_cells: Callable[..., str]) -> None:
    shown = run_cells(
        "%%shunter --detach\nimport time\ntime.sleep(600)\n", "job = _\njob.cancel()\njob.wait().state.name"
    )
    assert shown.rstrip().endswith("CANCELLED")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--bad", "unknown option --bad"),
        ("--dryrun", "does not support --dryrun"),
        ("--workspace .", "the notebook's workspace"),
        ("-s nowhere", "nowhere"),
        ('"open', "No closing quotation"),
        ("train.script --no-such-option 1", "no-such-option"),
    ],
)
def test_a_wrong_line_is_an_error_and_no_traceback(line: str, message: str) -> None:
    with pytest.raises(ShunterError, match=message):
        notebook.shunter(line, "print()")
