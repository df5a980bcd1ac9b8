"""Running the native programs of a cluster, on this machine or on another one.

Failures are of three kinds. A program that is missing is a `ConfigError`. A host that cannot be reached, or
a program that does not end in time, is an `UnreachableError`, which says nothing about any job. Everything
else is an `Answer` with an exit code, and the backend decides what its words mean.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from shunter.errors import BackendError, ConfigError, UnreachableError
from shunter.schedulers.joined_terminal import run_joined

#: How long a native command may take. Controllers under load answer late: Slurm waits 10 s for each message.
COMMAND_SECONDS = 60.0
#: Exit code of a shell if there is no such program.
NOT_FOUND = 127


@dataclass
class Answer:
    """What a program printed, and how it ended. ``code`` is its exit code, -N after signal N."""

    command: list[str]
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """The standard output as text."""
        return self.out.decode("utf-8", "replace")

    @property
    def words(self) -> str:
        """The program's own error message."""
        return self.err.strip() or self.text.strip()[-2000:] or f"exit code {self.code}"


class Commands:
    """Runs native programs: on this machine, or elsewhere in a subclass. Several threads may use it.

    Attributes:
        host: the name of the other machine as ssh knows it; "" for this one.
    """

    host = ""

    @property
    def where(self) -> str:
        """Where programs run, for messages: "here", "on login1"."""
        return f"on {self.host}" if self.host else "here"

    def argv(self, command: Sequence[str], *, tty: bool = False) -> list[str]:
        """Return the command of this machine that runs a command there."""
        return list(command)

    def prepare(self) -> None:
        """Make sure that commands can run there; on a terminal this may ask for a password.

        Raises:
            UnreachableError: they cannot.
        """

    def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes | IO[bytes] = b"",
        timeout: float = COMMAND_SECONDS,
        hint: str = "",
        finish: float = 0.0,
        env: Mapping[str, str] | None = None,
    ) -> Answer:
        """Run a program to its end.

        Args:
            command: the program and its arguments.
            stdin: what it reads: bytes, or an open file.
            timeout: seconds after which it is killed.
            hint: what to do if the program is missing.
            finish: how many seconds it may continue after an interrupt before it is killed.
            env: more environment variables.

        Raises:
            ConfigError: there is no such program.
            UnreachableError: it did not end in time, or the host cannot be reached.
        """
        self.prepare()
        variables = ["env", *(f"{name}={value}" for name, value in env.items())] if env else []
        answer = self._run([*variables, *command], stdin, timeout, finish)
        # a program may also end with 127 by itself
        if answer.code == NOT_FOUND and ("not found" in answer.err or "No such file" in answer.err):
            raise missing_program(command[0], self, hint)
        return answer

    def check(self, command: Sequence[str], attempt: str) -> str:
        """Run a program that must succeed; returns what it printed.

        Args:
            command: the program and its arguments.
            attempt: what is attempted, for the message: "submit the job".

        Raises:
            BackendError: it failed; the message has its own words.
        """
        answer = self.run(command)
        if answer.code != 0:
            raise BackendError(f"cannot {attempt} {self.where}: {answer.words}")
        return answer.text

    def shell(
        self,
        script: str,
        arguments: Sequence[str] = (),
        *,
        stdin: bytes | IO[bytes] = b"",
        timeout: float = COMMAND_SECONDS,
    ) -> Answer:
        """Run a script of the POSIX shell; its arguments are ``$1`` and so on."""
        return self.run(["sh", "-c", script, "sh", *arguments], stdin=stdin, timeout=timeout)

    def join(self, command: Sequence[str], *, tty: bool = False) -> int:
        """Run a program joined to this terminal; returns its exit code, 128 + N after signal N.

        Args:
            command: the program and its arguments.
            tty: whether it gets a terminal there.

        Raises:
            ConfigError: there is no such program.
        """
        self.prepare()
        try:
            return run_joined(self.argv(command, tty=tty))
        except FileNotFoundError:
            raise missing_program(command[0], self, "") from None
        except OSError as error:
            raise BackendError(f"cannot start {command[0]}: {error.strerror}") from error

    def _run(self, command: list[str], stdin: bytes | IO[bytes], timeout: float, finish: float) -> Answer:
        data = stdin if isinstance(stdin, bytes) else None
        try:
            process = subprocess.Popen(
                self.argv(command),
                stdin=subprocess.PIPE if isinstance(stdin, bytes) else stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            return Answer(command, NOT_FOUND, b"", f"{command[0]}: not found")
        except OSError as error:
            raise BackendError(f"cannot start {command[0]}: {error.strerror}") from error
        with process:
            try:
                out, err = process.communicate(data, timeout=timeout)
            except subprocess.TimeoutExpired:
                _kill(process)
                raise UnreachableError(
                    f"{command[0]} {self.where} did not answer within {timeout:g} s",
                    hint="The state of the jobs is unknown at the moment. Try again later.",
                ) from None
            except BaseException:
                with suppress(subprocess.TimeoutExpired, OSError, ValueError):
                    process.communicate(timeout=finish)
                _kill(process)
                raise
        return Answer(command, process.returncode, out, err.decode("utf-8", "replace"))


def missing_program(program: str, commands: Commands, hint: str) -> ConfigError:
    """Return the error for a program that is missing."""
    fallback = (
        f"Look for it with: ssh {shlex.quote(commands.host)} command -v {program}"
        if commands.host
        else "Run this on a login node of the cluster, or name one: -cfg host=LOGIN_NODE."
    )
    return ConfigError(f"there is no program {program!r} {commands.where}", hint=hint or fallback)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program with all that it started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
