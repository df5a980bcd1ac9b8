"""Processes that outlive the one that started them: adopted, ended, collected."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from trainyard_toolkit.relay import Relay

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl: Callable[..., int] | None = None
_services: set[int] = set()


def prepare() -> None:
    """Load what a forked child needs before it execs. A system without prctl does without."""
    global _prctl
    if _prctl is None:
        try:
            import ctypes

            _prctl = ctypes.CDLL(None).prctl
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
    """In a fresh child: get SIGKILL when the parent dies, so that killing ``train`` leaves no script
    running. A parent that is dead already counts too.
    """
    assert _prctl is not None
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def die_with_launcher() -> None:
    """In a process that another launcher forked: die with it, where that is safe.

    The kernel sends the signal when the *thread* that forked us ends. So it is asked for only if that is
    the first thread, which ends with its process; a launcher may fork on threads that end before.
    """
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
            of_first_thread = str(os.getpid()) in file.read().split()
    except OSError:
        return
    if of_first_thread:
        prepare()
        die_with_parent(parent)


def keep(pid: int) -> None:
    """Count a child as ours to end (an sshd, say), not as something left behind."""
    _services.add(pid)


def note_exit(pid: int) -> None:
    """A child was collected."""
    _services.discard(pid)


def children() -> set[int]:
    """The pids of our living or uncollected children, services left out."""
    found: set[int] = set()
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
    except OSError:
        found = set(_by_parent(os.getpid()))
    return found - _services


def _by_parent(parent: int) -> Iterable[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                yield int(name)


def end_group(
    group: int,
    grace: float,
    wake: int,
    relays: Collection[Relay] = (),
    everything: bool = False,
    told: bool = False,
) -> None:
    """End what is left of a process group: SIGTERM, up to ``grace`` seconds, SIGKILL.

    Args:
        group: the process group; its leader has been collected.
        grace: seconds between the two signals.
        wake: a descriptor that becomes readable when a child ends.
        relays: output of the group, passed on meanwhile.
        everything: also end orphans that left the group, and collect them all.
        told: the group has had its SIGTERM already; a second one could interrupt who is saving state.
    """
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        if not _left(group, everything):
            return
        if number == signal.SIGKILL or not told:
            _signal_all(group, number, everything)
        _await_end(group, time.monotonic() + patience, wake, relays, everything)


def _left(group: int, everything: bool) -> bool:
    """Collect what has ended; whether anything still runs."""
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


def _signal_all(group: int, number: int, everything: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in children() if everything else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _await_end(group: int, deadline: float, wake: int, relays: Collection[Relay], everything: bool) -> None:
    """Wait until nothing is left or the deadline.

    Ends of adopted children wake us; others are looked for every 20 ms.
    """
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    while _left(group, everything):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return
        for descriptor, _ in poll.poll(min(remaining, 0.02) * 1000):
            if descriptor == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
        for relay in relays:
            if not relay.ended:
                relay.drain()
