"""Connections to a daemon: a socket, whatever it leads through, and the requests on it.

This is as much of HTTP/1.1 as a daemon speaks. `http.client` would do too, but importing it costs 22 ms of
cpu, as much as all the rest of ``trainyard status``, and reading its chunks costs a call for each.
"""

from __future__ import annotations

import os
import select
import socket

from trainyard.docker.errors import EngineForbiddenError, EngineUnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator, Mapping
    from typing import IO

    from trainyard.docker.daemon_address import DaemonAddress, Tls

CONNECT_SECONDS = 30.0
BUFFER = 256 << 10
LONGEST_HEAD = 1 << 20
_UPLOAD_CHUNK = 1 << 20


class ConnectionLost(Exception):
    """The other side closed the connection, or it broke, before an answer was complete."""


class Connection:
    """One connection to a daemon, used for one request at a time.

    Raises:
        EngineUnavailableError: nothing answers there.
    """

    def __init__(self, endpoint: DaemonAddress) -> None:
        self.endpoint = endpoint
        self.process: subprocess.Popen[bytes] | None = None
        self._socket = self._connect()
        self.buffer = bytearray()

    def _connect(self) -> socket.socket:
        if self.endpoint.scheme == "ssh":
            return self._through_ssh()
        try:
            if self.endpoint.scheme == "unix":
                plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    plain.settimeout(CONNECT_SECONDS)
                    plain.connect(self.endpoint.address)
                except BaseException:
                    plain.close()
                    raise
                return plain
            address = (self.endpoint.address, self.endpoint.port)
            plain = socket.create_connection(address, CONNECT_SECONDS)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.endpoint.tls is None:
                return plain
            return _secure(plain, self.endpoint.tls, self.endpoint.address)
        except OSError as error:
            raise no_daemon(self.endpoint, error) from error

    def _through_ssh(self) -> socket.socket:
        import subprocess

        ours, theirs = socket.socketpair()
        endpoint = self.endpoint
        target = f"{endpoint.user}@{endpoint.address}" if endpoint.user else endpoint.address
        port = ["-p", str(endpoint.port)] if endpoint.port else []
        words = ["ssh", "-o", f"ConnectTimeout={CONNECT_SECONDS:.0f}", "-T", *port, "--", target]
        try:
            self.process = subprocess.Popen(
                [*words, "docker", "system", "dial-stdio"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C ends what we do with it in our order, not in the terminal's
            )
        except OSError as error:
            ours.close()
            raise no_daemon(endpoint, error) from error
        finally:
            theirs.close()
        return ours

    # ---- sending

    def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | IO[bytes] | Iterable[bytes] | None,
        version: str = "1.1",
    ) -> None:
        """Send a request. Returns quietly where the daemon stops reading: its answer says why.

        Raises:
            ConnectionLost: it could not be sent, and the daemon says nothing.
        """
        lines = [f"{method} {target} HTTP/{version}", "Host: docker"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if not (body is None or isinstance(body, bytes)):
            lines.append("Transfer-Encoding: chunked")
        elif body or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(body or b'')}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")
        try:
            if body is None or isinstance(body, bytes):
                self._socket.sendall(head + (body or b""))
                return
            self._socket.sendall(head)
            for piece in _pieces(body):
                if self._is_readable():  # progress that nobody reads would make the daemon wait for us
                    self._receive()
                self._socket.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            self._socket.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError) as error:
            if not self._has_answer():
                raise ConnectionLost(str(error)) from error
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def _has_answer(self) -> bool:
        try:
            self._receive()
        except (ConnectionLost, OSError):
            return False
        return bool(self.buffer)

    # ---- receiving

    def _receive(self, size: int = BUFFER) -> int:
        """Read some more into the buffer; returns how much, 0 at the end."""
        try:
            data = self._socket.recv(size)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        self.buffer += data
        return len(data)

    def read_head(self) -> tuple[int, dict[str, str]]:
        """Return status and headers (names in lower case) of the answer.

        Raises:
            ConnectionLost: the connection ends before.
        """
        while True:
            while (end := self.buffer.find(b"\r\n\r\n")) < 0:
                if len(self.buffer) > LONGEST_HEAD:
                    raise ConnectionLost("the answer is not HTTP")
                if not self._receive():
                    raise ConnectionLost("the connection was closed")
            status_line, *lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
            words = status_line.split(" ", 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
                raise ConnectionLost("the answer is not HTTP")
            del self.buffer[: end + 4]
            if not words[1].startswith("1"):  # "100 Continue" and the like come before the answer
                break
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(words[1]), headers

    def read_some(self, limit: int = BUFFER) -> bytes:
        """Return what has come, at least a byte, waiting for it if need be; b"" at the end."""
        if not self.buffer:
            try:
                return self._socket.recv(limit)
            except TimeoutError:
                raise
            except OSError as error:
                raise ConnectionLost(str(error)) from error
        data = bytes(self.buffer[:limit])
        del self.buffer[:limit]
        return data

    def read_line(self) -> bytes:
        """Return a line without its end.

        Raises:
            ConnectionLost: the connection ends before.
        """
        while (end := self.buffer.find(b"\n")) < 0:
            if not self._receive():
                raise ConnectionLost("the connection was closed")
        line = bytes(self.buffer[:end]).rstrip(b"\r")
        del self.buffer[: end + 1]
        return line

    # ---- looking after it

    def set_timeout(self, seconds: float | None) -> None:
        """Set how long one read or write may take; None for ever."""
        self._socket.settimeout(seconds)

    def is_idle(self) -> bool:
        """Tell whether it is open and nothing waits to be read, so that it can take a request."""
        try:
            return not self.buffer and not self._is_readable()
        except (OSError, ValueError):
            return False

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def interrupt(self) -> None:
        """End a read that another thread waits in."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Close it. May be called more than once."""
        self._socket.close()
        process, self.process = self.process, None
        if process is not None:
            process.terminate()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()

    def why_lost(self, error: Exception) -> str:
        """Return what is known of the connection's end: ssh's own words, if it has any."""
        if self.process is not None and self.process.stderr is not None:
            self._socket.close()
            words = self.process.stderr.read().decode("utf-8", "replace").strip()
            if words:
                return words
        return str(error)


def _pieces(body: IO[bytes] | Iterable[bytes]) -> Iterator[bytes]:
    read = getattr(body, "read", None)
    pieces = iter(lambda: read(_UPLOAD_CHUNK), b"") if read is not None else iter(body)
    return (piece for piece in pieces if piece)


def _secure(plain: socket.socket, tls: Tls, host: str) -> socket.socket:
    import ssl

    try:
        context = ssl.create_default_context()
        files = {name: os.path.join(tls.directory, f"{name}.pem") for name in ("ca", "cert", "key")}
        if os.path.exists(files["ca"]):
            context = ssl.create_default_context(cafile=files["ca"])
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if os.path.exists(files["cert"]):
            context.load_cert_chain(files["cert"], files["key"])
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def no_daemon(endpoint: DaemonAddress, error: OSError) -> EngineUnavailableError:
    """Say that no daemon answers, and what to do."""
    where = f"cannot reach a Docker daemon at {endpoint}"
    why = str(error.strerror or error)
    others = "If it listens elsewhere, name it in DOCKER_HOST or DOCKER_CONTEXT."
    if endpoint.scheme == "ssh":
        return EngineUnavailableError(f"{where}: {why}", hint="ssh must be installed to reach it.")
    if isinstance(error, PermissionError):
        return EngineForbiddenError(
            f"{where}: this user may not use its socket",
            hint="Add the user to the group of the socket and log in anew: sudo usermod -aG docker $USER",
        )
    if isinstance(error, FileNotFoundError):
        why = "there is no such socket"
    if isinstance(error, ConnectionRefusedError):
        why = "nothing listens there"
    return EngineUnavailableError(
        f"{where}: {why}", hint=f"Is the daemon running? Start it: sudo systemctl start docker. {others}"
    )
