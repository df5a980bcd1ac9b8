"""Running a command in a running container, by the engine's exec API and a bidirectional connection.

https://docs.docker.com/reference/api/engine/version/v1.47/#tag/Exec
"""

from __future__ import annotations

import select
from collections.abc import Sequence

from shunter.docker.daemon_errors import EngineError, EngineUnavailableError
from shunter.docker.engine import Engine
from shunter.errors import ConfigError
from shunter.http.connections import Connection
from shunter.schedulers.exec.joined_terminal import SHELL, STDERR, STDOUT, join, window_size

#: Header of a piece of output without a terminal: the stream, three zeros, the length.
_HEADER = 8
#: How the output begins if the command could not be started.
_REFUSAL = b"OCI runtime exec failed"
#: Exit code where the program ended, and the daemon does not say how.
_UNKNOWN_CODE = 125


def run_in_container(
    engine: Engine, container_id: str, name: str, command: Sequence[str], *, tty: bool
) -> int:
    """Run a command in a running container, on this process's terminal or streams; returns its exit code.

    An empty command is a shell. ``name`` is what the container is called in messages; with ``tty`` the
    command gets a terminal.

    Raises:
        ConfigError: the container is not running, or has no such program.
        EngineUnavailableError: no daemon answers.
    """
    words = list(command or SHELL)
    body = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": tty, "Cmd": words}
    size = {"ConsoleSize": list(window_size())} if tty else {}
    try:
        exec_id: str = engine.request("POST", f"/containers/{container_id}/exec", json={**body, **size})["Id"]
        connection = engine.upgrade(f"/exec/{exec_id}/start", {"Detach": False, "Tty": tty, **size})
    except EngineError as error:
        raise _refusal(error, name, words, is_shell=not command) from error
    channel = _ExecChannel(engine, exec_id, connection, framed=not tty)
    try:
        join(channel, tty=tty)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise EngineUnavailableError(
            f"the connection to the command in {name} was lost: {error}",
            hint="The command may still run there.",
        ) from error
    finally:
        connection.close()
    if channel.refusal:
        raise _refusal(EngineError(400, channel.refusal), name, words, is_shell=not command)
    code = engine.request("GET", f"/exec/{exec_id}/json").get("ExitCode")
    return _UNKNOWN_CODE if code is None else int(code)


def _refusal(error: EngineError, name: str, words: list[str], *, is_shell: bool) -> ConfigError:
    text = error.message
    if error.status == 409 or "is not running" in text:
        return ConfigError(f"{name} is not running, so nothing can be started in it: {text}")
    if "executable file not found" in text or "no such file or directory" in text:
        hint = "Its image has no shell: name a program after `--`." if is_shell else "Is it in the image?"
        return ConfigError(f"there is no program {words[0]!r} in {name}", hint=hint)
    return ConfigError(f"cannot start {words[0]!r} in {name}: {text}")


class _ExecChannel:
    """The connection to a command. Without a terminal its output comes in pieces with headers.

    Attributes:
        refusal: why the command could not be started, which comes as if it were output; "" if it was.
    """

    def __init__(self, engine: Engine, exec_id: str, connection: Connection, *, framed: bool) -> None:
        self._engine = engine
        self._exec_id = exec_id
        self._connection = connection
        self._framed = framed
        self._pending = bytearray(connection.buffered())
        self._has_ended = False
        self._is_first = True
        self.refusal = ""

    def fileno(self) -> int:
        return self._connection.fileno()

    def _take(self) -> bool:
        """Take some output that has arrived; False if there is none now."""
        if self._has_ended or (data := self._connection.receive_now()) is None:
            return False
        self._has_ended = not data
        self._pending += data
        return True

    def receive(self) -> Sequence[tuple[int, bytes]] | None:
        while self._take():
            pass
        pieces = self._pieces()
        if pieces and self._is_first:
            self._is_first = False
            if pieces[0][1].startswith(_REFUSAL):
                self.refusal = pieces.pop(0)[1].decode("utf-8", "replace").strip()
        return None if self._has_ended and not pieces else pieces

    def _pieces(self) -> list[tuple[int, bytes]]:
        if not self._framed:
            data = bytes(self._pending)
            self._pending.clear()
            return [(STDOUT, data)] if data else []
        found, start = [], 0
        while len(self._pending) - start >= _HEADER:
            following = start + _HEADER + int.from_bytes(self._pending[start + 4 : start + _HEADER], "big")
            if len(self._pending) < following:
                break
            stream = STDERR if self._pending[start] == STDERR else STDOUT
            found.append((stream, bytes(self._pending[start + _HEADER : following])))
            start = following
        del self._pending[:start]
        return found

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            sent = self._connection.send_now(bytes(view))
            view = view[sent:]
            if view:  # the command may take no more before its output has been read
                poller = select.poll()
                poller.register(self._connection.fileno(), select.POLLIN | select.POLLOUT)
                poller.poll()
                self._take()
                if self._has_ended:
                    return

    def end_input(self) -> None:
        self._connection.end_sending()

    def resize(self, rows: int, columns: int) -> None:
        try:
            self._engine.request("POST", f"/exec/{self._exec_id}/resize", params={"h": rows, "w": columns})
        except EngineError:  # the command has ended, or has not begun
            pass
