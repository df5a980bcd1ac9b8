"""Joining this process's stdin, stdout and stderr, or its terminal, to a program that runs in a job.

A backend has either a connection to the program (`join`), or a program of this machine that reaches it, such
as ``srun --pty`` (`run_joined`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from shunter.docker.command import DockerCommand, DockerRefused
from shunter.errors import ConfigError
from shunter.system.wakeup import Wakeup

STDIN, STDOUT, STDERR = 0, 1, 2
_PIECE = 32 * 1024
#: Exit codes of ``docker exec`` if a program cannot be executed, or is not found.
_NOT_STARTED = (126, 127)
_ENDING = (signal.SIGTERM, signal.SIGHUP)
#: The command that starts a shell where the program runs.
SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")


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
    _flush()
    with contextlib.ExitStack() as held:
        wakeup = held.enter_context(_signals()) if tty else None
        if tty:
            held.enter_context(raw_terminal())
            channel.resize(*window_size())
        _copy(channel, wakeup)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


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
            for signum in _ENDING:
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


def has_terminal() -> bool:
    """Tell whether stdin and stdout are a terminal, so that a program can be given one."""
    return os.isatty(STDIN) and os.isatty(STDOUT)


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
def restored_terminal() -> Iterator[None]:
    """Give this terminal its former mode and foreground process group in the end."""
    import termios

    if not os.isatty(STDIN):
        yield
        return
    saved = termios.tcgetattr(STDIN)
    try:
        yield
    finally:
        # without the foreground, changing the terminal would stop this process
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            os.tcsetpgrp(STDIN, os.getpgrp())
            termios.tcsetattr(STDIN, termios.TCSADRAIN, saved)
        except (OSError, termios.error):  # the terminal is gone
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def _signals() -> Iterator[Wakeup | None]:
    """Notice new sizes, and signals that would end this process and leave the terminal as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    wakeup = Wakeup((signal.SIGWINCH, *_ENDING))
    try:
        yield wakeup
    finally:
        wakeup.close()


def run_joined(words: Sequence[str], env: Mapping[str, str] | None = None, cwd: str | None = None) -> int:
    """Run a program of this machine on this process's terminal and streams; returns its exit code.

    The program handles Ctrl-C. The exit code is 128 + N after signal N.

    Raises:
        OSError: it cannot be started.
    """
    _flush()
    is_main = threading.current_thread() is threading.main_thread()
    before = {}
    received: list[int] = []
    can_be_ended = False

    def exit_by_signal(signum: int, frame: object) -> None:
        # a program that is just being started would stay behind, and hold the terminal
        received.append(signum)
        if can_be_ended:
            raise SystemExit(128 + signum)

    try:
        if is_main:
            for signum in (signal.SIGINT, signal.SIGQUIT):  # a handler: SIG_IGN would be inherited
                before[signum] = signal.signal(signum, lambda *_: None)
            for signum in _ENDING:
                before[signum] = signal.signal(signum, exit_by_signal)
        with restored_terminal():
            process = subprocess.Popen(list(words), env=None if env is None else dict(env), cwd=cwd)
            try:
                can_be_ended = True
                if received:
                    raise SystemExit(128 + received[0])
                code = process.wait()
            except BaseException:
                process.terminate()
                process.wait()
                raise
            finally:
                can_be_ended = False
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return 128 - code if code < 0 else code


def run_in_container(
    docker: DockerCommand, container: str, name: str, command: Sequence[str], *, tty: bool
) -> int:
    """Run a command, or a shell, in a container that runs, on this process's terminal or streams.

    ``name`` is what the container is called in messages. Returns the exit code.

    Raises:
        ConfigError: the container has no such program.
    """
    words = list(command or SHELL)
    options = ["--interactive", *(["--tty"] if tty else [])]
    code = run_joined([docker.program, "exec", *options, container, *words], {**os.environ, **docker.environ})
    if code in _NOT_STARTED:
        try:
            docker.run("exec", container, "sh", "-c", 'command -v -- "$0"', words[0])
        except DockerRefused:
            hint = "Its image has no shell: name a program after `--`." if not command else ""
            raise ConfigError(f"there is no program {words[0]!r} in {name}", hint=hint) from None
    return code
