from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import shunter
from tests.forked_command import import_all, run_forked, start_forked

SOURCE = str(Path(shunter.__file__).parents[1])
TESTS = str(Path(__file__).parents[2])
DEADLINE = 100.0  # the limit of a test is 120

ENTRY_POINTS = """
[shunter.schedulers]
remote = tests.cli.remote:create_scheduler

[shunter.cmds]
greet = tests.cli.remote:Greet
broken = tests.cli.remote:Broken
status = tests.cli.remote:Broken

[torchx.cli.cmds]
old = tests.cli.remote:Old
greet = tests.cli.remote:Broken
"""


class Result:
    """What a finished command left."""

    def __init__(self, code: int, stdout: bytes, stderr: bytes) -> None:
        self.code = code
        self.raw = stdout
        self.out = stdout.decode(errors="replace")
        self.err = stderr.decode(errors="replace")

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Cli:
    """Runs the real command line, in processes and a directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([SOURCE, TESTS]),
            "PYTHONWARNINGS": "",
            "REMOTE_JOBS": str(directory / "remote-jobs"),
            "TERM": "xterm",
        }
        for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "LOGLEVEL", "COLUMNS"):
            self.environ.pop(name, None)

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "shunter", *args]

    def __call__(self, *args: str, stdin: str = "", code: int | None = 0, **environ: str) -> Result:
        process = self.start(*args, stdin=subprocess.PIPE, **environ)
        stdout, stderr = process.communicate(stdin.encode(), timeout=DEADLINE)
        result = Result(process.returncode, stdout, stderr)
        assert "Traceback" not in result.err, result
        assert code is None or result.code == code, result
        return result

    def start(self, *args: str, stdin: int = subprocess.DEVNULL, **environ: str) -> subprocess.Popen[bytes]:
        return start_forked(
            args,
            {**self.environ, **environ},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory,
        )

    def on_terminal(self, *args: str, **environ: str) -> Terminal:
        return Terminal(args, self.directory, {**self.environ, **environ}, is_shunter=True)

    def shell(self, *words: str, code: int = 0) -> str:
        """Submit a job that runs a shell script, without waiting; returns its handle."""
        return self(
            "run", "--detach", "utils.sh", "--entrypoint", "sh", "--", "-c", *words, code=code
        ).out.strip()

    def plugins(self) -> None:
        """Install a distribution with a scheduler and commands."""
        info = self.directory / "site" / "remote-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
        self.environ["PYTHONPATH"] += os.pathsep + str(info.parent)

    def remote_job(self, app_id: str) -> Path:
        return Path(self.environ["REMOTE_JOBS"]) / app_id

    def cluster(self, *, up: bool) -> None:
        """Make the remote scheduler unreachable, or reachable again."""
        down = Path(self.environ["REMOTE_JOBS"]) / "down"
        down.unlink() if up else down.touch()

    def set_remote_state(self, app_id: str, state: str) -> None:
        path = self.remote_job(app_id)
        partial = path.parent.with_name("partial")
        partial.write_text(json.dumps({**json.loads(path.read_text()), "state": state}))
        partial.rename(path)


class Terminal:
    """A command on a terminal: a program's words, or (``is_shunter``) those after `shunter`."""

    def __init__(
        self, command: Sequence[str], directory: Path, environ: dict[str, str], is_shunter: bool = False
    ) -> None:
        self.shown = b""
        self._read = 0
        import_all()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            if is_shunter:
                run_forked(command, environ)
            os.execve(command[0], command, environ)
        self.code: int | None = None

    def wait_for(self, text: bytes) -> bytes:
        """Read until a text appears behind what was waited for before; returns what was read until then."""
        while text not in self.shown[self._read :]:
            assert self._more(), f"{text!r} never came: {self.shown!r}"
        end = self.shown.index(text, self._read) + len(text)
        seen, self._read = self.shown[self._read : end], end
        return seen

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def finish(self) -> int:
        """Read to the end and return the exit code."""
        while self._more():
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self._fd)
        self.code = os.waitstatus_to_exitcode(status)
        assert b"Traceback" not in self.shown, self.shown
        return self.code

    def kill(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._fd)

    def _more(self) -> bool:
        ready, _, _ = select.select([self._fd], [], [], DEADLINE)
        assert ready, f"nothing came for {DEADLINE} s: {self.shown!r}"
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other side is closed
            return False
        self.shown += data
        return bool(data)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    directory = tmp_path / "work"
    directory.mkdir()
    made = Cli(directory)
    yield made
    for row in made("list", "--json", "-s", "local_cwd", code=None).json:
        if row["state"] not in ("SUCCEEDED", "FAILED", "CANCELLED"):
            made("cancel", "--wait", row["handle"], code=None)


@pytest.fixture
def terminal(cli: Cli) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*args: str, **environ: str) -> Terminal:
        opened.append(cli.on_terminal(*args, **environ))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.kill()
