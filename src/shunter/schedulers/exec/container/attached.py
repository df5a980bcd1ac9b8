"""A container whose starter stays with it, copies its log to a file and waits for its end.

Containers that outlive the process that started them are in `shunter.schedulers.exec.container.submission`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, NamedTuple

from shunter import system
from shunter.backoff import Backoff
from shunter.docker.daemon_errors import EngineError, EngineUnavailableError
from shunter.docker.engine import Engine
from shunter.errors import BackendError
from shunter.schedulers.exec.container.inventory import remove_container
from shunter.schedulers.exec.container.logs import Cursor, LineJoiner, frames_after

#: Seconds between two attempts to reach a daemon that is away, and to write to a full disk.
RETRY_SECONDS = 0.2
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
        lost_bytes: how much of its log could not be written.
    """

    code: int
    signum: int
    handled: bool
    oom: bool
    error: str
    lost_bytes: int


class AttachedContainer:
    """A container, called ``name`` in messages. Its methods may be called by any thread.

    Its log is copied to the file ``log_path``. The daemon may be away for ``patience`` seconds.
    """

    def __init__(self, engine: Engine, name: str, log_path: str, patience: float) -> None:
        self._engine = engine
        self._name = name
        self._log_path = log_path
        self._patience = patience
        self._id = ""
        self._has_init = False
        self._is_started = False
        self._was_terminated = False
        self._was_killed = False
        self._handles_sigterm = True
        #: The container's first process on this machine and the program's, or 0.
        self._first_pid = self._pid = 0
        self._file: ContainerLogFile | None = None
        self._reader: threading.Thread | None = None

    @property
    def id(self) -> str:
        """The container's id; "" before it is made and after it is removed."""
        return self._id

    def start(self, definition: dict[str, Any]) -> None:
        """Create and start the container. If that fails it has to be removed, and may be restarted.

        Raises:
            EngineError: the daemon refuses it: the image has no such program, for instance.
            EngineUnavailableError: no daemon answers.
        """
        self._has_init = bool(definition["HostConfig"].get("Init"))
        self._id = self._engine.request("POST", "/containers/create", json=definition)["Id"]
        self._engine.request("POST", f"/containers/{self._id}/start")
        self._is_started = True
        if system.SEES_CONTAINER_PROCESSES and self._engine.is_local:
            try:
                self._pid = self._first_pid = int(self._state()["Pid"])
            except (EngineError, EngineUnavailableError):
                pass
        self._file = ContainerLogFile(self._log_path)
        self._reader = threading.Thread(target=self._copy_log, args=(self._file,), daemon=True)
        self._reader.start()

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._engine.request("GET", f"/containers/{self._id}/json")["State"]
        return state

    # ---- its end

    def wait(self) -> ContainerEnd:
        """Wait for its end and the end of its log.

        Raises:
            ContainerLost: the daemon stays away, or another client removed the container.
        """
        state = self._wait_state()
        lost = 0
        if self._reader is not None and self._file is not None:
            self._file.give_up_after(0 if self._was_terminated or self._was_killed else self._patience)
            self._reader.join()
            lost = self._file.lost_bytes
        code = int(state["ExitCode"])
        signum = code - 128 if code > 128 and code - 128 in set(signal.Signals) else 0
        handled = signum == signal.SIGTERM and self._handles_sigterm
        return ContainerEnd(
            code, signum, handled, bool(state.get("OOMKilled")), str(state.get("Error") or ""), lost
        )

    def _wait_state(self) -> dict[str, Any]:
        backoff = self._outage()
        while True:
            try:
                # The connection stays silent for as long as the container runs.
                with self._engine.stream("POST", f"/containers/{self._id}/wait") as answer:
                    answer.read()
                state = self._state()
                if not state["Running"]:
                    return self._confirmed(state)
            except EngineError as error:
                gone = f"the container of {self._name} was removed"
                raise ContainerLost(gone if error.status == 404 else error.message) from error
            except EngineUnavailableError as error:
                if not backoff.pause():
                    raise ContainerLost(error.message) from error
            else:
                backoff.reset()

    def _outage(self) -> Backoff:
        """Return the delays while the daemon cannot be reached."""
        return Backoff(RETRY_SECONDS, jitter=0, limit=self._patience)

    def _confirmed(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return its state once it is clear why it got a signal that we did not send.

        Removing a container kills it first, a daemon that is being stopped ends all of its containers, and an
        out-of-memory kill may be noted only after the container has ended.

        Raises:
            EngineError: 404, it is gone.
            ContainerLost: the daemon goes away.
        """
        if self._was_terminated or self._was_killed or state["ExitCode"] not in (KILLED, TERMINATED):
            return state
        backoff = Backoff(0.1, jitter=0, limit=REMOVAL_BEGINS_SECONDS)
        while not state.get("OOMKilled"):
            fresh = Engine.from_env()  # a daemon that is being stopped still answers on old connections
            try:
                fresh.api_version  # noqa: B018 - asks for it
                state = self._state()
            except EngineUnavailableError as error:
                raise ContainerLost(
                    f"the container of {self._name} was ended with its daemon: {error.message}"
                ) from error
            finally:
                fresh.close()
            if state.get("Status") in ("removing", "dead") or state.get("Dead"):
                raise EngineError(404, "it is being removed")
            if not backoff.pause():
                break
        return state

    def terminate(self) -> None:
        """Send SIGTERM. A first process without a handler for it and without an init is killed."""
        if not self._is_started:
            return
        self._was_terminated = True
        program = self._program()
        if program and not (self._has_init and program == self._first_pid):  # which is the init
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
        try:
            self._engine.request("POST", f"/containers/{self._id}/kill", params={"signal": name})
        except (EngineError, EngineUnavailableError):  # it has ended, or the daemon is away: `wait` finds out
            pass

    def is_alive(self) -> bool:
        """Tell whether its program runs; True if that cannot be seen."""
        return not self._first_pid or system.process_facts(self._program()) is not None

    def _program(self) -> int:
        """Return the program's process, or that of the init before it until the program has begun, or 0."""
        if self._pid == self._first_pid and self._has_init and self._pid:
            self._pid = next((child.pid for child in system.children_of(self._first_pid)), self._first_pid)
        return self._pid

    def remove(self) -> None:
        """Remove the container."""
        if self._id:
            remove_container(self._engine, self._id)
            self._id = ""

    # ---- its log

    def _copy_log(self, file: ContainerLogFile) -> None:
        """Copy the log while it grows, and then its end, which the daemon may not send to a follower."""
        cursor, joiner = Cursor(), LineJoiner()
        try:
            for follow in (True, False):
                backoff = self._outage()
                while True:
                    try:
                        for frames in frames_after(self._engine, self._id, cursor, follow=follow):
                            file.write(b"".join([joiner.add(stream, piece) for stream, _, piece in frames]))
                            backoff.reset()
                        break
                    except EngineUnavailableError:
                        if not backoff.pause():
                            break
                    except BackendError:
                        break
            for rest in joiner.rest():
                file.write(rest + b"\n")
        finally:
            file.close()


class ContainerLogFile:
    """The file that a log is copied to.

    While the disk is full it waits: until there is room, or until the time that `give_up_after` sets.

    Attributes:
        lost_bytes: how much could not be written.
    """

    def __init__(self, path: str) -> None:
        self.lost_bytes = 0
        self._deadline = float("inf")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        """Write whole lines."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError:
                if self.lost_bytes or time.monotonic() > self._deadline:
                    self.lost_bytes += len(view)
                    return
                time.sleep(RETRY_SECONDS)

    def give_up_after(self, seconds: float) -> None:
        """Wait no longer than this for room on the disk. What does not fit by then is lost."""
        self._deadline = time.monotonic() + seconds

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
