"""Packages and requirements, installed by the real pip and the real uv; nothing is asked of a network."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import uuid
import venv
from typing import TYPE_CHECKING

import pytest

from shunter_toolkit import install

from .conftest import Tree, backend
from .test_code import make_package

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "import sys\nfrom {name}_part import word\nprint(word, __name__, __file__, sys.argv[1:])\n"
SETUP = """
from setuptools import setup
setup(name="{name}", version="1", package_dir={{"": "lib"}}, py_modules=["{name}", "{name}_part"])
"""
SETUPTOOLS = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "1"
[tool.setuptools]
package-dir = {{"" = "lib"}}
py-modules = ["{name}", "{name}_part"]
"""
HATCHLING = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "1"
[tool.hatch.build.targets.wheel]
only-include = ["lib"]
sources = ["lib"]
"""
KINDS = {
    "setup.py": ("setuptools", "setup.py", SETUP),
    "pyproject.toml, setuptools": ("setuptools", "pyproject.toml", SETUPTOOLS),
    "pyproject.toml, hatchling": ("hatchling", "pyproject.toml", HATCHLING),
}


@pytest.fixture
def package() -> str:
    """A name that nothing else has."""
    return f"probe_{uuid.uuid4().hex[:8]}"


def offline(target: Path) -> dict[str, str]:
    """Real pip, no network, into a folder of the test's own."""
    return {
        "SHUNTER_INSTALLER": "pip",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads the variable as "build isolation"
        "PIP_QUIET": "1",
        "PIP_TARGET": str(target),
        "PYTHONPATH": str(target),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".py", ""])
def test_a_package_is_installed_by_pip_and_run_as_a_module(
    tree: Tree, tmp_path: Path, package: str, kind: str, suffix: str
) -> None:
    """Its modules lie where only an installation finds them."""
    builder, file, text = KINDS[kind]
    backend(builder, importlib.util.find_spec(builder) is not None, f"{builder} is not installed")
    tree.script(text.format(name=package), file)
    tree.script(MODULE.format(name=package), f"lib/{package}.py")
    tree.script("word = 'both modules'", f"lib/{package}_part.py")
    tree.hyperparameters(package + suffix, x="it's 1")
    site = tmp_path / "site"
    done = tree.train(**offline(site))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"both modules __main__ {site}/{package}.py ['-x', \"it's 1\"]\n"


@pytest.mark.slow
def test_a_package_that_cannot_be_built_is_an_install_error(tree: Tree, tmp_path: Path) -> None:
    backend("setuptools", importlib.util.find_spec("setuptools") is not None, "setuptools is not installed")
    tree.script("raise RuntimeError('this setup is unwell')", "setup.py")
    tree.script("print('never')")
    done = tree.train(**offline(tmp_path / "site"))
    assert (done.returncode, done.stdout) == (1, "")
    assert tree.report["class"] == "install_error"
    first = "Installing the package in the code directory failed (exit code 1): "
    assert tree.failure.startswith(first + "RuntimeError: this setup is unwell\n")
    assert "requirements.txt" not in tree.failure


@pytest.mark.slow
def test_a_package_without_that_module_is_the_scripts_failure(
    tree: Tree, tmp_path: Path, package: str
) -> None:
    backend("setuptools", importlib.util.find_spec("setuptools") is not None, "setuptools is not installed")
    tree.script(
        f"from setuptools import setup; setup(name='{package}', version='1', py_modules=[])", "setup.py"
    )
    tree.hyperparameters(f"{package}.main")
    assert tree.train(**offline(tmp_path / "site")).returncode == 1
    assert tree.report["class"] == "user_error"
    assert package in tree.failure.splitlines()[0]


@pytest.fixture
def with_uv(tree: Tree, tmp_path: Path) -> dict[str, str]:
    """The real uv on PATH, and an environment that it may install into: its Python runs ``train``."""
    here = os.path.dirname(sys.executable)
    found = shutil.which("uv", path=f"{here}{os.pathsep}{os.environ['PATH']}")
    backend("uv", found is not None, "uv is not installed")
    assert found is not None
    venv.create(tmp_path / "env")
    tree.python = str(tmp_path / "env/bin/python")
    source = os.path.dirname(os.path.dirname(_toolkit()))
    return {
        "PATH": f"{os.path.dirname(found)}{os.pathsep}{os.environ['PATH']}",
        "UV_OFFLINE": "1",
        "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": source,
    }


def _toolkit() -> str:
    import shunter_toolkit

    return str(shunter_toolkit.__file__)


def test_requirements_are_installed_by_uv(
    tree: Tree, tmp_path: Path, package: str, with_uv: dict[str, str]
) -> None:
    (tree.base / "code/requirements.txt").write_text(f"{make_package(tmp_path, package)}\n")
    tree.script(f"import {package}; print({package}.value)")
    done = tree.train(**with_uv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("42\n")
    assert "Installing the packages of requirements.txt with uv" in done.stderr
    listing = subprocess.run(
        [tree.python, "-c", f"import {package}; print({package}.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert listing.stdout.startswith(f"{tmp_path}/env/lib/")


def test_uvs_failure_is_distinguished_from_the_scripts(
    tree: Tree, package: str, with_uv: dict[str, str]
) -> None:
    (tree.base / "code/requirements.txt").write_text(f"{package}==1\n")
    tree.script("print('never'); raise SystemExit(1)")
    done = tree.train(**with_uv)
    assert done.returncode == 1
    assert tree.report["class"] == "install_error"
    first = tree.failure.splitlines()[0]
    assert first.startswith("Installing the packages of requirements.txt failed (exit code 1): ")
    assert package.replace("_", "-") in first
    assert "never" not in done.stdout
    (tree.base / "code/requirements.txt").write_text("")
    assert tree.train(**with_uv).returncode == 1
    assert tree.report["class"] == "user_error"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "Using x\nerror: No solution\n  cause: Because of y\n\nhint: z\n",
            "error: No solution: Because of y",
        ),
        ("  \u00d7 No solution\n  \u2570\u2500\u25b6 Because of y\n", "No solution: Because of y"),
        ("error: No build\n  Caused by: y\n", "error: No build: y"),
        ("x\nERROR: No matching distribution\nnotice\n", "ERROR: No matching distribution"),
        ("  error: subprocess-exited-with-error\n", "error: subprocess-exited-with-error"),
        ("", "it printed nothing"),
    ],
)
def test_the_installers_own_words(output: str, reason: str) -> None:
    assert install.reason(output) == reason


def test_uv_beside_a_python_that_is_not_an_environment(tree: Tree, with_uv: dict[str, str]) -> None:
    """uv does not refuse a system's Python, where things go in an image. Nothing is installed here."""
    system = next((p for p in ("/usr/bin/python3", "/usr/local/bin/python3") if os.path.exists(p)), "")
    backend("python3", bool(system), "there is no system Python")
    tree.python = system
    (tree.base / "code/requirements.txt").write_text("no-such-package-of-ours==1\n")
    tree.script("pass")
    tree.train(**with_uv)
    assert tree.report["class"] == "install_error"
    assert "externally managed" not in tree.failure
