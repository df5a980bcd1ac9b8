"""Running a command beside a process of a job: with its directory, its environment and in its namespaces."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from shunter import system
from shunter.errors import ConfigError
from shunter.schedulers.joined_terminal import SHELL, run_joined
from shunter.system.processes import find_program

#: This variable is set in a script that the toolkit has started, but not in the toolkit itself.
_OF_THE_SCRIPT = b"SM_HOSTS"
#: Options of nsenter (util-linux) by the names of the namespaces in /proc/PID/ns.
_OPTIONS = {"user": "--user", "mnt": "--mount", "uts": "--uts", "ipc": "--ipc", "net": "--net"}


def run_beside(pid: int, name: str, command: Sequence[str]) -> int:
    """Run a command as if a replica's script had started it, on this process's terminal or streams.

    Args:
        pid: the replica's first process.
        name: what it is called in messages.
        command: program and arguments; empty for a shell.

    Returns:
        The exit code.

    Raises:
        ConfigError: the process is gone or another user's, or there is no such program.
    """
    place = system.process_place(_script_of(pid))
    if place is None:
        raise ConfigError(
            f"cannot run a command in {name}: its process {pid} cannot be examined",
            hint="It may have ended just now; `shunter status` shows it. "
            "Only Linux shows the environment of other processes.",
        )
    environ = {os.fsdecode(key): os.fsdecode(value) for key, value in place.environ.items()}
    environ |= {key: os.environ[key] for key in ("TERM", "COLORTERM", "LANG") if key in os.environ}
    words = list(command or SHELL)
    if not place.namespaces:
        program = find_program(words[0], environ.get("PATH", os.defpath))
        if program is None:
            raise ConfigError(f"there is no program {words[0]!r} for {name}")
        return _run([os.path.join(place.cwd, program), *words[1:]], environ, place.cwd, name)
    enter = shutil.which("nsenter")
    if enter is None:
        raise ConfigError(
            f"cannot enter the namespaces of {name}: there is no program 'nsenter'",
            hint="Install util-linux.",
        )
    options = [_OPTIONS[space] for space in place.namespaces if space in _OPTIONS]
    if "user" in place.namespaces:
        options.append("--preserve-credentials")
    return _run([enter, f"--target={place.pid}", *options, "--wd", "--", *words], environ, None, name)


def _run(words: list[str], environ: dict[str, str], cwd: str | None, name: str) -> int:
    try:
        return run_joined(words, environ, cwd)
    except OSError as error:
        raise ConfigError(f"cannot start {words[0]} in {name}: {error.strerror or error}") from error


def _script_of(pid: int) -> int:
    """Return the process of the script that the toolkit runs, or the process itself."""
    present = pid
    while True:
        place = system.process_place(present)
        if place is None or _OF_THE_SCRIPT in place.environ:
            return present if place is not None else pid
        children = [facts.pid for facts in system.children_of(present)]
        places = [system.process_place(child) for child in children]
        scripts = [found.pid for found in places if found is not None and _OF_THE_SCRIPT in found.environ]
        if scripts:
            return scripts[0]
        if len(children) != 1:
            return pid
        present = children[0]
