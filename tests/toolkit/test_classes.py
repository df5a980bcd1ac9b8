"""Every class of ``failure.json``, reached for real. Out of memory at a container's limit: test_docker.py."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from shunter_toolkit import child_process, errors, failure

from .conftest import Tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAITING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *a: os._exit({code}))
print("ready", flush=True)
while True:
    time.sleep(100)
"""


def _requirements(tree: Tree) -> None:
    tree.script("pass")
    (tree.base / "code/requirements.txt").write_text("no-such-package-of-ours==1\n")


# How each is reached by a run of `train` to its end, and the exit code.
REACHED: dict[str, tuple[Callable[[Tree], object] | None, int]] = {
    errors.USER_ERROR: (lambda tree: tree.script("raise KeyError('x')"), 1),
    errors.INSTALL_ERROR: (_requirements, 1),
    errors.CLIENT_ERROR: (lambda tree: tree.hyperparameters("nowhere.py"), 1),
    errors.OUT_OF_MEMORY: (lambda tree: tree.script("bytearray(1 << 62)"), 1),
    errors.SIGNAL: (lambda tree: tree.script("import os; os.kill(os.getpid(), 11)"), 139),
    errors.TIMEOUT: (lambda tree: tree.script("import time; time.sleep(100)"), 143),
    errors.HUNG: (lambda tree: tree.script("import time; time.sleep(100)"), 143),
    errors.PREEMPTED: (
        lambda tree: tree.script("import os, signal; os.kill(os.getppid(), 15); signal.pause()"),
        143,
    ),
    errors.INTERNAL_ERROR: (None, 1),
}


def test_the_list_is_whole() -> None:
    values = (value for name, value in vars(errors).items() if name.isupper())
    assert set(REACHED) == {value for value in values if isinstance(value, str)}


@pytest.mark.parametrize("name", REACHED)
def test_class(tree: Tree, name: str, tmp_path: Path) -> None:
    make, code = REACHED[name]
    env = {"SHUNTER_INSTALLER": "pip", "PIP_NO_INDEX": "1"}
    if name == errors.TIMEOUT:
        env["SHUNTER_TIMEOUT_SECONDS"] = "0.5"
    if name == errors.HUNG:
        env["SHUNTER_HANG"] = "0.5 stop"
    if make is None:  # a fault of ours: nothing that a job does should reach it, so one is put in
        fault = "import shunter_toolkit.environment as e\ne.Environment.to_env_vars = lambda self: 1 / 0\n"
        (tmp_path / "sitecustomize.py").write_text(fault)
        env["PYTHONPATH"] = str(tmp_path)
    else:
        make(tree)
    assert tree.train(**env).returncode == code
    report = tree.report
    assert (report["class"], report["exit_code"]) == (name, code)
    stopped = name == errors.PREEMPTED
    assert report["outcome"] == ("stopped" if stopped else "failed")
    assert (tree.base / "output/failure").exists() is not stopped
    if not stopped:
        assert tree.failure.splitlines()[1].startswith(f"{name}, exit code {code} on algo-1")


@pytest.mark.parametrize("code", [0, 7])
def test_preempted_keeps_the_scripts_exit_code(tree: Tree, code: int) -> None:
    tree.script(WAITING.format(code=code))
    process = tree.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == code
    report = tree.report
    assert (report["outcome"], report["class"], report["exit_code"]) == ("stopped", "preempted", code)
    assert report["signal"] == "SIGTERM"
    assert not (tree.base / "output/failure").exists()
    assert not (tree.base / "output/success").exists()


def test_a_sigterm_that_only_the_script_got_is_no_preemption(tree: Tree) -> None:
    tree.script("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert tree.train().returncode == 143
    assert (tree.report["class"], tree.report["signal"]) == ("signal", "SIGTERM")


@pytest.mark.parametrize(("own", "code"), [(0, 124), (9, 9)])
def test_timeout_of_a_script_that_saves(tmp_path: Path, own: int, code: int) -> None:
    """The clock has run out once the script is ready for that: its own code counts, and 0 is no success."""
    outcome = _run_out(tmp_path, f"lambda *a: os._exit({own})", grace=30)
    report = failure.from_outcome(outcome, "train.py")
    assert (report.fields["class"], report.exit_code) == ("timeout", code)
    assert report.fields["outcome"] == "failed"


def test_timeout_of_a_script_that_does_not_listen(tmp_path: Path) -> None:
    report = failure.from_outcome(_run_out(tmp_path, "signal.SIG_IGN", grace=0), "train.py")
    assert (report.fields["class"], report.exit_code, report.fields["signal"]) == ("timeout", 137, "SIGKILL")


def _run_out(folder: Path, handler: str, grace: float) -> child_process.Outcome:
    """Run a script whose time is up as soon as it has its handler for SIGTERM."""
    fifo = folder / "ready"
    os.mkfifo(fifo)
    script = (
        f"import os, signal\nsignal.signal(15, {handler})\nopen({str(fifo)!r}, 'w').close()\nsignal.pause()"
    )
    policy = child_process.Policy(grace, timeout=0.001, on_start=lambda pid: fifo.open().close())
    return child_process.supervise(
        child_process.Command([sys.executable, "-c", script], dict(os.environ)), policy
    )
