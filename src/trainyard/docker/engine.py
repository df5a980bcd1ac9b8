"""The Docker Engine's API: requests, streams, errors.

https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import json as json_module
import threading

from trainyard.docker.endpoint import find_endpoint
from trainyard.docker.errors import EngineError, EngineUnavailableError
from trainyard.docker.transport import BUFFER, Connection, ConnectionLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import IO, Any, Protocol

    from trainyard.docker.endpoint import Endpoint

    Body = bytes | IO[bytes] | Iterable[bytes] | None

    class Response(Protocol):
        """An answer whose body is still to be read."""

        status: int
        headers: dict[str, str]

        def read1(self, limit: int = BUFFER) -> bytes:
            """Return some of the body, b"" at its end."""
            ...

        def interrupt(self) -> None:
            """End a read that another thread waits in."""
            ...

        def close(self) -> None:
            """Give the connection back."""
            ...


__all__ = ["Engine", "EngineError", "EngineUnavailableError", "Stream"]

#: The newest version of the API that we were written for. Older daemons are spoken to in theirs.
NEWEST_API = (1, 47)
OLDEST_API = (1, 40)
#: How long the daemon may say nothing at all before it counts as gone.
REQUEST_SECONDS = 120.0
KEPT_CONNECTIONS = 8


class Stream:
    """An answer that is read as it comes. A context manager.

    Raises:
        EngineUnavailableError: the daemon goes away before the answer is complete.
    """

    def __init__(self, response: Response, endpoint: str) -> None:
        self._response = response
        self._endpoint = endpoint
        self.status = response.status
        self.headers = response.headers

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read1(self, limit: int = BUFFER) -> bytes:
        """Return what has come of the body, at least a byte; b"" at its end."""
        try:
            return self._response.read1(limit)
        except (ConnectionLost, OSError) as error:
            raise _lost(self._endpoint, error) from error

    def read(self) -> bytes:
        """Return all of the body."""
        parts = []
        while part := self.read1():
            parts.append(part)
        return b"".join(parts)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the body, without their ends."""
        pending = b""
        while part := self.read1():
            *lines, pending = (pending + part).split(b"\n")
            yield from lines
        if pending:
            yield pending

    def json_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a progress or event stream.

        Raises:
            EngineError: one of them reports that what was asked for failed.
        """
        for line in self.lines():
            if not line.strip():
                continue
            item = json_module.loads(line)
            if "error" in item:
                detail = item.get("errorDetail") or {}
                raise EngineError(detail.get("code") or 500, str(detail.get("message") or item["error"]))
            yield item

    def interrupt(self) -> None:
        """End a read that another thread waits in."""
        self._response.interrupt()

    def close(self) -> None:
        """Give the connection back, or close it if the body was not read to its end."""
        self._response.close()


class Engine:
    """A client of one daemon. Safe for use by several threads.

    Args:
        transport: what carries the requests.
    """

    def __init__(self, transport: SocketTransport | Any) -> None:
        self._transport = transport
        self._version = ""
        self._lock = threading.Lock()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Engine:
        """Return a client of the daemon that the ``docker`` command would use. Contacts nothing yet.

        Raises:
            ConfigError: the environment does not name a daemon.
        """
        return cls(SocketTransport(find_endpoint(environ)))

    @classmethod
    def adopt(cls, docker_client: Any) -> Engine:
        """Return a client that speaks through a `docker.DockerClient` (or its ``api``)."""
        from trainyard.docker.adopted import AdoptedTransport

        return cls(AdoptedTransport(docker_client))

    @property
    def endpoint(self) -> str:
        """The daemon's address, for messages."""
        return str(self._transport.endpoint)

    @property
    def is_local(self) -> bool:
        """Whether the daemon runs on this machine, so that it sees the same files."""
        return bool(self._transport.is_local)

    def environ(self) -> dict[str, str]:
        """Return the variables by which another process finds the same daemon."""
        return dict(self._transport.environ())

    @property
    def api_version(self) -> str:
        """The version of the API that both sides know."""
        with self._lock:
            if not self._version:
                with self._open("GET", "/_ping", {}, None, REQUEST_SECONDS) as answer:
                    offered = answer.headers.get("api-version", "")
                    answer.read()
                    _raise_for_status(answer.status, answer.headers, b"")
                self._version = self._negotiate(offered)
            return self._version

    def _negotiate(self, offered: str) -> str:
        major, _, minor = offered.partition(".")
        theirs = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else OLDEST_API
        if theirs < OLDEST_API:
            raise EngineUnavailableError(
                f"the Docker daemon at {self.endpoint} is too old: it speaks version {offered} of the API",
                hint="Update it to Docker 19.03 or newer.",
            )
        return "{}.{}".format(*min(theirs, NEWEST_API))

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        data: Body = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send a request and return the decoded JSON of the answer; None if it has no body.

        Args:
            method: GET, POST, ....
            path: without the version: ``/containers/json``.
            params: query; dicts and lists are sent as JSON, as ``filters`` wants them, None is left out.
            json: body, sent as JSON.
            data: body as bytes, a file, or an iterable of bytes.
            headers: more headers.
            timeout: seconds that the daemon may take until it says anything; 120 by default.

        Raises:
            EngineError: the daemon refused; holds its status and message.
            EngineUnavailableError: no daemon answers.
        """
        with self.stream(
            method,
            path,
            params=params,
            json=json,
            data=data,
            headers=headers,
            timeout=REQUEST_SECONDS if timeout is None else timeout,
        ) as answer:
            body = answer.read()
        if not body.strip():
            return None
        try:
            return json_module.loads(body)
        except ValueError:
            return body.decode("utf-8", "replace")

    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        data: Body = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        unframed: bool = False,
    ) -> Stream:
        """Send a request and return the answer before its body has come.

        Args:
            method: see `request`, like the next ones.
            path: the same.
            params: the same.
            json: the same.
            data: the same.
            headers: the same.
            timeout: seconds between two parts of the answer; for ever by default.
            unframed: have the body sent as it is, which is faster to read, but ends alike whether it is
                complete or the daemon has gone.

        Raises:
            EngineError: the daemon refused.
            EngineUnavailableError: no daemon answers.
        """
        target = f"/v{self.api_version}{path}" + _query(params)
        sent = dict(headers or {})
        if json is not None:
            data = json_module.dumps(json).encode()
            sent["Content-Type"] = "application/json"
        answer = self._open(method, target, sent, data, timeout, unframed)
        if answer.status < 400:
            return answer
        with answer:
            _raise_for_status(answer.status, answer.headers, answer.read())
        raise AssertionError(answer.status)

    def close(self) -> None:
        """Close the connections that are kept. May be called more than once."""
        self._transport.close()

    def _open(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        data: Body,
        timeout: float | None,
        unframed: bool = False,
    ) -> Stream:
        try:
            response = self._transport.open(method, target, headers, data, timeout, unframed)
        except (ConnectionLost, OSError) as error:
            raise _lost(self.endpoint, error) from error
        return Stream(response, self.endpoint)


class SocketTransport:
    """Carries requests over connections of our own, which are kept for the next ones.

    Args:
        endpoint: where the daemon is.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.is_local = endpoint.is_local
        self._idle: list[Connection] = []
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
    ) -> Response:
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
            witness = self._witness() if unframed and "content-length" not in answer else None
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
            if len(self._idle) < KEPT_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the connections that are kept."""
        with self._lock:
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


def _query(params: Mapping[str, Any] | None) -> str:
    pairs = {name: value for name, value in (params or {}).items() if value is not None}
    if not pairs:
        return ""
    return "?" + "&".join(f"{name}={_quote(_text(value))}" for name, value in pairs.items())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json_module.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _quote(text: str) -> str:
    """Percent-encode; as `urllib.parse.quote`, which takes long to import."""
    return "".join(
        char if char.isascii() and (char.isalnum() or char in "-._~/:,") else _percent(char) for char in text
    )


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def _raise_for_status(status: int, headers: Mapping[str, str], body: bytes) -> None:
    if status < 400:
        return
    text = body.decode("utf-8", "replace").strip()
    try:
        decoded = json_module.loads(text)
        text = str(decoded.get("message", text)) if isinstance(decoded, dict) else text
    except ValueError:
        pass
    raise EngineError(status, text or f"the Docker daemon answered with HTTP status {status}")


def _lost(endpoint: str, error: Exception) -> EngineUnavailableError:
    if isinstance(error, TimeoutError):
        return EngineUnavailableError(
            f"the Docker daemon at {endpoint} does not answer", hint="Does `docker version` work?"
        )
    return EngineUnavailableError(
        f"the Docker daemon at {endpoint} went away while it was answering: {error}",
        hint="It may be restarting. Try again; `docker version` tells whether it runs.",
    )
