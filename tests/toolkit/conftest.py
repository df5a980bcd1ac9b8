"""A base directory per test, and ``train`` run in it as a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends import backend

if TYPE_CHECKING:
    from pathlib import Path

RESOURCE = {
    "current_host": "algo-1",
    "current_instance_type": "ml.p3.2xlarge",
    "current_group_name": "group-1",
    "hosts": ["algo-1"],
    "instance_groups": [
        {"instance_group_name": "group-1", "instance_type": "ml.p3.2xlarge", "hosts": ["algo-1"]}
    ],
    "network_interface_name": "eth0",
}

DUMP = """
import json, os, sys
json.dump({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}, open(os.environ["DUMP"], "w"))
"""


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without anything that would steer the toolkit."""
    prefixes = ("SM_", "SAGEMAKER_", "SHUNTER_", "TRAINING_", "TORCHX_", "AWS_", "PYTHONPATH", "OMPI_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, **extra}


class Tree:
    """A base directory like the one that the platform prepares."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.python = sys.executable
        for folder in ("code", "input/config", "input/data"):
            (base / folder).mkdir(parents=True, exist_ok=True)
        self.configure("hyperparameters", {"sagemaker_program": "train.py"})
        self.configure("inputdataconfig", {})
        self.configure("resourceconfig", RESOURCE)

    def configure(self, name: str, value: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        (self.base / f"input/config/{name}.json").write_text(text, encoding="utf-8")

    def hyperparameters(self, program: str = "train.py", **raw: str) -> None:
        self.configure("hyperparameters", {"sagemaker_program": program, **raw})

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.base / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def env(self, **extra: str) -> dict[str, str]:
        return clean_environment(
            SAGEMAKER_BASE_DIR=str(self.base), DUMP=str(self.base / "dump.json"), **extra
        )

    def command(self, *args: str) -> list[str]:
        return [self.python, "-m", "shunter_toolkit", "train", *args]

    def train(self, *args: str, timeout: float = 110, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run ``train`` to its end."""
        return subprocess.run(
            self.command(*args),
            env=self.env(**extra),
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )

    def start(self, *args: str, **extra: str) -> subprocess.Popen[str]:
        """Start ``train`` with its output in pipes."""
        return subprocess.Popen(
            self.command(*args),
            env=self.env(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def dump(self) -> dict[str, Any]:
        """What a script made of ``DUMP`` saw."""
        loaded: dict[str, Any] = json.loads((self.base / "dump.json").read_text())
        return loaded

    @property
    def failure(self) -> str:
        return (self.base / "output/failure").read_text(encoding="utf-8")

    @property
    def report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.base / "output/failure.json").read_text())
        return loaded

    @property
    def succeeded(self) -> bool:
        return (self.base / "output/success").exists() and not (self.base / "output/failure.json").exists()


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory apart from `tmp_path`, whose content these tests look at whole."""
    directory = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(directory))
    return directory


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "ml")


__all__ = ["Tree", "backend"]
