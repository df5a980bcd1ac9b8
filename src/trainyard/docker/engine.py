"""The Docker Engine's API: requests, streams, errors.

https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import json as json_module
import threading

from trainyard.docker.daemon_address import find_daemon
from trainyard.docker.errors import EngineError, EngineUnavailableError, NoSubnetLeftError
from trainyard.docker.sockets import REQUEST_SECONDS, SocketTransport
from trainyard.docker.transport import BUFFER, ConnectionLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import IO, Any, Protocol

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


__all__ = ["DaemonAnswer", "Engine", "EngineError", "EngineUnavailableError", "NoSubnetLeftError"]

#: The newest version of the API that we were written for. Older daemons are spoken to in theirs.
NEWEST_API = (1, 47)
OLDEST_API = (1, 40)


class DaemonAnswer:
    """An answer that is read as it comes. A context manager.

    Raises:
        EngineUnavailableError: the daemon goes away before the answer is complete.
    """

    def __init__(self, response: Response, endpoint: str) -> None:
        self._response = response
        self._endpoint = endpoint
        self.status = response.status
        self.headers = response.headers

    def __enter__(self) -> DaemonAnswer:
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
        return cls(SocketTransport(find_daemon(environ)))

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
    ) -> DaemonAnswer:
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
    ) -> DaemonAnswer:
        try:
            response = self._transport.open(method, target, headers, data, timeout, unframed)
        except (ConnectionLost, OSError) as error:
            raise _lost(self.endpoint, error) from error
        return DaemonAnswer(response, self.endpoint)


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
