"""Ending the processes of a job reliably."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection

from shunter import system
from shunter.system.identity import Process
from shunter.system.process_table import ProcessFacts

#: In the environment of every replica: the job's directory. It marks all that a replica starts.
JOB_VARIABLE = "SHUNTER_LOCAL_JOB"
#: How often to look where the system cannot notify.
POLL_SECONDS = 0.05


def send_signal(process: Process, signum: int) -> bool:
    """Signal this very process, never another one that has its pid now. Returns False if it has ended.

    A process that is stopped (SIGSTOP) is continued, since it could not act on the signal otherwise.
    """
    handle = system.open_process(process.pid)
    try:
        if not process.is_alive():
            return False
        system.signal_process(process.pid, handle, signum)
    except ProcessLookupError:
        return False
    else:
        try:
            system.signal_process(process.pid, handle, signal.SIGCONT)
        except ProcessLookupError:
            pass
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def wait_for_end(process: Process, seconds: float | None = None) -> bool:
    """Wait until a process ends, at most for some seconds. Returns whether it has ended."""
    handle = system.open_process(process.pid)
    try:
        if not process.is_alive():
            return True
        if handle >= 0:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return bool(poll.poll(None if seconds is None else seconds * 1000))
        deadline = None if seconds is None else time.monotonic() + seconds
        while deadline is None or time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            if not process.is_alive():
                return True
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def is_stopped(process: Process) -> bool:
    """Tell whether a process has been stopped by a signal (SIGSTOP), so that it does nothing."""
    facts = system.process_facts(process.pid)
    return facts is not None and facts.status == "stopped" and process.is_alive()


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
    """Signal a descendant of this process, unless it has ended."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass


def orphans(known: Collection[int], job_dir: str) -> list[ProcessFacts]:
    """Return the living processes of a job that children of this process have left behind.

    Args:
        known: children of this process to leave out.
        job_dir: the job's directory, by which orphans are found where they do not become our children.
    """
    if system.HAS_SUBREAPER:
        return [facts for facts in system.children_of(os.getpid()) if facts.pid not in known]
    members = _members_of_job(job_dir, known)
    pids = {os.getpid(), *members}
    return [facts for facts in members.values() if facts.pid not in known and facts.parent not in pids]


def descendants_of(pid: int) -> list[int]:
    """Return the pids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for facts in system.all_processes():
        children.setdefault(facts.parent, []).append(facts.pid)
    found: list[int] = []
    frontier = [pid]
    while frontier:
        descendants = children.get(frontier.pop(), [])
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
    while victims := descendants_of(os.getpid()):
        for pid in victims:
            send_to(pid, signal.SIGKILL)
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
    A process without any of these links is not found. ``job_dir`` is the job's directory.
    """
    boot = system.boot_id()
    members = _members_of_job(job_dir)
    return [Process(facts.pid, facts.start, boot) for facts in members.values()]


def _members_of_job(job_dir: str, sessions: Collection[int] = ()) -> dict[int, ProcessFacts]:
    running = {facts.pid: facts for facts in system.all_processes()}
    mark = f"{JOB_VARIABLE}={job_dir}"
    found = system.has_mark(list(running), mark, os.path.join(job_dir, "logs"))
    sessions = {*sessions, *(running[pid].session for pid in found)}
    found |= {pid for pid, facts in running.items() if facts.session in sessions}
    frontier = found
    while frontier:
        frontier = {pid for pid, facts in running.items() if facts.parent in frontier and pid not in found}
        found |= frontier
    return {pid: running[pid] for pid in sorted(found)}


def kill_members_of_job(job_dir: str) -> int:
    """Kill the remaining processes of a job whose supervisor is gone; returns their number."""
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


def find_program(name: str, path: str) -> str | None:
    """Return the path of a program, searched in ``path`` unless it names a directory; None without one.

    As `shutil.which`, but in the current directory if ``path`` is empty, as the system does.
    """
    directories = [""] if os.path.dirname(name) else path.split(os.pathsep)
    for directory in directories:
        candidate = os.path.join(directory, name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return None


def fitting(cpus: int) -> int:
    """Return how many programs that need this many CPUs fit on this machine, at least 1."""
    return max(usable_cpus() // cpus, 1)


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
