"""Putting a workspace into an image of the Docker daemon, and reading the log of a container back."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness import HERE, Tool, Usage, Workplace, alternate
from report import Goal, Row, row_of

FILES = 5_000
FILE_SIZE = 20_000
LOG_LINES = 80_000
DOCKER = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"
BASE = "shunter-bench:base"
#: What part of TorchX's time is aimed at.
GOALS = {"first": Goal(1 / 2), "nothing changed": Goal(1 / 10), "one file changed": Goal(1 / 6)}
LOG_GOAL = Goal(0.3, "s")


@dataclass
class Timing:
    """How long the steps took, in seconds, by step."""

    seconds: dict[str, float] = field(default_factory=dict)


def measure(place: Workplace, ours: Tool, other: Tool, *, quick: bool) -> Iterator[Row]:
    """Measure; says so and leaves this subject out where no Docker daemon answers."""
    if subprocess.run([DOCKER, "version"], capture_output=True, check=False).returncode:
        print("no Docker daemon answers: images and container logs are left out", file=sys.stderr)
        return
    _make_base()
    try:
        yield from _patches(place, ours, other, 2 if quick else 5)
        yield from _logs(place, ours, other, 1 if quick else 3)
    finally:
        _docker("rmi", "--force", BASE, check=False)


def _patches(place: Workplace, ours: Tool, other: Tool, rounds: int) -> Iterator[Row]:
    made: list[str] = []
    results: dict[str, list[Timing]] = {"ours": [], "other": []}
    programs = {"ours": (ours, "patch_shunter.py"), "other": (other, "patch_torchx.py")}
    for index in range(rounds):
        workspace = _workspace(place)
        for side in sorted(programs, reverse=index % 2 == 1):
            results[side].append(_steps(place, *programs[side], workspace, made))
    for image in made:
        _docker("rmi", "--force", image, check=False)
    for step, goal in GOALS.items():
        mine, theirs = ([timing.seconds[step] for timing in results[side]] for side in ("ours", "other"))
        yield Row(f"workspace of {FILES:,} files, 100 MB: {step}", "s", mine, theirs, goal=goal)


def _steps(place: Workplace, tool: Tool, program: str, workspace: Path, made: list[str]) -> Timing:
    timing = Timing()
    for step in GOALS:
        if step == "one file changed":
            (workspace / "d07" / "f0007").write_bytes(os.urandom(FILE_SIZE))
        script = str(HERE / "programs" / program)
        usage = place.run([str(tool.python), script, BASE, str(workspace)], timeout=300)
        answer = json.loads(usage.out.read_text().splitlines()[-1])
        timing.seconds[step] = answer["seconds"]
        made.append(answer["image"])
    return timing


def _logs(place: Workplace, ours: Tool, other: Tool, rounds: int) -> Iterator[Row]:
    handles = {side: _run_job(place, tool) for side, tool in (("ours", ours), ("other", other))}
    sides = {
        "ours": lambda: _read(place, ours, handles["ours"]),
        "other": lambda: _read(place, other, handles["other"]),
    }
    try:
        done = alternate(sides, rounds)
    finally:
        for handle in handles.values():
            app = handle.rpartition("/")[2]
            found = _docker("ps", "-aq", "--filter", f"name={app}").split()
            _docker("rm", "--force", *found, check=False)
    name = f"log of {LOG_LINES:,} lines, 8 MB, from a container that has ended"
    yield row_of(name, "wall s", done, lambda usage: usage.wall, LOG_GOAL)
    yield row_of(name, "cpu s", done, lambda usage: usage.cpu)


def _run_job(place: Workplace, tool: Tool) -> str:
    line = f"i=0; while [ $i -lt {LOG_LINES} ]; do printf '%099d\\n' $i; i=$((i+1)); done"
    component = ["utils.sh", "--image", BASE, "sh", "-c", line]
    usage = place.run(tool.command("run", "-s", "local_docker", "--workspace", "", "--wait", *component))
    return next(word for word in usage.out.read_text().split() if word.startswith("local_docker://"))


def _read(place: Workplace, tool: Tool, handle: str) -> Usage:
    usage = place.run(tool.command("log", handle), timeout=300)
    printed = usage.out.read_bytes().count(b"\n")
    if printed < LOG_LINES:
        raise AssertionError(f"{tool.name} printed {printed} of {LOG_LINES} lines")
    return usage


def _workspace(place: Workplace) -> Path:
    root = place.new_dir("workspace")
    for directory in range(50):
        (root / f"d{directory:02}").mkdir()
    for index in range(FILES):
        (root / f"d{index % 50:02}" / f"f{index:04}").write_bytes(os.urandom(FILE_SIZE))
    return root


def _make_base() -> None:
    """Make an image of nothing but busybox: no registry is asked for one."""
    raw = io.BytesIO()
    busybox = shutil.which("busybox") or "/bin/busybox"
    with tarfile.open(fileobj=raw, mode="w") as tar:
        tar.add(busybox, "bin/busybox")
        for name in ("sh", "true", "echo", "printf", "sleep"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    command = [DOCKER, "import", "--change", "WORKDIR /app", "--change", "ENV PATH=/bin", "-", BASE]
    subprocess.run(command, input=raw.getvalue(), check=True, capture_output=True)


def _docker(*words: str, check: bool = True) -> str:
    return subprocess.run([DOCKER, *words], check=check, capture_output=True, text=True).stdout
