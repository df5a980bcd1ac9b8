"""TorchX's helpers for tests, ``torchx.test.fixtures`` and ``torchx.testing.fixtures``."""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: Whether the tests run in continuous integration.
IS_CI: bool = os.environ.get("CI", "").lower() == "true"


def write_shell_script(dir: str, name: str, content: list[str]) -> str:
    """Write an executable shell script of these lines; returns its path."""
    path = Path(dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *content, ""]), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


class TestWithTmpDir(unittest.TestCase):
    """A test with its own directory, ``tmpdir``. Paths are relative to it."""

    def setUp(self) -> None:
        """Make the directory."""
        self.tmpdir = Path(tempfile.mkdtemp(prefix=f"shunter_{type(self).__name__}_"))

    def tearDown(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.tmpdir, ignore_errors=True)

    def touch(self, filepath: str) -> Path:
        """Make an empty file."""
        return self.write(filepath, "")

    def mkdir(self, dirpath: str) -> Path:
        """Make a directory."""
        path = self.tmpdir / dirpath
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, filepath: str, content: Iterable[str]) -> Path:
        """Write a text, or lines, to a file."""
        path = self.tmpdir / filepath
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            file.writelines(content)
        return path

    def write_shell_script(self, script_path: str, content: list[str]) -> Path:
        """Write an executable shell script of these lines."""
        return Path(write_shell_script(str(self.tmpdir), script_path, content))

    def read(self, filepath: str | Path) -> list[str]:
        """Return the lines of a file, with their ends."""
        with (self.tmpdir / filepath).open(encoding="utf-8") as file:
            return file.readlines()

    def assertDirIsEmpty(self, directory: str | Path) -> None:  # noqa: N802 - TorchX's name
        """Assert that a directory has no entries."""
        assert os.listdir(self.tmpdir / directory) == []

    def assertDirTree(self, root: str | Path, tree: Mapping[str, Any]) -> None:  # noqa: N802 - TorchX's name
        """Assert that a directory has exactly these entries: files with their text, mappings as folders."""
        folder = self.tmpdir / root
        assert sorted(os.listdir(folder)) == sorted(tree)
        for name, content in tree.items():
            if isinstance(content, Mapping):
                self.assertDirTree(folder / name, content)
            else:
                assert (folder / name).read_text(encoding="utf-8") == content

    def create_dir_tree(self, root: str, tree: Mapping[str, Any]) -> Path:
        """Make a directory with these entries: files with their text, directories as mappings."""
        folder = self.mkdir(root)
        for name, content in tree.items():
            if isinstance(content, Mapping):
                self.create_dir_tree(os.path.join(root, name), content)
            else:
                self.write(os.path.join(root, name), content)
        return folder
