"""Processes of this machine: who is who, who is alive, and how to end them for certain.

A process is identified by its pid together with its start time and the boot id, so that neither a reused
pid nor a reboot can be mistaken for it.
"""

from __future__ import annotations

import os
import signal
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HAS_PROC = os.path.exists("/proc/self/stat")

#: In the environment of every replica: the job's directory. It marks all that a replica starts.
JOB_VARIABLE = "TRAINYARD_LOCAL_JOB"


class Process(namedtuple("Process", "pid start")):
    """One process, for as long as the machine is up. ``start`` is in clock ticks since boot; 0 unknown."""

    __slots__ = ()
    pid: int
    start: int


def boot_id() -> str:
    """Return what changes with every boot of this machine; "" where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def hostname() -> str:
    """Return this machine's name."""
    return os.uname().nodename


def identify(pid: int) -> Process | None:
    """Return the identity of a running process, or None if there is no such process (or a zombie)."""
    fields = _stat_fields(pid)
    if fields is None:
        return Process(pid, 0) if not HAS_PROC and _signal_reaches(pid) else None
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]))


def myself() -> Process:
    """Return the identity of this process."""
    return identify(os.getpid()) or Process(os.getpid(), 0)


def is_alive(process: Process) -> bool:
    """Tell whether this very process still runs."""
    return identify(process.pid) == process


def send_signal(process: Process, signum: int) -> bool:
    """Signal this very process, never one that has its pid now. Returns False if it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        handle = -1
    try:
        if not is_alive(process):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, signum)
        else:
            os.kill(process.pid, signum)
    except ProcessLookupError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def signal_group(pgid: int, signum: int) -> bool:
    """Signal a process group. Returns False if it has no members."""
    try:
        os.killpg(pgid, signum)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def children_of(pid: int) -> list[int]:
    """Return the pids of all descendants of a process."""
    parents: dict[int, list[int]] = {}
    for other in _pids():
        fields = _stat_fields(other)
        if fields is not None:
            parents.setdefault(int(fields[1]), []).append(other)
    found: list[int] = []
    frontier = [pid]
    while frontier:
        descendants = parents.get(frontier.pop(), [])
        found += descendants
        frontier += descendants
    return found


def kill_descendants() -> None:
    """Kill all descendants of this process and wait until there are none.

    This process must be a child subreaper, so that orphans become its children and nothing escapes.
    """
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:  # no child, so no descendant: /proc need not be searched
        return
    while True:
        for pid in children_of(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def members_of_job(job_dir: str) -> list[Process]:
    """Return the processes that a job's replicas have started, found by their environment."""
    mark = os.fsencode(f"{JOB_VARIABLE}={job_dir}") + b"\0"
    members = []
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read()
        except OSError:
            continue
        process = identify(pid) if mark in environ + b"\0" else None
        if process is not None:
            members.append(process)
    return members


def kill_members_of_job(job_dir: str) -> int:
    """Kill what is left of a job whose supervisor is gone. Returns how many processes there were."""
    killed = 0
    while members := [process for process in members_of_job(job_dir) if process.pid != os.getpid()]:
        hit = [process for process in members if send_signal(process, signal.SIGKILL)]
        killed += len(hit)
        if not hit:
            break
    return killed


def exit_code_of(status: int) -> tuple[int, int]:
    """Split a wait status into exit code (128 + N after signal N) and signal (0 without one)."""
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        return 128 + signum, signum
    return os.WEXITSTATUS(status), 0


def signal_name(signum: int) -> str:
    """Return ``SIGKILL`` for 9."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def to_json(process: Process | None) -> Any:
    """Return the identity as JSON values."""
    return None if process is None else list(process)


def from_json(data: Any) -> Process | None:
    """Rebuild what `to_json` wrote."""
    return None if data is None else Process(*data)


def find_program(name: str, path: str) -> str | None:
    """Return the path of a program, searched in ``path`` unless it names a directory; None without one.

    As `shutil.which`, whose import takes as long as that of all of this package.
    """
    directories = [""] if os.path.dirname(name) else path.split(os.pathsep)
    for directory in directories:
        candidate = os.path.join(directory, name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return None


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the command, which may itself hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def _signal_reaches(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
