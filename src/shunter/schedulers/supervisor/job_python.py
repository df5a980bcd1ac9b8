"""Which Python the processes of a job find as `python`: that of the user, not that of a tool.

In this order:

1. that of an activated environment (``VIRTUAL_ENV``, ``CONDA_PREFIX``);
2. that of the project's ``.venv``, in the directory of the script or the workspace or above, if it has a
   ``bin/python`` and belongs to a user who is trusted (`system.ownership`);
3. that of the environment that shunter is installed in, unless ``uv tool``, ``uvx`` or ``pipx`` made it:
   such an environment has nothing in it but the tool;
4. that of ``PATH``;
5. the one that shunter runs with, with a warning.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shunter.specs.app import AppDef
from shunter.specs.training import script_of
from shunter.system.ownership import search_places, why_not_used
from shunter.system.processes import find_program

ACTIVATED = ("VIRTUAL_ENV", "CONDA_PREFIX")
#: What ``uv tool install`` and ``pipx`` leave in the environment of a tool.
_TOOL_FILES = ("uv-receipt.toml", "pipx_metadata.json")
#: The part of uv's cache in which ``uvx`` makes environments.
_UVX_FOLDER = "archive-v0"
_LONGEST_START = 10.0
_WHAT = "import sys; sys.stdout.write(sys.executable + '\\n%d.%d.%d' % sys.version_info[:3])"


@dataclass
class JobPython:
    """The Python of a job.

    Args:
        path: its program; "" if there is none.
        version: such as "3.12.1"; "" if it cannot be started.
        origin: where it was found, in words.
        search_path: the job's PATH, in which it is the first.
        warning: what the user should know; may be empty.
    """

    path: str
    version: str
    origin: str
    search_path: str
    warning: str = ""

    def __str__(self) -> str:
        return f"{self.version} {self.path}".strip()


def places_of(app: AppDef | None, roots: Sequence[str]) -> list[str]:
    """Return the directories of a job's scripts, then those of its code, where a ``.venv`` is looked for."""
    roles = app.roles if app is not None else ()
    scripts = [script_of(role.args, role.metadata) for role in roles]
    return [
        *(os.path.dirname(os.path.join(root, name)) for name in scripts if name for root in roots),
        *roots,
    ]


def choose(places: Iterable[str]) -> JobPython:
    """Choose the Python of a job.

    Args:
        places: the directories of the script and the workspace, where a project's ``.venv`` is looked for.
    """
    path = os.environ.get("PATH", os.defpath)
    own = os.path.join(sys.prefix, "bin")
    active = any(os.environ.get(name) for name in ACTIVATED)
    warning = ""
    if active:
        origin = "the activated environment"
    else:
        venv, warning = _project_environment(places)
        if venv:
            path = f"{os.path.join(venv, 'bin')}{os.pathsep}{path}"
            origin = "the project's .venv"
        elif sys.prefix != sys.base_prefix and not is_of_tool(sys.prefix):
            path = f"{own}{os.pathsep}{path}"
            origin = "the environment that shunter is installed in"
        else:
            others = [
                folder
                for folder in path.split(os.pathsep)
                if os.path.realpath(folder) != os.path.realpath(own)
            ]
            if sys.prefix != sys.base_prefix and any(map(_has_python, others)):
                path = os.pathsep.join(others)  # uvx puts its own first
            origin = "PATH"
    program = find_program("python", path) or find_program("python3", path)
    if program is None:
        path = f"{path}{os.pathsep}{os.path.dirname(sys.executable)}"
        program = find_program("python", path) or find_program("python3", path) or ""
    if os.path.dirname(program) == os.path.dirname(sys.executable) and is_of_tool(sys.prefix) and not active:
        origin = "shunter's own environment"
        warning = warning or (
            f"no Python was found but {program}, which is shunter's own: your packages are not there. "
            "Activate an environment, or make one beside the script: python -m venv .venv"
        )
    return JobPython(*_facts(program), origin, path, warning)


def is_of_tool(prefix: str) -> bool:
    """Tell whether ``uv tool``, ``uvx`` or ``pipx`` made an environment, for a tool alone."""
    if any(os.path.exists(os.path.join(prefix, name)) for name in _TOOL_FILES):
        return True
    return _UVX_FOLDER in prefix.split(os.sep)


def _project_environment(places: Iterable[str]) -> tuple[str, str]:
    """Return the project's environment, "" without one; and why one that is there is not used."""
    for place in places:
        for folder in search_places(place):
            venv = os.path.join(folder, ".venv")
            program = os.path.join(venv, "bin", "python")
            if not os.access(program, os.X_OK):
                continue
            problem = why_not_used(venv, place) or why_not_used(program, place)
            return ("", f"the environment {venv} is not used: {problem}") if problem else (venv, "")
    return "", ""


def _has_python(folder: str) -> bool:
    return any(find_program(name, folder) for name in ("python", "python3"))


@functools.cache
def _facts(program: str) -> tuple[str, str]:
    """Return path and version of a Python; a program like those of pyenv stands for another one."""
    if not program:
        return "", ""
    if os.path.realpath(os.path.dirname(program)) == os.path.realpath(os.path.dirname(sys.executable)):
        return program, ".".join(map(str, sys.version_info[:3]))
    try:
        # -E, -S: nothing of the user's is imported
        command = [program, "-E", "-S", "-c", _WHAT]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_START, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return program, ""
    path, _, version = answer.stdout.partition("\n")
    return path or program, version
