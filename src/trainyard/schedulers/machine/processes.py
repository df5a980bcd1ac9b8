"""Ending the processes of a job, for certain."""

from __future__ import annotations

import os
import signal

from trainyard.processes import Process, identify, stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: In the environment of every replica: the job's directory. It marks all that a replica starts.
JOB_VARIABLE = "TRAINYARD_LOCAL_JOB"


def hostname() -> str:
    """Return this machine's name."""
    return os.uname().nodename


def send_signal(process: Process, signum: int) -> bool:
    """Signal this very process, never one that has its pid now. Returns False if it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        handle = -1
    try:
        if not process.is_alive():
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


def send_to(pid: int, signum: int) -> None:
    """Signal a child of this process, unless it has ended."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass


def children() -> list[tuple[int, int, int]]:
    """Return pid, process group and session of the living children of this process."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without this list
        pids = _pids()
    found = []
    for pid in pids:
        fields = stat_fields(pid)
        if fields is not None and fields[0] not in "ZX" and int(fields[1]) == os.getpid():
            found.append((pid, int(fields[2]), int(fields[3])))
    return found


def children_of(pid: int) -> list[int]:
    """Return the pids of all descendants of a process."""
    parents: dict[int, list[int]] = {}
    for other in _pids():
        fields = stat_fields(other)
        if fields is not None:
            parents.setdefault(int(fields[1]), []).append(other)
    found: list[int] = []
    frontier = [pid]
    while frontier:
        descendants = parents.get(frontier.pop(), [])
        found += descendants
        frontier += descendants
    return found


def kill_descendants(spared: int = 0) -> None:
    """Kill all descendants of this process and wait until there are none.

    This process must be a child subreaper, so that orphans become its children and nothing escapes.

    Args:
        spared: pid of a child without children that is left alone; 0 for none.
    """
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:  # no child, so no descendant: /proc need not be searched
        return
    while victims := [pid for pid in children_of(os.getpid()) if pid != spared]:
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)  # one of them is a child of ours
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


def from_json(data: Any) -> Process | None:
    """Rebuild a process's identity, which is a list in JSON."""
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
