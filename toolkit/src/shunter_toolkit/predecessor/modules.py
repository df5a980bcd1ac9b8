"""Installing and running a user's code as a package."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from .. import child_process, code_download, resources, script_command
from .. import install as installing
from ..errors import ExecuteUserScriptError, ImportModuleError
from ..layout import Layout
from ..output_relay import Relay

DEFAULT_MODULE_NAME = "default_user_module_name"
CA_REPOSITORY_ARN_ENV = "CA_REPOSITORY_ARN"


def exists(name: str) -> bool:
    """Whether a module can be imported."""
    return importlib.util.find_spec(name) is not None


def has_requirements(path: str) -> bool:
    """Whether a folder has a ``requirements.txt``."""
    return script_command.has_requirements(path)


def prepare(path: str, name: str) -> None:
    """Write a ``setup.py`` (and its helpers) for a folder of plain scripts, unless it has one."""
    setup = os.path.join(path, "setup.py")
    if os.path.exists(setup):
        return
    _write(
        setup,
        f'from setuptools import setup\n\nsetup(packages=[""], name="{name}", version="1.0.0", '
        "include_package_data=True)\n",
    )
    _write(os.path.join(path, "setup.cfg"), "[wheel]\nuniversal = 1\n")
    lines = """
        recursive-include . *
        recursive-exclude . __pycache__*
        recursive-exclude . *.pyc
        recursive-exclude . *.pyo
    """
    _write(os.path.join(path, "MANIFEST.in"), textwrap.dedent(lines).lstrip())


def _write(path: str, text: str) -> None:
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def install(path: str, capture_error: bool = False) -> None:
    """Install the package in a folder, its ``requirements.txt`` first.

    Raises:
        InstallModuleError: it could not be installed.
        InstallRequirementsError: what it needs could not be installed.
    """
    if has_requirements(path):
        install_requirements(path, capture_error)
    installing.install_package(path, os.environ)


def install_requirements(path: str, capture_error: bool = False) -> None:
    """Install the ``requirements.txt`` of a folder.

    Raises:
        InstallRequirementsError: it could not be installed.
    """
    installing.install_requirements(path, os.environ)


def import_module(uri: str, name: str = DEFAULT_MODULE_NAME, cache: bool | None = None) -> Any:
    """Fetch the user's code, install it, and import a module of it. ``cache`` is the older predecessor's.

    Raises:
        ImportModuleError: it cannot be imported.
        InstallError: it cannot be installed.
    """
    download_and_install(uri, name)
    try:
        module = importlib.import_module(name)
        return importlib.reload(module)
    except Exception as error:
        raise ImportModuleError(f"Cannot import {name}: {type(error).__name__}: {error}.") from error


def download_and_install(uri: str, name: str = DEFAULT_MODULE_NAME, cache: bool = True) -> None:
    """Fetch the user's code and make its modules importable, under the older predecessor's name."""
    code = Layout().code
    code_download.fetch_code(uri, code)
    if os.path.exists(os.path.join(code, "setup.py")):
        install(code)
    elif has_requirements(code):
        install_requirements(code)
    if code not in sys.path:
        sys.path.insert(0, code)
    importlib.invalidate_caches()


def run(
    module_name: str,
    args: Sequence[str] | None = None,
    env_vars: Mapping[str, str] | None = None,
    wait: bool = True,
    capture_error: bool = False,
) -> Any:
    """Run a module as a program (``python -m``), under the older predecessor's name.

    Args:
        module_name: the module.
        args: its arguments.
        env_vars: its variables, over those of this process.
        wait: False returns the running ``subprocess.Popen``.
        capture_error: whether the error carries the last lines of stderr.

    Raises:
        ExecuteUserScriptError: it failed.
    """
    code = Layout().code
    env = {**os.environ, **(env_vars or {})}
    env["PYTHONPATH"] = os.pathsep.join(part for part in (code, env.get("PYTHONPATH")) if part)
    line = [resources.script_python(), "-m", module_name, *(args or [])]
    where = code if os.path.isdir(code) else None
    if not wait:
        return subprocess.Popen(line, env=env, cwd=where)
    relays = {2: Relay(2)} if capture_error else {}
    outcome = child_process.supervise(child_process.Command(line, env, where), relays=relays)
    if outcome.status != 0:
        raise ExecuteUserScriptError(line, outcome.status, outcome.stderr)
    return outcome


def run_module(
    uri: str,
    args: Sequence[str],
    env_vars: Mapping[str, str] | None = None,
    name: str = DEFAULT_MODULE_NAME,
    cache: bool | None = None,
    wait: bool = True,
    capture_error: bool = False,
) -> Any:
    """Fetch the user's code, install it, and run a module of it, under the older predecessor's name.

    Raises:
        ExecuteUserScriptError: it failed.
        InstallError: it cannot be installed.
    """
    os.environ.update(env_vars or {})
    download_and_install(uri, name)
    return run(name, args, env_vars, wait, capture_error)
