"""Joining this process's stdin, stdout and stderr, or its terminal, to a program that runs in a job.

A program of this machine reaches it: ``srun --pty``, ``docker exec``, ``kubectl exec``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from shunter.docker.command import DockerCommand, DockerRefused
from shunter.errors import ConfigError

STDIN, STDOUT = 0, 1
#: Exit codes of ``docker exec`` if a program cannot be executed, or is not found.
_NOT_STARTED = (126, 127)
#: Signals that would end this process and leave the terminal as it is.
ENDING = (signal.SIGTERM, signal.SIGHUP)
#: The command that starts a shell where the program runs.
SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")


def flush_output() -> None:
    """Write what this process still holds back of its output."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def has_terminal() -> bool:
    """Tell whether stdin and stdout are a terminal, so that a program can be given one."""
    return os.isatty(STDIN) and os.isatty(STDOUT)


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


def run_joined(words: Sequence[str], env: Mapping[str, str] | None = None, cwd: str | None = None) -> int:
    """Run a program of this machine on this process's terminal and streams; returns its exit code.

    The program handles Ctrl-C. The exit code is 128 + N after signal N.

    Raises:
        OSError: it cannot be started.
    """
    flush_output()
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
            for signum in ENDING:
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
