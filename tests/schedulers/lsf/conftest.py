from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from trainyard.schedulers.lsf.scheduler import LsfScheduler, create_scheduler

PROGRAMS = ("bsub", "bjobs", "bkill", "bhist", "blaunch", "lsid", "bqueues")


@pytest.fixture
def lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a stand-in for LSF, whose programs are found."""
    root = tmp_path / "lsf"
    root.mkdir()
    programs = tmp_path / "lsf-bin"
    programs.mkdir()
    fake = Path(__file__).with_name("fake_lsf.py")
    for name in PROGRAMS:
        program = programs / name
        program.write_text(f"#!{sys.executable} -S\n{fake.read_text().partition(chr(10))[2]}")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LSF", str(root))
    return root


@pytest.fixture
def scheduler(lsf: Path) -> Iterator[LsfScheduler]:
    with closing(create_scheduler("test")) as scheduler:
        yield scheduler
