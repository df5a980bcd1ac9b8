from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from shunter.specs.workspace import Workspace
from shunter.workspace.selection import Selection, select
from shunter.workspace.snapshot import Snapshot, snapshot


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty directory outside of any checkout."""
    directory = tmp_path / "project"
    directory.mkdir()
    return directory


def write(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files; a path that ends in a slash is a directory."""
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def git(directory: Path, *words: str) -> str:
    """Run git as somebody without a configuration of their own."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"]
    environ = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(
        ["git", *identity, *words], cwd=directory, env=environ, check=True, capture_output=True, text=True
    )
    return done.stdout


def files_of(selection: Selection) -> set[str]:
    return {path for path, _ in selection.files}


def chosen(root: Path) -> set[str]:
    """Return the files of a project."""
    return files_of(select(str(root)))


def take(*roots: Path, **projects: Path) -> Snapshot:
    """Take a snapshot of a directory, or of several: destination -> directory."""
    places = {str(root): "" for root in roots} | {str(root): to for to, root in projects.items()}
    return snapshot(Workspace(places))
