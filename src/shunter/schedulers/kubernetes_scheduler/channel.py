"""A connection to a program in a pod, joined to this process's terminal or streams."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from shunter.schedulers.joined_terminal import ENDING, flush_output, restored_terminal
from shunter.system.wakeup import Wakeup

STDIN, STDOUT, STDERR = 0, 1, 2
_PIECE = 32 * 1024


class Channel(Protocol):
    """A connection to a program."""

    def fileno(self) -> int:
        """Return the file descriptor to poll for input."""

    def receive(self) -> Sequence[tuple[int, bytes]] | None:
        """Return what has come: pairs of `STDOUT` or `STDERR` and bytes. None when the program has ended.

        Called when the file descriptor is readable, and once before. It does not wait.
        """

    def send(self, data: bytes) -> None:
        """Send some of the program's input."""

    def end_input(self) -> None:
        """Tell the program that its input has ended."""

    def resize(self, rows: int, columns: int) -> None:
        """Give the program's terminal this size."""


def join(channel: Channel, *, tty: bool) -> None:
    """Copy bytes both ways until the program ends.

    Args:
        channel: the connection to it.
        tty: whether the program has a terminal, which this one is connected to: all keys reach the program,
            including Ctrl-C, and so does every change of size.

    Raises:
        BrokenPipeError: the reader of this process's output is gone.
        OSError: the connection broke.
    """
    flush_output()
    with contextlib.ExitStack() as held:
        wakeup = held.enter_context(_signals()) if tty else None
        if tty:
            held.enter_context(raw_terminal())
            channel.resize(*window_size())
        _copy(channel, wakeup)


def _copy(channel: Channel, wakeup: Wakeup | None) -> None:
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    if wakeup is not None:
        poller.register(wakeup.fileno(), select.POLLIN)
    reads = _is_open(STDIN)
    if reads:
        poller.register(STDIN, select.POLLIN)
    else:
        channel.end_input()
    ready = {channel.fileno()}
    while True:
        if channel.fileno() in ready:
            pieces = channel.receive()
            if pieces is None:
                return
            for stream, data in pieces:
                write_all(stream, data)
        if reads and STDIN in ready:
            data = os.read(STDIN, _PIECE)
            if data:
                channel.send(data)
            else:
                reads = False
                poller.unregister(STDIN)
                channel.end_input()
        if wakeup is not None and wakeup.fileno() in ready:
            received = wakeup.read()
            for signum in ENDING:
                if signum in received:
                    raise SystemExit(128 + signum)
            channel.resize(*window_size())
        ready = {fd for fd, _ in poller.poll()}


def write_all(fd: int, data: bytes) -> None:
    """Write bytes to a file descriptor, waiting while it takes none."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def window_size() -> tuple[int, int]:
    """Return rows and columns of this terminal."""
    try:
        columns, rows = os.get_terminal_size(STDIN)
    except OSError:
        return 24, 80
    return rows or 24, columns or 80


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Let this terminal pass every key on unchanged; its settings are restored at the end."""
    import tty

    with restored_terminal():
        if os.isatty(STDIN):
            tty.setraw(STDIN)
        yield


@contextlib.contextmanager
def _signals() -> Iterator[Wakeup | None]:
    """Notice new sizes, and signals that would end this process and leave the terminal as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    wakeup = Wakeup((signal.SIGWINCH, *ENDING))
    try:
        yield wakeup
    finally:
        wakeup.close()
