"""Running a command in a container of a pod that runs: ``pods/exec`` over a WebSocket.

Each message begins with the number of its channel: 0 stdin, 1 stdout, 2 stderr, 3 the status at the end, 4
the size of the terminal; 255 and a number close a channel, since v5
(https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery/4006-transition-spdy-to-websockets).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from shunter.errors import ConfigError
from shunter.schedulers.joined_terminal import SHELL, STDERR, STDIN, STDOUT, join
from shunter.schedulers.kubernetes_scheduler.api_server import ApiServer, KubernetesError
from shunter.schedulers.kubernetes_scheduler.observe import core_path

log = logging.getLogger(__name__)

PROTOCOLS = ["v5.channel.k8s.io", "v4.channel.k8s.io"]
_STDIN, _STDOUT, _STDERR, _STATUS, _SIZE, _CLOSE = 0, 1, 2, 3, 4, 255
#: Exit code where the program ended, and the server does not say how.
_UNKNOWN_CODE = 125


def run_in_pod(
    server: ApiServer,
    namespace: str,
    pod: str,
    container: str,
    name: str,
    command: Sequence[str],
    *,
    tty: bool,
) -> int:
    """Run a command in a container, joined to this process's terminal or streams; returns its exit code.

    Args:
        server: the API server.
        namespace: the pod's namespace.
        pod: a pod that runs.
        container: its container.
        name: what the replica is called in messages.
        command: program and arguments; empty for a shell.
        tty: whether the command gets a terminal.

    Raises:
        ConfigError: the container is not running, or has no such program.
        KubernetesError: the server refused it, or the connection broke.
    """
    import httpx2
    from httpx2.websockets import WebSocketUpgradeError

    words = list(command or SHELL)
    takes_input = tty or has_input()
    params = [("command", word) for word in words]
    params += [("container", container), ("stdout", "true")]
    if takes_input:
        params.append(("stdin", "true"))
    params.append(("tty", "true") if tty else ("stderr", "true"))  # a terminal has one output
    path = core_path("pods", namespace, pod, "exec")
    try:
        with server.websocket(path, PROTOCOLS, params) as session:
            channel = _PodChannel(session, takes_input)
            try:
                join(channel, tty=tty)
            finally:
                channel.close()
    except WebSocketUpgradeError as error:
        raise _refusal(server, path, params, error.response.status_code) from None
    except httpx2.HTTPError as error:
        raise server.translated(error) from None
    if channel.error is not None:
        raise KubernetesError(
            f"the connection to the command in {name} was lost: {channel.error}",
            hint="The command may still run there.",
        )
    return _exit_code(channel.status, name, words, is_shell=not command)


def has_input() -> bool:
    """Tell whether this process has a stdin from which anything can come."""
    try:
        found = os.fstat(STDIN)
    except OSError:
        return False
    return not (stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev)


def _refusal(server: ApiServer, path: str, params: list[tuple[str, str]], status: int) -> KubernetesError:
    """Return why no WebSocket was opened, from the answer to a plain request."""
    try:
        server.request("GET", path, attempts=1, **dict(params))
    except KubernetesError as error:
        if error.status == status:
            if status == 403:
                error.hint = "exec needs the verbs get and create on pods/exec."
            return error
    hint = "Does its node answer? `shunter status` says more." if status >= 500 else ""
    return KubernetesError(
        f"the API server opened no connection to the container: HTTP {status}", hint=hint, status=status
    )


def _exit_code(status: dict[str, Any], name: str, words: list[str], *, is_shell: bool) -> int:
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or []
    for cause in causes:
        if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
            return int(cause["message"])
    message = str(status.get("message") or "")
    if "executable file not found" in message or "no such file or directory" in message:
        hint = "Its image has no shell: name a program after `--`." if is_shell else "Is it in the image?"
        raise ConfigError(f"there is no program {words[0]!r} in {name}", hint=hint)
    if message:
        raise ConfigError(f"cannot start {words[0]!r} in {name}: {message}")
    return _UNKNOWN_CODE


def _shut_down(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _PodChannel:
    """The connection to a command. A thread reads it, and wakes the copying thread through a pipe.

    Attributes:
        status: what the server says of the end.
        error: why the connection broke; None if it did not.
    """

    def __init__(self, session: Any, takes_input: bool = True) -> None:
        self._takes_input = takes_input
        self.status: dict[str, Any] = {}
        self.error: Exception | None = None
        self._session = session
        self._pieces: deque[tuple[int, bytes] | None] = deque()
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._read, name="pod-exec", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connection and its thread."""
        with ExitStack() as stack:
            with suppress(OSError, AttributeError):  # it is closed already
                # A thread of the session reads the socket, and the interpreter waits for that thread. Closing
                # the socket does not wake it; shutting the connection down does.
                held = socket.socket(fileno=os.dup(self._session.stream.get_extra_info("socket").fileno()))
                stack.callback(_shut_down, held)
            try:
                self._session.close()
            except Exception:  # it is closed already
                self.status = self.status or {}
        self._thread.join(10)
        if not self._thread.is_alive():
            os.close(self._awake)
            os.close(self._wake)

    def _read(self) -> None:
        from httpx2.websockets import WebSocketDisconnect

        try:
            while True:
                message = self._session.receive_bytes()
                number, data = (message[0], bytes(message[1:])) if message else (_STDOUT, b"")
                if number in (_STDOUT, _STDERR) and data:
                    self._put((STDOUT if number == _STDOUT else STDERR, data))
                elif number == _STATUS:
                    self.status = json.loads(data or b"{}")
                    break
        except WebSocketDisconnect as error:
            self.error = None if self.status else error
        except Exception as error:  # whatever it is, the one that copies must hear of it
            self.error = error
        self._put(None)

    def _put(self, piece: tuple[int, bytes] | None) -> None:
        self._pieces.append(piece)
        try:
            os.write(self._wake, b"!")
        except BlockingIOError:  # it is awake already
            return

    def fileno(self) -> int:
        return self._awake

    def receive(self) -> Sequence[tuple[int, bytes]] | None:
        try:
            os.read(self._awake, 65536)
        except BlockingIOError:
            return []
        found: list[tuple[int, bytes]] = []
        while self._pieces:
            piece = self._pieces.popleft()
            if piece is None:
                if not found:
                    return None
                self._put(None)
                break
            found.append(piece)
        return found

    def send(self, data: bytes) -> None:
        self._send(bytes([_STDIN]) + data)

    def end_input(self) -> None:
        if not self._takes_input:  # the program has /dev/null
            return
        if self._session.subprotocol == PROTOCOLS[0]:
            self._send(bytes([_CLOSE, _STDIN]))
        elif not self.status:
            log.warning(
                "this API server (older than Kubernetes 1.30) cannot signal the end of the input to "
                "the command: a command that reads until the end waits forever; Ctrl-C ends this connection"
            )

    def resize(self, rows: int, columns: int) -> None:
        self._send(bytes([_SIZE]) + json.dumps({"Width": columns, "Height": rows}).encode())

    def _send(self, message: bytes) -> None:
        try:
            self._session.send_bytes(message)
        except Exception as error:  # the command has ended, or the connection broke: the reader says which
            if not self.status and self.error is None:
                self.error = error
                self._put(None)
