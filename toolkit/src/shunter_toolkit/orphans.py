"""Processes that outlive the one that started them: adopted, ended, collected."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection

from . import kernel
from .output_relay import Relay

KILL_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl: Callable[..., int] | None = None
_services: set[int] = set()


def prepare() -> None:
    """Load prctl, which a forked child needs before it execs. Without prctl, the calls do nothing."""
    global _prctl
    if _prctl is None:
        try:
            _prctl = kernel.c_library().prctl
        except (ImportError, OSError, AttributeError):
            _prctl = _no_prctl


def _no_prctl(*args: int) -> int:
    return -1


def adopt() -> None:
    """Become the parent of every descendant whose own parent ends, as PID 1 is anyway."""
    if os.getpid() != 1:
        prepare()
        assert _prctl is not None
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """In a new child: get SIGKILL when the parent dies, or at once if it is dead already.

    So no script is left running when ``train`` is killed.
    """
    assert _prctl is not None
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def die_with_launcher() -> None:
    """In a process that another launcher forked: die with it, if that is safe.

    The kernel sends the signal when the *thread* that forked us ends. So it is requested only if that is the
    first thread, which ends with its process; a launcher may fork on a thread that ends earlier.
    """
    parent = os.getppid()
    try:
        with open(f"{kernel.PROC}/{parent}/task/{parent}/children", encoding="ascii") as file:
            of_first_thread = str(os.getpid()) in file.read().split()
    except OSError:
        return
    if of_first_thread:
        prepare()
        die_with_parent(parent)


def keep(pid: int) -> None:
    """Mark a child as a service: one that we end ourselves, not one that was left behind."""
    _services.add(pid)


def end_service(pid: int) -> None:
    """Kill a child that `keep` has marked, and collect it."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it was collected with the others
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    note_exit(pid)


def note_exit(pid: int) -> None:
    """Note that a child was collected."""
    _services.discard(pid)


def children() -> set[int]:
    """The pids of our living or uncollected children, services left out."""
    found: set[int] = set()
    try:
        for task in os.listdir(f"{kernel.PROC}/self/task"):
            with open(f"{kernel.PROC}/self/task/{task}/children", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
    except OSError:
        found = set(kernel.children_of(os.getpid()))
    return found - _services


def end_group(
    group: int,
    grace: float,
    wake: int,
    relays: Collection[Relay] = (),
    everything: bool = False,
    told: bool = False,
) -> None:
    """End what is left of a process group: SIGTERM, once for each, up to ``grace`` seconds, SIGKILL.

    Args:
        group: the process group; its leader has been collected.
        grace: seconds between the two signals.
        wake: a descriptor that becomes readable when a child ends.
        relays: output of the group, passed on meanwhile.
        everything: also end orphans that left the group, and collect them all.
        told: the group already got SIGTERM; a second one could interrupt a program that saves its state.
    """
    if not _left(group, everything):
        return
    heard: set[int] = set()
    if not told:
        _signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while _left(group, everything) and time.monotonic() < deadline:
        if everything:
            heard = _ask_orphans(group, heard)
        _await_change(deadline, wake, relays)
    deadline = time.monotonic() + KILL_SECONDS
    while _left(group, everything) and time.monotonic() < deadline:
        _signal_group(group, signal.SIGKILL)
        for pid in children() if everything else ():
            _signal(pid, signal.SIGKILL)
        _await_change(deadline, wake, relays)


def _ask_orphans(group: int, heard: Collection[int]) -> set[int]:
    """Send SIGTERM to orphans outside the group that have not got it yet; return all that have got it.

    More of them may appear: the children of an orphan become orphans when it ends.
    """
    asked = set()
    for pid in children():
        try:
            if os.getpgid(pid) == group:
                continue
        except ProcessLookupError:
            continue
        if pid not in heard:
            _signal(pid, signal.SIGTERM)
        asked.add(pid)
    return asked


def _left(group: int, everything: bool) -> bool:
    """Collect the processes that have ended; tell whether any still runs."""
    if everything:
        for pid in children():
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    note_exit(pid)
            except ChildProcessError:
                pass
        if children():
            return True
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _await_change(deadline: float, wake: int, relays: Collection[Relay]) -> None:
    """Wait until a child ends, at most 20 ms (ends of other processes are not reported); pass output on."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    remaining = max(0.0, deadline - time.monotonic())
    for descriptor, _ in poll.poll(min(remaining, 0.02) * 1000):
        if descriptor == wake:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
    for relay in relays:
        if not relay.ended:
            relay.drain()
