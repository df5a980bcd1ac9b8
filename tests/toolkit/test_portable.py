"""The toolkit without what only Linux offers (`shunter_toolkit.kernel`), as on macOS."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shunter_toolkit
from shunter import system
from tests.backends import need

from .conftest import DUMP, Tree

SOURCE = Path(shunter_toolkit.__file__).parent
LINUX_TEXTS = re.compile(r"^/proc/(?!$)|^/sys/")
LINUX_NAMES = re.compile(
    r"^sched_|xattr$|^posix_fallocate$|^SO_PEERCRED$|pidfd|^epoll$|^pipe2$|^CDLL$|^waitid$"
)


@pytest.fixture(autouse=True)
def switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHUNTER_PORTABLE", "1")


def test_a_script_runs(tree: Tree) -> None:
    tree.script(DUMP)
    done = tree.train()
    assert done.returncode == 0, done.stderr
    assert tree.dump()["env"]["SM_MODEL_DIR"] == str(tree.base / "model")
    assert int(tree.dump()["env"]["SM_NUM_CPUS"]) == os.cpu_count()
    assert tree.succeeded


@pytest.mark.parametrize("is_file", [False, True])
def test_a_failure_names_its_error(tree: Tree, tmp_path: Path, is_file: bool) -> None:
    tree.script("raise ValueError('no luck')")
    with (tmp_path / "log").open("w") as file:
        output = file if is_file else subprocess.PIPE
        command = tree.command()
        done = subprocess.run(command, env=tree.env(), stdout=output, stderr=output, check=False)
    assert done.returncode == 1
    assert "ValueError: no luck" in tree.failure


def test_a_stopped_script_and_its_children_end(tree: Tree) -> None:
    tree.script("import subprocess; print(subprocess.Popen(['sleep', '71']).pid, flush=True); input()")
    with subprocess.Popen(
        tree.command(), env=tree.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        assert time.monotonic() - began < 25
    assert system.process_facts(child) is None


def test_children_are_found() -> None:
    need("ps")
    with subprocess.Popen(["sleep", "60"]) as process:
        program = (
            "import sys; from shunter_toolkit import kernel; print(*kernel.children_of(int(sys.argv[1])))"
        )
        command = [sys.executable, "-c", program, str(os.getpid())]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert str(process.pid) in done.stdout.split()
        process.kill()


def test_other_modules_use_nothing_that_only_linux_has() -> None:
    found = []
    for path in SOURCE.rglob("*.py"):
        if path.name in (
            "kernel.py",
            "opt_ml.py",  # refused elsewhere
            "hung_program.py",  # this and the next look whether there is a /proc
            "stack_dump.py",
        ):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match = None
            if isinstance(node, ast.Attribute):
                match = LINUX_NAMES.search(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                match = LINUX_TEXTS.search(node.value)
            if match:
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []
