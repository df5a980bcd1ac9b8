"""Ending the processes of a job, for certain."""

from __future__ import annotations

import os
import signal

from trainyard.processes import Process, identify, stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any


#: In the environment of every replica: the job's directory. It marks all that a replica starts.
JOB_VARIABLE = "TRAINYARD_LOCAL_JOB"


def hostname() -> str:
    """Return this machine's name."""
    return os.uname().nodename


def send_signal(process: Process, signum: int) -> bool:
    """Signal this very process, never one that has its pid now. Returns False if it is gone.

    One that is stopped (SIGSTOP) is continued, since it could not act on the signal otherwise.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        handle = -1
    try:
        if not process.is_alive():
            return False
        _send(process.pid, handle, signum)
    except ProcessLookupError:
        return False
    else:
        try:
            _send(process.pid, handle, signal.SIGCONT)
        except ProcessLookupError:
            pass
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def _send(pid: int, handle: int, signum: int) -> None:
    if handle >= 0:
        signal.pidfd_send_signal(handle, signum)
    else:
        os.kill(pid, signum)


def is_stopped(process: Process) -> bool:
    """Tell whether a process has been stopped by a signal (SIGSTOP), so that it does nothing."""
    fields = stat_fields(process.pid)
    return fields is not None and fields[0] in "Tt" and process.is_alive()


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


def group_lives(pgid: int) -> bool:
    """Tell whether a process group has members that have not ended."""
    for pid in _pids():
        fields = stat_fields(pid)
        if fields is not None and int(fields[2]) == pgid and fields[0] not in "ZX":
            return True
    return False


def children(known: Collection[int] = ()) -> list[tuple[int, int, int]]:
    """Return pid, process group and session of the living children of this process that are not known."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without this list
        pids = _pids()
    found = []
    for pid in pids:
        fields = None if pid in known else stat_fields(pid)
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
    """Return the processes that a job's replicas have started.

    They are found by the mark in their environment. Those without it (``env -i``) are found by what they
    share with one that has it: its session, or that it started them; or because they write to the job's logs.
    What has left all of that behind is not found.
    """
    mark = os.fsencode(f"{JOB_VARIABLE}={job_dir}") + b"\0"
    parents, sessions, found = {}, {}, set()
    for pid in _pids():
        fields = stat_fields(pid)
        if fields is None or fields[0] in "ZX":
            continue
        parents[pid], sessions[pid] = int(fields[1]), int(fields[3])
        if mark in _environ(pid) or _writes_below(pid, os.path.join(job_dir, "logs")):
            found.add(pid)
    found |= {pid for pid, session in sessions.items() if session in {sessions[member] for member in found}}
    frontier = found
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier and pid not in found}
        found |= frontier
    members = [identify(pid) for pid in sorted(found)]
    return [member for member in members if member is not None]


def _environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read() + b"\0"
    except OSError:
        return b""


def _writes_below(pid: int, directory: str) -> bool:
    """Tell whether the standard output or error of a process is a file below a directory."""
    for fd in (1, 2):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(f"{directory}/"):
                return True
        except OSError:
            continue
    return False


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
