"""The client of a Docker daemon: requests, answers that are read as they come, errors.

https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import json as json_module
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from shunter.docker.daemon_address import DaemonAddress, find_daemon
from shunter.docker.daemon_errors import (
    EngineError,
    EngineForbiddenError,
    EngineUnavailableError,
)
from shunter.http.connections import (
    BUFFER,
    Body,
    Connection,
    ConnectionLost,
    Pool,
    Response,
    connect_program,
    connect_tcp,
    connect_unix,
)
from shunter.http.tls import daemon_context

#: The newest API version that is used. Requests to older daemons use the daemon's version.
NEWEST_API = (1, 47)
OLDEST_API = (1, 40)
CONNECT_SECONDS = 30.0
#: How long the daemon may be silent before it counts as gone.
REQUEST_SECONDS = 120.0


class DaemonAnswer:
    """An answer that is read as it comes. A context manager.

    Raises:
        EngineUnavailableError: the daemon goes away before the answer is complete.
    """

    def __init__(self, response: Response | _AdoptedResponse, address: str) -> None:
        self._response = response
        self._address = address
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
        except OSError as error:
            raise _lost(self._address, error) from error

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
            EngineError: one of them reports a failure.
        """
        for line in self.lines():
            if not line.strip():
                continue
            item = json_module.loads(line)
            if "error" in item:
                detail = item.get("errorDetail") or {}
                raise EngineError(detail.get("code") or 500, str(detail.get("message") or item["error"]))
            yield item

    def close(self) -> None:
        """Give the connection back, or close it if the body was not read to its end."""
        self._response.close()


class Engine:
    """A client of one daemon. Safe for use by several threads. Made by `from_env` or `adopt`."""

    def __init__(
        self, connections: Pool | _AdoptedConnections, address: str, is_local: bool, environ: dict[str, str]
    ) -> None:
        self._connections = connections
        #: The daemon's address, for messages.
        self.endpoint = address
        #: Whether the daemon runs on this machine, so that it sees the same files.
        self.is_local = is_local
        self._environ = environ
        self._version = ""
        self._lock = threading.Lock()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Engine:
        """Return a client of the daemon that the ``docker`` command would use. Contacts nothing yet.

        Raises:
            ConfigError: the environment does not name a daemon.
        """
        address = find_daemon(environ)
        # an address with certificates needs the caller's variables
        variables = {} if address.tls else {"DOCKER_HOST": str(address)}
        return cls(Pool(lambda: _connect(address), "docker"), str(address), address.is_local, variables)

    @classmethod
    def adopt(cls, docker_client: Any) -> Engine:
        """Return a client that sends requests through a `docker.DockerClient` (or its ``api``)."""
        api = getattr(docker_client, "api", docker_client)
        path = getattr(getattr(api, "_custom_adapter", None), "socket_path", None)
        variables = {}
        if path or api.base_url.startswith("http://"):
            variables = {"DOCKER_HOST": f"unix://{path}" if path else api.base_url}
        is_local = not api.base_url.startswith(("http://", "https://", "ssh://"))
        return cls(_AdoptedConnections(api), api.base_url, is_local, variables)

    def environ(self) -> dict[str, str]:
        """Return the variables by which another process finds the same daemon."""
        return dict(self._environ)

    @property
    def api_version(self) -> str:
        """The version of the API that both sides know."""
        with self._lock:
            if not self._version:
                with self._open("GET", "/_ping", {}, None, REQUEST_SECONDS) as answer:
                    offered = answer.headers.get("api-version", "")
                    answer.read()
                    _raise_for_status(answer.status, b"")
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
            params: query; dicts and lists are sent as JSON, as ``filters`` requires, None is left out.
            json: body, sent as JSON.
            data: body as bytes, a file, or an iterable of bytes.
            headers: more headers.
            timeout: seconds that the daemon may be silent; 120 by default.

        Raises:
            EngineError: the daemon refused; holds its status and message.
            EngineUnavailableError: no daemon answers.
        """
        timeout = REQUEST_SECONDS if timeout is None else timeout
        with self.stream(
            method, path, params=params, json=json, data=data, headers=headers, timeout=timeout
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
    ) -> DaemonAnswer:
        """Send a request and return the answer before its body has come.

        The arguments are those of `request`, but for:

        Args:
            timeout: seconds between two parts of the answer; no limit by default.

        Raises:
            EngineError: the daemon refused.
            EngineUnavailableError: no daemon answers.
        """
        target = f"/v{self.api_version}{path}" + _query(params)
        sent = dict(headers or {})
        if json is not None:
            data = json_module.dumps(json).encode()
            sent["Content-Type"] = "application/json"
        answer = self._open(method, target, sent, data, timeout)
        if answer.status >= 400:
            with answer:
                _raise_for_status(answer.status, answer.read())
        return answer

    def close(self) -> None:
        """Close the connections that are kept. May be called more than once."""
        self._connections.close()

    def _open(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        data: Body,
        timeout: float | None,
    ) -> DaemonAnswer:
        try:
            response = self._connections.request(method, target, headers, data, timeout)
        except OSError as error:
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
    return quote(text, safe="/:,")


def _raise_for_status(status: int, body: bytes) -> None:
    if status < 400:
        return
    text = body.decode("utf-8", "replace").strip()
    try:
        decoded = json_module.loads(text)
        text = str(decoded.get("message", text)) if isinstance(decoded, dict) else text
    except ValueError:
        pass
    raise EngineError(status, text or f"the Docker daemon answered with HTTP status {status}")


def _connect(address: DaemonAddress) -> Connection:
    try:
        if address.scheme == "unix":
            return connect_unix(address.address, CONNECT_SECONDS)
        if address.scheme == "ssh":
            target = f"{address.user}@{address.address}" if address.user else address.address
            port = ["-p", str(address.port)] if address.port else []
            words = ["ssh", "-o", f"ConnectTimeout={CONNECT_SECONDS:.0f}", "-T", *port, "--", target]
            return connect_program([*words, "docker", "system", "dial-stdio"])
        connection = connect_tcp(address.address, address.port, CONNECT_SECONDS)
        if address.tls is not None:
            try:
                context = daemon_context(address.tls.directory, verify=address.tls.verify)
            except BaseException:
                connection.close()
                raise
            connection.secure(context, address.address)
    except OSError as error:
        raise _no_daemon(address, error) from error
    return connection


def _no_daemon(address: DaemonAddress, error: OSError) -> EngineUnavailableError:
    """Say that no daemon answers, and what to do."""
    where = f"cannot reach a Docker daemon at {address}"
    why = str(error.strerror or error)
    if address.scheme == "ssh":
        return EngineUnavailableError(f"{where}: {why}", hint="Install ssh, which is needed to reach it.")
    if isinstance(error, PermissionError):
        return EngineForbiddenError(
            f"{where}: this user may not use its socket",
            hint="Add the user to the socket's group and log in again: sudo usermod -aG docker $USER",
        )
    if isinstance(error, FileNotFoundError):
        why = "there is no such socket"
    if isinstance(error, ConnectionRefusedError):
        why = "nothing listens there"
    return EngineUnavailableError(
        f"{where}: {why}",
        hint="Is the daemon running? Start it: sudo systemctl start docker."
        " If it listens elsewhere, name it in DOCKER_HOST or DOCKER_CONTEXT.",
    )


def _lost(address: str, error: Exception) -> EngineUnavailableError:
    if isinstance(error, TimeoutError):
        return EngineUnavailableError(
            f"the Docker daemon at {address} does not answer", hint="Does `docker version` work?"
        )
    return EngineUnavailableError(
        f"the Docker daemon at {address} went away while it was answering: {error}",
        hint="It may be restarting. Try again; `docker version` shows whether it runs.",
    )


class _AdoptedConnections:
    """Requests through the ``api`` of a `docker.DockerClient` that the caller made; that stays open.

    A `requests.Session` with a ``base_url``. The package ``docker`` is never imported here.
    """

    def __init__(self, api: Any) -> None:
        self._api = api

    def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        data: Any,
        timeout: float | None,
    ) -> _AdoptedResponse:
        import requests

        url, sent = f"{self._api.base_url}{target}", dict(headers)
        try:
            answer = self._api.request(method, url, headers=sent, data=data, timeout=timeout, stream=True)
        except requests.exceptions.Timeout as error:
            raise TimeoutError(str(error)) from error
        except requests.exceptions.RequestException as error:
            raise EngineUnavailableError(
                f"cannot reach a Docker daemon at {self._api.base_url}: {error}",
                hint="Is the daemon running? Does the given Docker client still work?",
            ) from error
        return _AdoptedResponse(answer)

    def close(self) -> None:
        pass


class _AdoptedResponse:
    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._parts: Iterator[bytes] = response.raw.stream(BUFFER, decode_content=False)
        self._pending = b""

    def read1(self, limit: int = BUFFER) -> bytes:
        import urllib3

        while not self._pending:
            try:
                part = next(self._parts, None)
            except urllib3.exceptions.ReadTimeoutError as error:
                raise TimeoutError(str(error)) from error
            except urllib3.exceptions.HTTPError as error:
                raise ConnectionLost(str(error)) from error
            if part is None:
                return b""
            self._pending = part
        data, self._pending = self._pending[:limit], self._pending[limit:]
        return data

    def close(self) -> None:
        self._response.close()
