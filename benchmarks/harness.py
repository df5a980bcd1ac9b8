"""Measuring: one command at a time, both sides in turn, and what is kept of it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

HERE = Path(__file__).resolve().parent
SPAWN = HERE / "spawn.py"
PR_SET_CHILD_SUBREAPER = 36

T = TypeVar("T")


@dataclass(frozen=True)
class Usage:
    """What one command used.

    Attributes:
        started_at: seconds since the epoch.
        wall: seconds until the command ended.
        cpu: seconds of cpu of the command and the children that it waited for.
        all_cpu: the same with every process that it left behind, until all had ended.
        peak_mib: the most memory that one process of the command held.
        code: exit code.
        out, err: files with its output.
    """

    started_at: float
    wall: float
    cpu: float
    all_cpu: float
    peak_mib: float
    code: int
    out: Path
    err: Path


@dataclass(frozen=True)
class Tool:
    """One side of the comparison: its name, version, interpreter and program."""

    name: str
    version: str
    python: Path
    program: Path

    def command(self, *args: str) -> list[str]:
        return [str(self.program), *args]

    def run_locally(self, *args: str) -> list[str]:
        """Return the command line of `run` with the scheduler that starts processes of this machine."""
        return self.command("run", "-s", "local_cwd", *args)


class CommandFailed(Exception):
    """A command ended otherwise than it should."""


@dataclass
class Workplace:
    """Where commands run: an empty directory, a home of their own, and a bare environment."""

    path: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="shunter-bench-")))

    def __post_init__(self) -> None:
        for name in ("cwd", "home", "tmp", "out"):
            (self.path / name).mkdir()
        adopt_orphans()

    def environ(self) -> dict[str, str]:
        return {
            "HOME": str(self.path / "home"),
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "TMPDIR": str(self.path / "tmp"),
            "SHUNTER_HOME": str(self.path / "home" / "shunter"),
        }

    def new_dir(self, name: str) -> Path:
        """Return an empty directory."""
        path = self.path / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def run(
        self, command: Sequence[str], *, codes: Iterable[int] | None = (0,), timeout: float = 120
    ) -> Usage:
        """Run a command to its end, and wait for the end of all that it left behind.

        Args:
            command: the program's path and its arguments.
            codes: exit codes that are right; None for any.
            timeout: seconds.
        """
        out, err = self.path / "out" / "stdout", self.path / "out" / "stderr"
        spawner = self.start(command, out, err)
        try:
            answer, _ = spawner.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(spawner.pid, signal.SIGKILL)
            raise CommandFailed(f"{' '.join(command)}: not over after {timeout:g} s") from None
        report = json.loads(answer)
        peak = report.pop("peak_kib") / 1024
        usage = Usage(**report, peak_mib=peak, all_cpu=report["cpu"] + wait_for_orphans(), out=out, err=err)
        if codes is not None and usage.code not in codes:
            tail = err.read_text(errors="replace")[-2000:]
            raise CommandFailed(f"{' '.join(command)}: exit code {usage.code}\n{tail}")
        return usage

    def start(self, command: Sequence[str], out: Path, err: Path) -> subprocess.Popen[bytes]:
        """Start a command; its `communicate` returns what `spawn` reports."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(SPAWN), str(out), str(err), *command],
            stdout=subprocess.PIPE,
            cwd=self.path / "cwd",
            env=self.environ(),
            start_new_session=True,
        )

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def adopt_orphans() -> None:
    """Have processes whose parents have ended become children of this one, so that they can be counted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_for_orphans() -> float:
    """Wait for the end of all children; return the cpu that they used, in seconds."""
    used = 0.0
    while True:
        try:
            _, _, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return used
        used += usage.ru_utime + usage.ru_stime


def alternate(sides: dict[str, Callable[[], T]], rounds: int, warm_ups: int = 1) -> dict[str, list[T]]:
    """Measure all sides in every round, in turn first and last, so that a slow moment hits them alike."""
    for _ in range(warm_ups):
        for measure in sides.values():
            measure()
    results: dict[str, list[T]] = {name: [] for name in sides}
    for i in range(rounds):
        names = list(sides) if i % 2 == 0 else list(reversed(sides))
        for name in names:
            results[name].append(sides[name]())
    return results


def load() -> float:
    """Return how many processes ran or wanted to, on average over the last minute."""
    return os.getloadavg()[0]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Look every few milliseconds until a condition holds; tell whether it came to hold."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return condition()
