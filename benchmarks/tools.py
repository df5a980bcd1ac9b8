"""The two sides, each installed into a separate virtual environment beside this directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import HERE, Tool

ROOT = HERE.parent
REQUIREMENTS = HERE / "requirements-torchx.txt"


def shunter() -> Tool:
    """Return shunter from this working tree, with what it and `shunter ui` need and nothing else."""
    venv = _venv(".venv-bench-shunter", ["-e", f"{ROOT}[ui]"], ROOT / "pyproject.toml")
    return _tool("shunter", venv)


def torchx() -> Tool:
    """Return TorchX from the package index."""
    return _tool("torchx", _venv(".venv-bench-torchx", ["-r", str(REQUIREMENTS)], REQUIREMENTS))


def _venv(name: str, packages: list[str], declared_in: Path) -> Path:
    """Return a virtual environment, made again when what it was made from has changed."""
    venv = ROOT / name
    stamp = venv / ".stamp"
    wanted = "\n".join([*packages, declared_in.read_text()])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {' '.join(packages)} into {name}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        stamp.write_text(wanted)
    return venv


def _tool(name: str, venv: Path) -> Tool:
    program = venv / "bin" / name
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    version = said.strip().removeprefix(name).strip(" -")
    return Tool(name, version, venv / "bin" / "python", program)
