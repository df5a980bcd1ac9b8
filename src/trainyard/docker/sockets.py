"""Requests over connections of our own, which are kept for the next ones."""

from __future__ import annotations

import threading

from trainyard.docker.transport import BUFFER, Connection, ConnectionLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import IO

    from trainyard.docker.daemon_address import DaemonAddress

    Body = bytes | IO[bytes] | Iterable[bytes] | None

#: How long the daemon may say nothing at all before it counts as gone.
REQUEST_SECONDS = 120.0
KEPT_CONNECTIONS = 8


class SocketTransport:
    """Carries requests over connections of our own, which are kept for the next ones.

    Args:
        endpoint: where the daemon is.
    """

    def __init__(self, endpoint: DaemonAddress) -> None:
        self.endpoint = endpoint
        self.is_local = endpoint.is_local
        self._idle: list[Connection] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def environ(self) -> dict[str, str]:
        """Return what names the daemon. An address with certificates is left to the caller's variables."""
        return {} if self.endpoint.tls else {"DOCKER_HOST": str(self.endpoint)}

    def open(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        data: Body,
        timeout: float | None,
        unframed: bool,
    ) -> SocketResponse:
        """Send a request and read the head of the answer."""
        while True:
            connection = self._take()
            is_used = connection is not None
            if connection is None:
                connection = Connection(self.endpoint)
            try:
                connection.set_timeout(timeout)
                connection.send(method, target, headers, data, "1.0" if unframed else "1.1")
                status, answer = connection.read_head()
                needs_witness = unframed and "content-length" not in answer
                witness = self._witness() if needs_witness else None
            except ConnectionLost as error:
                reason = connection.why_lost(error)
                connection.close()
                # Between two requests the daemon may close it; what only reads can simply be asked again.
                if is_used and method in ("GET", "HEAD"):
                    continue
                raise ConnectionLost(reason) from error
            except BaseException:
                connection.close()
                raise
            return SocketResponse(self, connection, method, status, answer, witness)

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_idle():
                return connection
            connection.close()

    def _witness(self) -> Connection:
        return self._take() or Connection(self.endpoint)

    def give(self, connection: Connection) -> None:
        """Keep a connection on which an answer was read to its end."""
        with self._lock:
            if len(self._idle) < KEPT_CONNECTIONS and not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the connections that are kept, and keep none from now on: a thread may give one back late."""
        with self._lock:
            self._is_closed = True
            connections, self._idle = self._idle, []
        for connection in connections:
            connection.close()


class SocketResponse:
    """An answer on a connection, in one of the three ways in which HTTP/1.1 marks a body's end."""

    def __init__(
        self,
        transport: SocketTransport,
        connection: Connection,
        method: str,
        status: int,
        headers: dict[str, str],
        witness: Connection | None = None,
    ) -> None:
        self.status = status
        self.headers = headers
        self._transport = transport
        self._connection: Connection | None = connection
        self._witness = witness
        self._keep = headers.get("connection", "").lower() != "close"
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length", "")
        self._left = int(length) if length.isdecimal() else -1
        if method == "HEAD" or status in (204, 304):
            self._chunked, self._left = False, 0
        if self._chunked:
            self._left = 0
        elif self._left == 0:
            self._finish()

    def read1(self, limit: int = BUFFER) -> bytes:
        """Return some of the body, b"" at its end."""
        connection = self._connection
        if connection is None:
            return b""
        if self._chunked:
            return self._read_chunk(connection, limit)
        data = connection.read_some(limit if self._left < 0 else min(limit, self._left))
        if not data:
            if self._left > 0:
                raise ConnectionLost("the connection was closed")
            self._ask_witness()
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
                raise ConnectionLost("the answer is not HTTP") from None
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

    def _ask_witness(self) -> None:
        """Make sure that the daemon ended the body, and not the body the daemon.

        The witness is a connection to the same process, opened before: if it answers, the daemon is alive.
        """
        witness = self._witness
        if witness is None:
            return
        witness.set_timeout(REQUEST_SECONDS)
        witness.send("GET", "/_ping", {}, None)
        _, headers = witness.read_head()
        body = int(headers.get("content-length", "0"))
        while body > 0:
            body -= len(witness.read_some(body)) or body
        self._witness = None
        self._transport.give(witness)

    def interrupt(self) -> None:
        """End a read that another thread waits in."""
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def close(self) -> None:
        """Close the connection, if the body was not read to its end."""
        self._finish(keep=False)

    def _finish(self, keep: bool = True) -> None:
        connection, self._connection = self._connection, None
        witness, self._witness = self._witness, None
        if witness is not None:
            witness.close()
        if connection is None:
            return
        if keep and self._keep:
            self._transport.give(connection)
        else:
            connection.close()
