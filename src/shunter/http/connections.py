"""Connections (Unix socket, TCP, TLS, ssh, tunnel), the requests sent on them, and their answers.

As much of HTTP/1.1 as Docker daemons and registries speak. `http.client` would do too, but reading its chunks
costs a call for each.
"""

from __future__ import annotations

import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO

#: Bytes are sent with their length; files and iterables in chunks, unless Content-Length is given.
Body = bytes | IO[bytes] | Iterable[bytes] | None

BUFFER = 256 << 10
KEPT_CONNECTIONS = 8
_LONGEST_HEAD = 1 << 20
_PIECE = 1 << 20


class ConnectionLost(ConnectionError):
    """The other side closed the connection before an answer was complete."""


class NotHttpError(ConnectionLost):
    """What the other side sent is not HTTP."""

    def __init__(self) -> None:
        super().__init__("the answer is not HTTP")


class Connection:
    """One connection, used for one request at a time. A program at its other end, if any, ends with it."""

    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._socket = sock
        self._process = process
        self._buffer = bytearray()

    # ---- sending

    def send(self, method: str, target: str, headers: Mapping[str, str], body: Body = None) -> None:
        """Send a request. Returns quietly where the other side answers without reading all of the body.

        Raises:
            OSError: it could not be sent, and nothing was answered.
        """
        lines = [
            f"{method} {target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        is_chunked = False
        if "Content-Length" not in headers:
            is_chunked = not (body is None or isinstance(body, bytes))
            if is_chunked:
                lines.append("Transfer-Encoding: chunked")
            elif body or method in ("POST", "PUT", "PATCH"):
                lines.append(f"Content-Length: {len(body or b'')}")  # type: ignore[arg-type]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        try:
            if body is None or isinstance(body, bytes):
                self._socket.sendall(head + (body or b""))
                return
            self._socket.sendall(head)
            for piece in _pieces(body):
                self._receive_what_is_there()  # or else the other side might wait for us to read its progress
                self._socket.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            if is_chunked:
                self._socket.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            # a server that refuses the body answers and hangs up
            try:
                self._receive()
            except OSError:
                pass
            if not self._buffer:
                raise

    def _receive_what_is_there(self) -> None:
        if not self._is_readable():
            return
        timeout = self._socket.gettimeout()
        self._socket.settimeout(0)  # with TLS, what can be read need not be part of an answer
        try:
            self._receive()
        except OSError:
            pass  # sending goes on, and shows whether the connection is broken
        finally:
            self._socket.settimeout(timeout)

    # ---- receiving

    def _receive(self) -> int:
        """Read some more into the buffer; returns how much, 0 at the end."""
        data = self._socket.recv(BUFFER)
        self._buffer += data
        return len(data)

    def read_head(self) -> tuple[int, dict[str, str]]:
        """Return status and headers of the answer: names in lower case, repeated ones joined by commas.

        Raises:
            ConnectionLost: the connection ends too early, or what arrives is not HTTP.
        """
        while True:
            while (end := self._buffer.find(b"\r\n\r\n")) < 0:
                if len(self._buffer) > _LONGEST_HEAD or not b"HTTP/".startswith(self._buffer[:5]):
                    raise NotHttpError
                if not self._receive():
                    raise ConnectionLost("the connection was closed")
            status_line, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            words = status_line.split(" ", 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
                raise NotHttpError
            del self._buffer[: end + 4]
            if not words[1].startswith("1") or words[1] == "101":
                break  # "100 Continue" and the like come before the answer
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.strip().lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return int(words[1]), headers

    def read_some(self, limit: int = BUFFER) -> bytes:
        """Return at least a byte, waiting for it if necessary; b"" at the end."""
        if not self._buffer:
            return self._socket.recv(limit)
        data = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        return data

    def read_line(self) -> bytes:
        """Return a line without its end.

        Raises:
            ConnectionLost: the connection ends before.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _LONGEST_HEAD:
                raise NotHttpError
            if not self._receive():
                raise ConnectionLost("the connection was closed")
        line = bytes(self._buffer[:end]).rstrip(b"\r")
        del self._buffer[: end + 1]
        return line

    # ---- after an upgrade: bytes in both directions

    def fileno(self) -> int:
        """Return the file descriptor to poll for input, once `buffered` is empty."""
        return self._socket.fileno()

    def buffered(self) -> bytes:
        """Take what was read beyond the head of the answer."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def send_now(self, data: bytes) -> int:
        """Send as much as can be sent now; returns how much."""
        self._socket.settimeout(0)
        try:
            return self._socket.send(data)
        except (BlockingIOError, TimeoutError):
            return 0
        except OSError as error:
            if type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
                return 0
            raise

    # ---- the connection itself

    def set_timeout(self, seconds: float | None) -> None:
        """Set how long one read or write may take; None for no limit."""
        self._socket.settimeout(seconds)

    def is_idle(self) -> bool:
        """Tell whether it is open and nothing waits to be read, so that it can take a request."""
        try:
            return not self._buffer and not self._is_readable()
        except (OSError, ValueError):
            return False

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Speak TLS from now on."""
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except BaseException:
            self.close()
            raise

    def interrupt(self) -> None:
        """End a read that another thread waits in."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def last_words(self) -> str:
        """Close the connection, and return what its program printed as an error."""
        self._socket.close()
        if self._process is None or self._process.stderr is None:
            return ""
        return self._process.stderr.read().decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Close it. May be called more than once."""
        self._socket.close()
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


def _pieces(body: IO[bytes] | Iterable[bytes]) -> Iterator[bytes]:
    read = getattr(body, "read", None)
    pieces = iter(lambda: read(_PIECE), b"") if read is not None else iter(body)
    return (piece for piece in pieces if piece)


def connect_unix(path: str, seconds: float) -> Connection:
    """Connect to a Unix socket."""
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        plain.settimeout(seconds)
        plain.connect(path)
    except BaseException:
        plain.close()
        raise
    return Connection(plain)


def connect_tcp(host: str, port: int, seconds: float) -> Connection:
    """Connect to a port of a host."""
    plain = socket.create_connection((host, port), seconds)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(plain)


def connect_program(words: list[str]) -> Connection:
    """Connect to a program that reads requests from its standard input, such as ssh."""
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            words,
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches us, not the program
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Connection(ours, process)


class Pool:
    """Sends requests to one server, over connections that are kept. Safe for use by several threads.

    ``connect`` makes a connection; ``host`` is the value of the header ``Host``.
    """

    def __init__(self, connect: Callable[[], Connection], host: str) -> None:
        self._connect = connect
        self._host = host
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._is_closed = False
        self._lock = threading.Lock()

    def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Body = None,
        timeout: float | None = None,
    ) -> Response:
        """Send a request and read the head of its answer.

        A request that only reads is sent again if a kept connection turns out to be closed.

        Args:
            method: GET, POST, ....
            target: path and query; a whole URL for a proxy.
            headers: headers, without ``Host``.
            body: what is sent.
            timeout: seconds between two parts of the answer; None for no limit.

        Raises:
            OSError: no connection, or no answer.
        """
        while True:
            kept = self._kept()
            connection = kept or self._connect()
            with self._lock:
                self._busy.add(connection)
            try:
                connection.set_timeout(timeout)
                sent = {"Host": self._host, **headers}
                connection.send(method, target, sent, body)
                status, answer = connection.read_head()
            except ConnectionError as error:
                words = connection.last_words()
                self.give_back(connection, reusable=False)
                if kept is not None and method in ("GET", "HEAD"):
                    continue
                if words:
                    raise ConnectionLost(words) from error
                raise
            except BaseException:
                self.give_back(connection, reusable=False)
                raise
            return Response(self, connection, method, status, answer)

    def upgrade(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> tuple[int, dict[str, str], Connection]:
        """Send a request that turns its connection into a two-way stream of bytes.

        Returns:
            status and headers of the answer, and the connection, which the caller has to close. If the
            status is an error, its body is read from there.

        Raises:
            OSError: no connection, or no answer.
        """
        connection = self._connect()
        try:
            connection.set_timeout(timeout)
            sent = {"Host": self._host, "Connection": "Upgrade", "Upgrade": "tcp", **headers}
            connection.send(method, target, sent, body)
            status, answer = connection.read_head()
        except BaseException:
            connection.close()
            raise
        return status, answer, connection

    def _kept(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_idle():
                return connection
            connection.close()

    def give_back(self, connection: Connection, *, reusable: bool) -> None:
        """Keep a connection on which an answer was read to its end, or close it."""
        with self._lock:
            self._busy.discard(connection)
            if reusable and len(self._idle) < KEPT_CONNECTIONS and not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def abort(self) -> None:
        """Break the connections that are in use, so that threads that wait for them fail."""
        with self._lock:
            busy = list(self._busy)
        for connection in busy:
            connection.interrupt()

    def close(self) -> None:
        """Close the idle connections, and keep none from now on: a thread may give one back late."""
        with self._lock:
            self._is_closed = True
            connections, self._idle = self._idle, []
        for connection in connections:
            connection.close()


class Response:
    """An answer whose body is still to be read. A context manager.

    Attributes:
        status: the status.
        headers: the headers, names in lower case.
        length: bytes of the body; None where they are not known.
        url: where it came from, if a `UrlClient` got it.
    """

    def __init__(
        self,
        pool: Pool,
        connection: Connection,
        method: str,
        status: int,
        headers: dict[str, str],
    ) -> None:
        self.status = status
        self.headers = headers
        self.url = ""
        self._pool = pool
        self._connection: Connection | None = connection
        self._keep = headers.get("connection", "").lower() != "close"
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length", "")
        self._left = int(length) if length.isdecimal() else -1  # -1: until the connection is closed
        if method == "HEAD" or status in (204, 304):
            self._chunked, self._left = False, 0
        self.length = None if self._chunked or self._left < 0 else self._left
        if self._chunked:
            self._left = 0
        elif self._left == 0:
            self._finish()

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read1(self, limit: int = BUFFER) -> bytes:
        """Return some of the body, at least a byte; b"" at its end.

        Raises:
            OSError: the connection broke, or was silent for too long.
        """
        connection = self._connection
        if connection is None:
            return b""
        if self._chunked:
            return self._read_chunk(connection, limit)
        data = connection.read_some(limit if self._left < 0 else min(limit, self._left))
        if not data:
            if self._left > 0:
                raise ConnectionLost("the connection was closed")
            self._finish(keep=False)
        elif self._left > 0:
            self._left -= len(data)
            if not self._left:
                self._finish()
        return data

    def _read_chunk(self, connection: Connection, limit: int) -> bytes:
        if not self._left:
            size = connection.read_line().partition(b";")[0].strip()
            try:
                self._left = int(size, 16)
            except ValueError:
                raise NotHttpError from None
            if not self._left:
                while connection.read_line():
                    pass
                self._finish()
                return b""
        data = connection.read_some(min(limit, self._left))
        if not data:
            raise ConnectionLost("the connection was closed")
        self._left -= len(data)
        if not self._left:
            connection.read_line()
        return data

    def close(self) -> None:
        """Close the connection, unless the body was read to its end and the connection is kept."""
        self._finish(keep=False)

    def _finish(self, keep: bool = True) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(connection, reusable=keep and self._keep)
