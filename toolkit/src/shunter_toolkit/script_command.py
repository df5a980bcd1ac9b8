"""The kind of an entry point, and the command that runs it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence

from . import resources
from .child_process import Command
from .errors import CodeError

PYTHON_PROGRAM = "PYTHON_PROGRAM"
PYTHON_PACKAGE = "PYTHON_PACKAGE"
COMMAND = "COMMAND"
TOOLKIT_MODULE = "TOOLKIT_MODULE"
REQUIREMENTS = "requirements.txt"
#: Value of SHUNTER_INSTALLER with which nothing is installed.
NO_INSTALLER = "none"
#: The entry point of jobs that call a function: this package itself, which is on the script's PYTHONPATH.
TOOLKIT = "shunter_toolkit"


def kind_of(code_dir: str, name: str) -> str:
    """The kind of an entry point.

    ``*.sh`` is a command; any other name beside a ``setup.py`` is a module of that package; ``*.py`` is a
    program; the rest are commands. A ``pyproject.toml`` that describes a package counts like ``setup.py``,
    but only if the name is not that of a file: many projects with plain scripts have one just to configure
    linters. If nothing may be installed, the same applies to ``setup.py``.
    """
    if name == TOOLKIT:
        return TOOLKIT_MODULE
    if name.endswith(".sh"):
        return COMMAND
    if not _leaves(name):
        is_file = os.path.exists(os.path.join(code_dir, name))
        if os.path.exists(os.path.join(code_dir, "setup.py")) and (installs() or not is_file):
            return PYTHON_PACKAGE
        if not is_file and _builds(os.path.join(code_dir, "pyproject.toml")):
            return PYTHON_PACKAGE
    return PYTHON_PROGRAM if name.endswith(".py") else COMMAND


def _builds(pyproject: str) -> bool:
    try:
        with open(pyproject, encoding="utf-8") as file:
            return any(line.strip() in ("[project]", "[build-system]") for line in file)
    except (OSError, UnicodeDecodeError):
        return False


def has_requirements(code_dir: str) -> bool:
    """Whether the code has a ``requirements.txt``."""
    return os.path.exists(os.path.join(code_dir, REQUIREMENTS))


def _leaves(name: str) -> bool:
    """Whether an entry point lies outside of the code directory."""
    return os.path.isabs(name) or ".." in name.split("/")


def installs() -> bool:
    """Whether packages may be installed."""
    return os.environ.get("SHUNTER_INSTALLER") != NO_INSTALLER


def needs_install(code_dir: str, name: str) -> bool:
    """Whether something has to be installed before the entry point can run, and may be."""
    if not installs():
        return False
    return has_requirements(code_dir) or kind_of(code_dir, name) == PYTHON_PACKAGE


def check(code_dir: str, name: str | None, anywhere: bool = False) -> None:
    """Refuse an entry point that cannot be run, before anything is started.

    Args:
        code_dir: the code directory.
        name: the entry point.
        anywhere: whether it may lie outside of the code directory. An absolute path may in any case.

    Raises:
        CodeError: no name, a path that leaves the code directory, no such file, or a folder.
    """
    if not name:
        raise CodeError(
            "No entry point: which script should be run? Set SAGEMAKER_PROGRAM or the hyperparameter "
            "sagemaker_program to its path under the code directory, such as train.py."
        )
    is_whole_path = os.path.isabs(name) and name.endswith((".py", ".sh"))
    if name.startswith("-") or (_leaves(name) and not anywhere and not is_whole_path):
        raise CodeError(
            f"Cannot run {name!r}: an entry point is a path "
            f"under the code directory ({code_dir}), such as train.py."
        )
    if kind_of(code_dir, name) in (PYTHON_PACKAGE, TOOLKIT_MODULE):
        return
    path = os.path.join(code_dir, name)
    if os.path.isdir(path):
        raise CodeError(f"Cannot run {name!r}: {path} is a folder. Name the script in it.")
    if not os.path.exists(path):
        there = ", ".join(sorted(os.listdir(code_dir))[:10]) if os.path.isdir(code_dir) else "no such folder"
        raise CodeError(
            f"Cannot run {name!r}: it is not in the code directory {code_dir} (there: {there or 'nothing'}). "
            "Copy it there in the image, or set sagemaker_submit_directory to where the code lies."
        )


def argv(code_dir: str, name: str, args: Sequence[str]) -> list[str]:
    """The command line of an entry point: program, package module or command, and its arguments."""
    kind = kind_of(code_dir, name)
    if kind in (PYTHON_PACKAGE, TOOLKIT_MODULE):
        module = name[:-3] if name.endswith(".py") else name
        return [resources.script_python(), "-m", module.replace("/", "."), *args]
    if kind == PYTHON_PROGRAM:
        return [resources.script_python(), name, *args]
    return [*_command(os.path.join(code_dir, name), name), *args]


def _command(path: str, name: str) -> list[str]:
    """The words that run a shell script or binary: itself if the system can run it, else its interpreter."""
    own = name if name.startswith(("/", "./", "../")) else f"./{name}"
    with open(path, "rb") as file:
        start = file.readline(256)
    if start.startswith(b"\x7fELF") and not os.access(path, os.X_OK):
        with contextlib.suppress(OSError):  # nothing else can run it
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    if not os.access(path, os.X_OK) or not start.startswith((b"#!", b"\x7fELF")):
        words = start[2:].decode("utf-8", "replace").split() if start.startswith(b"#!") else ["/bin/sh"]
        if b"\0" in start:
            raise CodeError(f"Cannot run {name!r}: it is neither a script nor a program of this system.")
        return [*words, own]
    return [own]


def command(code_dir: str, name: str, args: Sequence[str], env: Mapping[str, str]) -> Command:
    """The command of a plain run.

    Raises:
        CodeError: an argument or a variable contains a NUL character.
    """
    line = argv(code_dir, name, args)
    refuse_nul(line, env)
    kind = kind_of(code_dir, name)
    # the keeper of `shunter dev` is found by its command line, which a fork does not have
    forked = kind == TOOLKIT_MODULE and list(args[:1]) != ["dev"]
    own_words = args if forked else None
    return Command(line, env, code_dir, whole_group=kind == COMMAND, own_words=own_words)


def refuse_nul(line: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise CodeError for NUL characters: no argument and no variable can carry one."""
    for what, text in [("an argument", a) for a in line] + [(f"the variable {n}", v) for n, v in env.items()]:
        if "\0" in text:
            raise CodeError(
                f"Cannot start the script: {what} contains a NUL character. Remove it from the job."
            )
