"""What tests of several schedulers do with `shunter dev`, on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Terminal

SHUNTER = [sys.executable, "-P", "-m", "shunter"]


def handle_of(shown: Terminal, scheduler: str) -> str:
    """Return the handle that is printed once the job is submitted."""
    shown.wait_for(b"://")
    return f"{scheduler}://" + shown.wait_for(b"\r").decode().strip()


def check_on_a_cluster(scheduler: str, project: Path, *words: str) -> None:
    """Start a dev job of a project, enter it twice, and see it end, although a shell is open."""
    project.mkdir(exist_ok=True)
    (project / "mine.py").write_text("print('code', 'of', 'mine')\n")
    environ = dict(os.environ, TERM="xterm")
    command = [
        *SHUNTER,
        "dev",
        "-s",
        scheduler,
        "--workspace",
        str(project),
        "--idle",
        "10s",
        "--mem",
        "256M",
    ]
    shown = Terminal([*command, *words], project, environ)
    try:
        handle = handle_of(shown, scheduler)
        shown.wait_for(b"# ")  # Grid Engine loses what is typed before
        shown.type(b"python3 mine.py; echo SM=$SM_HOSTS; tty; exit 5\r")
        shown.wait_for(b"code of mine")
        shown.wait_for(b"SM=[")
        shown.wait_for(b"/dev/pts/")
        assert shown.finish() == 5
        assert b"runs on until nobody uses it" in shown.shown
    finally:
        shown.kill()
    done = subprocess.run(
        [*SHUNTER, "exec", handle, "--", "sh", "-c", "echo $SM_HOSTS; exit 6"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout[:1], done.returncode) == ("[", 6), done
    again = Terminal([*SHUNTER, "dev", handle], project, environ)
    try:
        again.wait_for(b"# ")
        again.type(b"sleep 1000\r")
        again.wait_for(b"this job is idle, and ends in")
        again.wait_for(b"SUCCEEDED")
        again.finish()
    finally:
        again.kill()
    explained = subprocess.run(
        [*SHUNTER, "why", handle], env=environ, capture_output=True, text=True, check=True
    )
    assert "it ended because it was idle: for 10 s nobody typed" in explained.stdout
