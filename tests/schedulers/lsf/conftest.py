from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shunter.schedulers.lsf_scheduler.scheduler import LsfScheduler, create_scheduler

PROGRAMS = (
    *("bsub", "bjobs", "bkill", "bhist", "blaunch"),
    *("lsid", "bqueues", "bparams", "bhosts", "lshosts", "lsload"),
)


def stand_in(directory: Path) -> dict[str, str]:
    """Make a stand-in for LSF in a directory; returns the variables with which it is found."""
    root, programs = directory / "lsf", directory / "lsf-bin"
    root.mkdir()
    programs.mkdir()
    fake = Path(__file__).with_name("fake_lsf.py").read_text().partition("\n")[2]
    for name in PROGRAMS:
        program = programs / name
        program.write_text(f"#!{sys.executable} -S\n{fake}")
        program.chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "FAKE_LSF": str(root)}


@pytest.fixture
def lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a stand-in for LSF, whose programs are found."""
    for name, value in stand_in(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path / "lsf"


@pytest.fixture
def scheduler(lsf: Path) -> Iterator[LsfScheduler]:
    with closing(create_scheduler("test")) as scheduler:
        yield scheduler
