"""A container that a thread of the supervisor waits for: ``docker start --attach`` writes its log."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, NamedTuple

from shunter import system
from shunter.backoff import Backoff
from shunter.docker.command import DockerCommand, DockerRefused, refusal, remove_containers
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.errors import BackendError
from shunter.schedulers.supervisor import resume_log
from shunter.schedulers.supervisor.container_replica import LOST
from shunter.schedulers.supervisor.replica import is_full

#: Seconds between two attempts to reach a daemon that is away, and to write to a full disk.
RETRY_SECONDS = 0.2
#: How often it is asked whether a container has started.
LOOK_SECONDS = 0.03
#: Exit codes after SIGKILL and SIGTERM, and the time within which the removal of the container, or the end of
#: its daemon, would show after such an exit.
KILLED, TERMINATED = 137, 143
REMOVAL_BEGINS_SECONDS = 1.0


class ContainerLost(BackendError):
    """How a container ended cannot be known: it was removed, or its daemon is gone."""


class ContainerEnd(NamedTuple):
    """How a container ended.

    Attributes:
        code: its exit code.
        signum: the signal that ended its program, or 0.
        handled: whether that was our SIGTERM and the program ended itself, having a handler for it.
        oom: whether the kernel killed something in it because memory ran out.
        error: what the daemon could not do, or "".
        has_lost_lines: whether not all of its log could be written.
    """

    code: int
    signum: int
    handled: bool
    oom: bool
    error: str
    has_lost_lines: bool


class AttachedContainer:
    """A container, called ``name`` in messages. Its methods may be called by any thread.

    Its output goes to the file ``log_path``. The daemon may be away for ``patience`` seconds.
    """

    def __init__(self, docker: DockerCommand, name: str, log_path: str, patience: float) -> None:
        self._docker = docker
        self._name = name
        self._log_path = log_path
        self._patience = patience
        self._id = ""
        self._has_init = False
        self._was_terminated = False
        self._was_killed = False
        self._handles_sigterm = True
        self._is_started = False
        #: The container's first process on this machine and the program's, or 0.
        self.first_pid = self._pid = 0
        self._command: subprocess.Popen[bytes] | None = None

    @property
    def id(self) -> str:
        """The container's id; "" before it is made and after it is removed."""
        return self._id

    def start(self, words: list[str], env: dict[str, str]) -> None:
        """Create and start the container. If that fails it has to be removed, and may be restarted.

        Args:
            words: of ``docker create``.
            env: the container's variables.

        Raises:
            DockerRefused: the daemon refuses it: the image has no such program, for instance.
            EngineUnavailableError: no daemon answers.
        """
        self._has_init = "--init" in words
        self._id = self._docker.create(words, env)
        size = os.path.getsize(self._log_path) if os.path.exists(self._log_path) else 0
        self._command = self._attach([self._docker.program, "start", "--attach", self._id])
        while True:
            has_ended = self._command.poll() is not None
            state = self._state()
            if state["Status"] != "created":
                break
            if has_ended:  # what it says is not the program's
                with open(self._log_path, "r+b") as log:
                    log.seek(size)
                    said = log.read().decode("utf-8", "replace")
                    log.truncate(size)
                raise refusal(state.get("Error") or said)
            time.sleep(LOOK_SECONDS)
        self._is_started = True
        if system.SEES_CONTAINER_PROCESSES:
            self._pid = self.first_pid = int(state["Pid"])

    def _attach(self, words: list[str]) -> subprocess.Popen[bytes]:
        """Start a command that writes to the log."""
        with open(self._log_path, "ab") as log:
            environ = {**os.environ, **self._docker.environ}
            return subprocess.Popen(
                words, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _state(self) -> dict[str, Any]:
        found = self._docker.inspect("container", self._id)
        if not found:
            raise ContainerLost(f"the container of {self._name} was removed")
        state: dict[str, Any] = found[0]["State"]
        return state

    # ---- its end

    def wait(self) -> ContainerEnd:
        """Wait for its end and the end of its log.

        Raises:
            ContainerLost: the daemon stays away, or another client removed the container.
        """
        assert self._command is not None
        code, is_resumed = self._command.wait(), False
        backoff = Backoff(RETRY_SECONDS, jitter=0, limit=self._patience)
        while True:
            try:
                state = self._state()
            except EngineUnavailableError as error:
                if not backoff.pause():
                    raise ContainerLost(error.message) from error
                continue
            is_running = state["Status"] in ("running", "paused")
            if is_resumed:
                is_whole = not code
            else:  # on a full disk the command ends as usual, whatever it could not write
                is_whole = code == state["ExitCode"] != LOST and not is_full(os.path.dirname(self._log_path))
            if not is_running and is_whole:
                break
            if not code:
                backoff.reset()
            elif is_resumed:  # it has failed: the disk is full
                may_wait = is_running or not (self._was_terminated or self._was_killed)
                if not may_wait or not backoff.pause():
                    break
            code, is_resumed = self._resume(), True
        state = self._confirmed(state)
        code = int(state["ExitCode"])
        signum = code - 128 if code > 128 and code - 128 in set(signal.Signals) else 0
        handled = signum == signal.SIGTERM and self._handles_sigterm
        oom, problem = bool(state.get("OOMKilled")), str(state.get("Error") or "")
        return ContainerEnd(code, signum, handled, oom, problem, not is_whole)

    def _resume(self) -> int:
        """Copy what the log lacks, to the container's end; returns an exit code."""
        self._command = self._attach(resume_log.command(self._docker.program, self._id, self._log_path))
        return self._command.wait()

    def _confirmed(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return its state once it is clear why it got a signal that we did not send.

        Removing a container kills it first, a daemon that is being stopped ends all of its containers, and an
        out-of-memory kill may be noted only after the container has ended.

        Raises:
            ContainerLost: it is gone, or the daemon goes away.
        """
        if self._was_terminated or self._was_killed or state["ExitCode"] not in (KILLED, TERMINATED):
            return state
        backoff = Backoff(0.1, jitter=0, limit=REMOVAL_BEGINS_SECONDS)
        while not state.get("OOMKilled"):
            try:
                state = self._state()
            except EngineUnavailableError as error:
                raise ContainerLost(
                    f"the container of {self._name} was ended with its daemon: {error.message}"
                ) from error
            if state.get("Status") in ("removing", "dead") or state.get("Dead"):
                raise ContainerLost(f"the container of {self._name} was removed")
            if not backoff.pause():
                break
        return state

    def terminate(self) -> None:
        """Send SIGTERM. A first process without a handler for it and without an init is killed."""
        if not self._is_started:
            return
        self._was_terminated = True
        program = self._program()
        if program and not (self._has_init and program == self.first_pid):  # which is the init
            self._handles_sigterm = system.handles_sigterm(program)
        self._signal("SIGTERM")
        if not self._has_init and not self._handles_sigterm:
            self.kill()  # the kernel drops SIGTERM for a first process without a handler

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._is_started:
            self._was_killed = True
            self._signal("SIGKILL")

    def _signal(self, name: str) -> None:
        with suppress(DockerRefused, EngineUnavailableError):  # `wait` finds out why
            self._docker.run("kill", "--signal", name, self._id)

    def is_alive(self) -> bool:
        """Tell whether its program runs; True if that cannot be seen."""
        return not self.first_pid or system.process_facts(self._program()) is not None

    def _program(self) -> int:
        """Return the program's process, or that of the init before it until the program has begun, or 0."""
        if self._pid == self.first_pid and self._has_init and self._pid:
            self._pid = next((child.pid for child in system.children_of(self.first_pid)), self.first_pid)
        return self._pid

    def remove(self) -> None:
        """Remove the container."""
        if self._id:
            remove_containers(self._docker, [self._id])
            self._id = ""
