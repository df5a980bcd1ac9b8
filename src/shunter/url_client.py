"""Requests to URLs of any server, by urllib3: kept connections, proxies of the environment, certificates.

urllib3 takes 80 ms to import, so it is imported with the first request.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from shunter.errors import ConfigError

if TYPE_CHECKING:
    import urllib3
    from urllib3.connection import HTTPConnection
    from urllib3.connectionpool import HTTPConnectionPool

CONNECT_SECONDS = 15.0
#: Seconds for which the other side may be silent.
SILENCE = 60.0
BUFFER = 256 << 10
KEPT_CONNECTIONS = 8


class BadUrlError(ValueError):
    """This is not a URL of http or https."""


class ConnectionLost(ConnectionError):
    """The other side closed the connection before an answer was complete."""


class NotHttpError(ConnectionLost):
    """What the other side sent is not HTTP."""


class Origin(NamedTuple):
    """Where a URL leads: secrets for one origin are not for another."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Origin:
        """Read a URL.

        Raises:
            BadUrlError: it is not a URL of http or https.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise BadUrlError(url) from None
        has_blanks = any(char <= " " or char == "\x7f" for char in url)
        if parts.scheme not in ("http", "https") or not host or has_blanks:
            raise BadUrlError(url)
        return cls(parts.scheme, host, port or (443 if parts.scheme == "https" else 80))


class Response:
    """An answer whose body is still to be read. A context manager.

    Attributes:
        status: the status.
        headers: the headers, names in lower case, repeated ones joined by commas.
        length: bytes of the body; None where they are not known.
        url: where it came from.
    """

    def __init__(self, raw: urllib3.BaseHTTPResponse, url: str) -> None:
        self._raw: Any = raw
        self.status = raw.status
        self.headers = {name.lower(): value for name, value in self._raw.headers.itermerged()}
        self.length: int | None = self._raw.length_remaining
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read1(self, limit: int = BUFFER) -> bytes:
        """Return some of the body, at least a byte; b"" at its end.

        Raises:
            OSError: the connection broke, or was silent for too long.
        """
        from urllib3 import exceptions

        try:
            data: bytes = self._raw.read1(limit, decode_content=False)
        except exceptions.HTTPError as error:
            raise _as_os_error(error) from error
        if not data:
            self._raw.release_conn()
        return data

    def close(self) -> None:
        """Close the connection, unless the body was read to its end and the connection is kept."""
        if self._raw.length_remaining == 0:
            self._raw.release_conn()
        self._raw.close()


class UrlClient:
    """Sends requests. Safe for use by several threads.

    Args:
        environ: variables ``https_proxy``, ``http_proxy``, ``no_proxy``; those of the process by default.
        context: gives the certificates that count for an origin of https; by default those of the system.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        context: Callable[[Origin], ssl.SSLContext] | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._context = context or (lambda origin: ssl.create_default_context())
        self._managers: dict[Origin, urllib3.PoolManager] = {}
        self._lock = threading.Lock()
        self._connections: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None = None,
        timeout: float | None = None,
    ) -> Response:
        """Send one request, following no redirect. The caller closes the answer.

        Args:
            method: GET, POST, ....
            url: where to.
            headers: headers. A body that is no bytes is sent in chunks, unless they have Content-Length.
            body: what is sent.
            timeout: seconds for which the other side may be silent; 60 by default.

        Raises:
            BadUrlError: this is not a URL of http or https.
            ConfigError: a proxy or a certificate cannot be used.
            OSError: there was no answer.
        """
        import urllib3
        from urllib3 import exceptions

        manager = self._manager(Origin.of(url))
        try:
            raw = manager.request(
                method,
                url,
                body=body,
                headers={"Accept-Encoding": "identity", **headers},
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=timeout or SILENCE),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        except exceptions.LocationParseError:
            raise BadUrlError(url) from None
        except exceptions.HTTPError as error:
            raise _as_os_error(error) from error
        return Response(raw, url)

    def abort(self) -> None:
        """Break the connections that are in use, so that threads that wait for them fail."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if connection.sock is not None:
                try:
                    connection.sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.close()

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            managers, self._managers = list(self._managers.values()), {}
        for manager in managers:
            manager.clear()

    def _manager(self, origin: Origin) -> urllib3.PoolManager:
        import urllib3

        with self._lock:
            if origin not in self._managers:
                proxy = proxy_for(origin.scheme, origin.host, origin.port, self._environ)
                options: dict[str, Any] = {"num_pools": 1, "maxsize": KEPT_CONNECTIONS}
                if origin.scheme == "https":
                    options["ssl_context"] = self._context(origin)
                if proxy is None:
                    manager = urllib3.PoolManager(**options)
                else:
                    manager = urllib3.ProxyManager(proxy.url, proxy_headers=proxy.headers, **options)
                manager.pool_classes_by_scheme = self._pools()
                self._managers[origin] = manager
            return self._managers[origin]

    def _pools(self) -> dict[str, type[HTTPConnectionPool]]:
        """Return pools that note their connections, so that `abort` finds those that are in use."""
        from urllib3.connection import HTTPConnection, HTTPSConnection
        from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

        def note(connection: HTTPConnection) -> None:
            with self._lock:
                self._connections.add(connection)

        class NotedConnection(HTTPConnection):
            def connect(self) -> None:
                note(self)
                super().connect()
                self.sock.settimeout(SILENCE)  # urllib3 would send with the time for connecting

        class NotedSecureConnection(HTTPSConnection):
            def connect(self) -> None:
                note(self)
                super().connect()
                self.sock.settimeout(SILENCE)

        class Pool(HTTPConnectionPool):
            ConnectionCls = NotedConnection

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = NotedSecureConnection

        return {"http": Pool, "https": SecurePool}


def _as_os_error(error: Exception) -> OSError:
    """Return the error of the connection that one of urllib3 stands for."""
    from urllib3 import exceptions

    reasons = [*error.args, getattr(error, "original_error", None), error.__cause__, error.__context__]
    for reason in reasons:
        if isinstance(reason, http.client.RemoteDisconnected):
            return ConnectionLost("the connection was closed")
        if isinstance(reason, http.client.BadStatusLine | http.client.LineTooLong):
            return NotHttpError("the answer is not HTTP")
        if isinstance(reason, OSError) and not isinstance(reason, exceptions.HTTPError):
            return reason
    if isinstance(error, exceptions.TimeoutError):
        return TimeoutError(str(error))
    return ConnectionLost("the connection was closed" if "Incomplete" in str(error) else str(error))


class Proxy(NamedTuple):
    """A proxy, and the headers that it requires."""

    url: str
    headers: dict[str, str]


def proxy_for(scheme: str, host: str, port: int, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for a host; None for a direct connection, which loopback always has.

    Raises:
        ConfigError: the variable is not the URL of a proxy.
    """
    if is_loopback_host(host):
        return None
    name = f"{scheme}_proxy"
    names = (name, name.upper(), "all_proxy", "ALL_PROXY")
    url = next((environ[key] for key in names if environ.get(key)), "")
    no_proxy = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if not url or _is_direct(host, port, no_proxy):
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        proxy_host, proxy_port = parts.hostname, parts.port
    except ValueError:
        proxy_host, proxy_port, parts = None, None, urlsplit("")
    if not proxy_host or parts.scheme != "http":
        raise ConfigError(
            f"the proxy for {scheme} in the environment ({name}) cannot be used: only http:// proxies can",
            hint=f"Example: {name}=http://proxy.example.com:3128, or name the host in no_proxy.",
        )
    place = f"[{proxy_host}]" if ":" in proxy_host else proxy_host
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    headers = {}
    if login:
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return Proxy(f"http://{place}:{proxy_port or 80}", headers)


def is_loopback_host(host: str) -> bool:
    """Tell whether a host is this machine: localhost, 127.0.0.0/8 or ::1."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_direct(host: str, port: int, no_proxy: str) -> bool:
    """Tell whether ``no_proxy`` names a host: itself, a domain of it, its network, with or without port."""
    for entry in no_proxy.replace(",", " ").lower().split():
        name = entry.removesuffix(f":{port}").lstrip(".")
        if entry == "*" or host == name or host.endswith(f".{name}"):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(name.strip("[]"), strict=False):
                return True
        except ValueError:
            continue
    return False
