"""Calls that only Linux has: descriptors of processes, and what prctl(2) does. Elsewhere they do less."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from shunter.system.platform_choice import IS_LINUX
from shunter.system.process_table import stat_fields

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.02
_LIBC = ctypes.CDLL(None)


def open_process(pid: int) -> int:
    """Return a descriptor of a process that becomes readable when it ends, or -1 if there is none."""
    if sys.platform == "linux" and IS_LINUX:
        try:
            return os.pidfd_open(pid)
        except (AttributeError, OSError):  # an old kernel, or a Python that was built on one
            pass
    return -1


def signal_process(pid: int, handle: int, signum: int) -> None:
    """Signal the process behind a descriptor of `open_process`, or the pid if that is -1.

    Raises:
        ProcessLookupError: it has ended.
    """
    if sys.platform == "linux" and handle >= 0:
        signal.pidfd_send_signal(handle, signum)
    else:
        os.kill(pid, signum)


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process; elsewhere they are the first process's."""
    if IS_LINUX:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that forked it ends (prctl(2), PR_SET_PDEATHSIG).

    ``parent`` is the pid of that thread's process, which may have ended already. A program that gets other
    rights by its start (set-uid, a user namespace) loses this. Elsewhere the next process that looks at the
    job ends what its supervisor has left behind.
    """
    if IS_LINUX:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def set_title(title: str) -> None:
    """Show this process under a title in `ps`, in place of its command line; cut if it is longer."""
    fields = stat_fields(os.getpid()) if IS_LINUX else None
    if fields is not None:
        start, end = int(fields[45]), int(fields[46])  # where the kernel reads the command line
        if 0 < start < end:
            size = end - start
            ctypes.memmove(start, os.fsencode(title)[: size - 1].ljust(size, b"\0"), size)
