"""`train` when things go wrong from outside: stops, kills, full disks; and what it picks to install."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from shunter import system

from .conftest import Tree, backend

if TYPE_CHECKING:
    from pathlib import Path


def test_a_killed_train_takes_its_script_along(tree: Tree) -> None:
    tree.script("import os, time; print(os.getpid(), flush=True); time.sleep(100)")
    process = tree.start()
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()  # ends when the script has closed its stdout
    deadline = time.monotonic() + 60
    while system.process_facts(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert system.process_facts(pid) is None


def test_stop_while_installing(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "pip.py").write_text("import time; print('installing', flush=True); time.sleep(100)")
    (tree.base / "code/requirements.txt").write_text("x")
    tree.script("print('never')")
    process = tree.start(PYTHONPATH=str(tmp_path), SHUNTER_INSTALLER="pip")
    assert process.stdout is not None
    assert process.stdout.readline() == "installing\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 143
    assert "never" not in out
    assert (tree.report["outcome"], tree.report["class"]) == ("stopped", "preempted")


def test_ctrl_c_stops_too(tree: Tree) -> None:
    tree.script("import time; print('ready', flush=True); time.sleep(100)")
    process = tree.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert tree.report["signal"] == "SIGINT"


def test_a_disk_that_is_really_full(tree: Tree, tmp_path: Path) -> None:
    base = tmp_path / "small"
    base.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(base)], capture_output=True, check=False
    )
    backend("mount", mounted.returncode == 0, "a tmpfs cannot be mounted here (root is needed)")
    try:
        small = Tree(base / "ml")
        small.script(
            """
            import os
            with open(os.environ["SM_MODEL_DIR"] + "/model", "wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
            """
        )
        assert small.train().returncode == 1
        assert small.failure.startswith("OSError: [Errno 28] No space left on device")
        report = small.report
        assert (report["class"], report["exception"]) == ("user_error", "OSError")
    finally:
        subprocess.run(["umount", str(base)], check=True)


def test_read_only_output_still_gives_the_exit_code(tree: Tree) -> None:
    tree.script("raise SystemExit(3)")
    (tree.base / "output").write_text("a file where a folder should be")
    done = tree.train()
    assert done.returncode in (3, errno.EEXIST, errno.ENOTDIR)
    assert "Traceback" not in done.stderr


def test_a_program_under_a_shell_gets_one_signal_and_the_grace_period(tree: Tree) -> None:
    tree.script(
        """
        import os, signal, time
        def save(number, frame):
            with open(os.environ["SM_MODEL_DIR"] + "/saved", "a") as file:
                file.write("begun ")
                time.sleep(1)
                file.write("done ")
            os._exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        while True:
            time.sleep(100)
        """
    )
    tree.script(f"{sys.executable} train.py\n", "run.sh")
    tree.hyperparameters("run.sh")
    process = tree.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert (tree.base / "model/saved").read_text() == "begun done "
    assert tree.report["outcome"] == "stopped"


LAUNCHER = """
import os, subprocess, sys, threading
code = "from shunter_toolkit.orphans import die_with_launcher as d; d(); print('up', flush=True); input()"
def launch():
    global child
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"up\\n"
if sys.argv[1] == "thread":
    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
else:
    launch()
    print(child.pid, flush=True)
    os.kill(os.getpid(), 9)
print("thread ended", flush=True)
sys.exit(child.wait())
"""


def test_a_rank_dies_with_its_launcher_but_not_with_a_thread_of_it() -> None:
    """The child's stdin stays open, so that nothing but the signal can end it before we let it."""

    def start(where: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    process = start("thread")
    assert process.stdout is not None
    assert process.stdout.readline() == "thread ended\n"
    process.communicate("go on\n", timeout=30)
    assert process.returncode == 0
    process = start("first")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        pass  # it has ended already
    else:
        assert select.select([handle], [], [], 30)[0]  # readable when the process has ended
        os.close(handle)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
