"""Builds a Python environment with uv, or else with venv and pip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

from . import install, log
from .environment_description import OF_UV, PROJECT, REQUIREMENTS, SCRIPT, Description
from .errors import ConfigError, InstallError

_TOUCH_SECONDS = 5.0
_SHOWN_LINES = 12
#: Packages of a lock that are folders: ``{ path = "../lib" }`` of ``tool.uv.sources``.
_FOLDERS = re.compile(r'^name = "([^"]+)"\n(?:version = .*\n)?source = \{ (?:directory|editable) = ', re.M)
#: Variables of the surrounding environment that would lead uv and pip to another one.
_OF_OTHERS = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_PROJECT_ENVIRONMENT")
_SATISFIES = (
    "import sys; from pip._vendor.packaging.specifiers import SpecifierSet; "
    "sys.exit(not SpecifierSet(sys.argv[1]).contains(sys.version.split()[0], prereleases=True))"
)


def python_in(folder: str) -> str:
    """Return the path of an environment's Python."""
    return os.path.join(folder, "venv", "bin", "python")


def version_of(python: str) -> str:
    """Return the version of a Python, such as ``3.11.7``.

    Raises:
        InstallError: it does not run.
    """
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        return "{}.{}.{}".format(*sys.version_info[:3])
    command = [python, "-I", "-S", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise InstallError(command, message=f"Cannot ask {python} for its version: {error}") from None


def source_path(folder: str, name: str) -> str:
    """Return where a file of a description is put for the installer."""
    path = os.path.normpath(os.path.join(folder, "source", name))
    if not path.startswith(os.path.join(folder, "source", "")):
        raise ConfigError(f"Cannot build an environment from {name!r}: it lies outside of the code.")
    return path


def put(path: str, content: bytes) -> None:
    """Write a file for the installer."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


class Builder:
    """Builds one environment, with uv or else with venv and pip.

    Args:
        description: the environment.
        folder: where it is built, and stays.
        python: the Python to build it for.
        cwd: where the installer runs, and finds its configuration.
        touch: called every few seconds while an installer runs.
    """

    def __init__(
        self,
        description: Description,
        folder: str,
        python: str,
        cwd: str,
        touch: Callable[[], object] = lambda: None,
    ) -> None:
        self.description = description
        self.folder = folder
        self.python = python
        self.cwd = cwd
        self.touch = touch
        self.what = f"the environment of {description.source}"
        outer = {name: value for name, value in os.environ.items() if name not in _OF_OTHERS}
        self.env = {**outer, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self.env.update(install.index_of_repository(self.env))
        self.uv = "" if self.env.get("SHUNTER_INSTALLER") == "pip" else find_uv()

    def build(self) -> None:
        """Build it.

        Raises:
            InstallError: it cannot be built; the message has the installer's last lines.
        """
        log.info(f"Building {self.what} with {'uv' if self.uv else 'pip'}")
        if self.uv:
            self._with_uv()
        else:
            self._with_pip()

    def _with_uv(self) -> None:
        description, venv = self.description, os.path.join(self.folder, "venv")
        if description.kind == PROJECT:
            self.env["UV_PROJECT_ENVIRONMENT"] = venv
            # the project itself travels as code
            others = [word for name in self.folders() for word in ("--no-install-package", name)]
            self.run([self.uv, "sync", "--quiet", "--no-install-workspace", *others, *self.locked()])
            return
        needed = description.requires_python or self.python
        self.run([self.uv, "venv", "--quiet", "--no-project", "--python", needed, venv])
        if description.kind == SCRIPT:
            self.env["VIRTUAL_ENV"] = venv
            self.run([self.uv, "sync", "--quiet", "--active", *self.locked()])
        elif self.arguments():
            python = python_in(self.folder)
            self.run([self.uv, "pip", "install", "--quiet", "--python", python, *self.arguments()])

    def _with_pip(self) -> None:
        if self.description.kind in OF_UV:
            raise InstallError(
                ["uv", "sync"],
                message=f"Cannot build {self.what}: it needs uv, which is not on PATH. "
                "Install it (python -m pip install uv), or name a requirements.txt instead.",
            )
        if subprocess.run([self.python, "-c", "import pip, venv"], stderr=subprocess.DEVNULL).returncode != 0:
            message = f"Cannot build {self.what}: {self.python} has no pip or no venv, and uv is not on PATH."
            raise InstallError([self.python], message=f"{message} Install uv, or name an image that has it.")
        required = self.description.requires_python
        if required and subprocess.run([self.python, "-c", _SATISFIES, required]).returncode != 0:
            raise InstallError(
                [self.python],
                message=f"Cannot build {self.what}: it needs Python {required}, and {self.python} is "
                f"{version_of(self.python)}. Install uv, which finds or downloads that Python.",
            )
        # the pip that is there installs into it: not every Python can install another pip
        self.run([self.python, "-m", "venv", "--without-pip", os.path.join(self.folder, "venv")])
        if self.arguments():
            pip = [
                self.python,
                "-m",
                "pip",
                "--python",
                python_in(self.folder),
                "install",
                "--quiet",
                "--no-input",
            ]
            self.run([*pip, *self.arguments()])

    def locked(self) -> list[str]:
        """Return what ``uv sync`` and ``uv export`` are to read, a project or a script, which is written."""
        lock = next(iter(self.description.files), "")
        if self.description.kind == PROJECT:
            return ["--frozen", "--no-dev", "--project", os.path.dirname(source_path(self.folder, lock))]
        script = source_path(self.folder, lock[: -len(".lock")] if lock else "script.py")
        put(script, self.description.header.encode())
        return [*(["--frozen"] if lock else []), "--script", script]

    def folders(self) -> list[str]:
        """Return the packages of a project's lock that are folders; they travel as code."""
        with open(source_path(self.folder, next(iter(self.description.files))), encoding="utf-8") as file:
            return _FOLDERS.findall(file.read())

    def arguments(self) -> list[str]:
        """Return what ``pip install`` is to install, unless only uv can read it."""
        if self.description.kind == REQUIREMENTS:
            return ["-r", source_path(self.folder, next(iter(self.description.files)))]
        return list(self.description.packages)

    def run(self, command: Sequence[str]) -> None:
        """Run an installer.

        Raises:
            InstallError: it failed; the message has its last lines.
        """
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=self.cwd,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            except OSError as error:
                message = f"Cannot build {self.what}: {command[0]}: {error.strerror}"
                raise InstallError(list(command), message=message) from None
            try:
                self._await(process)
            except BaseException:
                process.kill()
                process.wait()
                raise
            if process.returncode == 0:
                return
            output.seek(0)
            text = output.read().decode("utf-8", "replace").replace(self.folder, "")
        reason = install.reason(text)
        reason = reason[len("error: ") :] if reason.startswith("error: ") else reason
        lines = [line.strip() for line in text.splitlines() if line.strip()][-_SHOWN_LINES:]
        others = [line for line in lines if line.partition(": ")[2] not in reason or ": " not in line]
        message = "\n  ".join([f"Cannot build {self.what}: {reason}", *others])
        raise InstallError(list(command), process.returncode, "\n".join(lines), message=message)

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        while True:
            try:
                process.wait(timeout=_TOUCH_SECONDS)
            except subprocess.TimeoutExpired:
                self.touch()
            else:
                return


def find_uv() -> str:
    """Return the path of uv: on PATH, or beside this Python; "" if it is not there."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    return shutil.which("uv") or (beside if os.access(beside, os.X_OK) else "")
