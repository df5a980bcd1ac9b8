"""Requests to URLs of any server: a pool of connections for each, proxies of the environment, TLS."""

from __future__ import annotations

import base64
import ipaddress
import os
import ssl
import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from shunter.errors import ConfigError
from shunter.http.connections import Connection, ConnectionLost, Pool, Response, connect_tcp
from shunter.http.tls import registry_context

CONNECT_SECONDS = 15.0
#: Seconds for which the other side may be silent.
SILENCE = 60.0


class BadUrlError(ValueError):
    """This is not a URL of http or https."""


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

    @property
    def authority(self) -> str:
        """Host and port, the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_usual = self.port == (443 if self.scheme == "https" else 80)
        return host if is_usual else f"{host}:{self.port}"


class UrlClient:
    """Sends requests. Safe for use by several threads.

    Args:
        environ: variables ``https_proxy``, ``http_proxy``, ``no_proxy``, ``SSL_CERT_FILE``, ``SSL_CERT_DIR``;
            those of the process by default.
        certs_dirs: directories with a folder of certificates for each ``host[:port]``.
        context: which certificates count, in place of those of the system and of ``certs_dirs``.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        certs_dirs: Iterable[str] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._certs_dirs = certs_dirs
        self._context = context
        self._pools: dict[Origin, Pool] = {}
        self._proxies: dict[Origin, Proxy | None] = {}
        self._lock = threading.Lock()

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None = None,
        timeout: float | None = None,
    ) -> Response:
        """Send one request, following no redirect. The caller closes the answer.

        Raises:
            BadUrlError: this is not a URL of http or https.
            ConfigError: a proxy or a certificate cannot be used.
            OSError: there was no answer.
        """
        pool, target, sent = self._addressed(url, {"Accept-Encoding": "identity", **headers})
        response = pool.request(method, target, sent, body, SILENCE if timeout is None else timeout)
        response.url = url
        return response

    def abort(self) -> None:
        """Break the connections that are in use, so that threads that wait for them fail."""
        for pool in list(self._pools.values()):
            pool.abort()
        self.close()

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.close()

    def _pool(self, origin: Origin) -> tuple[Pool, Proxy | None]:
        with self._lock:
            if origin not in self._proxies:
                self._proxies[origin] = proxy_for(origin.scheme, origin.host, origin.port, self._environ)
            proxy = self._proxies[origin]
            if origin not in self._pools:
                context = self._context_for(origin)

                def connect() -> Connection:
                    way = proxy or origin
                    connection = connect_tcp(way.host, way.port, CONNECT_SECONDS)
                    if context is not None:
                        if proxy is not None:
                            _tunnel(connection, origin, proxy)
                        connection.secure(context, origin.host)
                    return connection

                self._pools[origin] = Pool(connect, origin.authority)
            return self._pools[origin], proxy

    def _context_for(self, origin: Origin) -> ssl.SSLContext | None:
        if origin.scheme != "https":
            return None
        if self._context is not None:
            return self._context
        return registry_context(origin.host, origin.port, self._environ, self._certs_dirs)

    def upgrade(
        self, url: str, headers: Mapping[str, str], timeout: float
    ) -> tuple[int, dict[str, str], Connection]:
        """Ask for another protocol than HTTP; see `Pool.upgrade`.

        Raises:
            BadUrlError: this is not a URL of http or https.
            ConfigError: a proxy or a certificate cannot be used.
            OSError: there was no answer.
        """
        pool, target, sent = self._addressed(url, headers)
        return pool.upgrade("GET", target, sent, b"", timeout)

    def _addressed(self, url: str, headers: Mapping[str, str]) -> tuple[Pool, str, Mapping[str, str]]:
        """Return the pool for a URL, and target and headers of the request, which a proxy may change."""
        pool, proxy = self._pool(Origin.of(url))
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if proxy is None or parts.scheme == "https":
            return pool, target, headers
        host = parts.netloc.rpartition("@")[2]
        return pool, f"http://{host}{target}", {"Host": host, **headers, **proxy.headers}


def _tunnel(connection: Connection, origin: Origin, proxy: Proxy) -> None:
    """Have a proxy pass everything on to a server."""
    place = f"[{origin.host}]:{origin.port}" if ":" in origin.host else f"{origin.host}:{origin.port}"
    try:
        connection.send("CONNECT", place, {"Host": place, **proxy.headers})
        status, _ = connection.read_head()
        if status != 200:
            raise ConnectionLost(f"the proxy {proxy.host}:{proxy.port} refused the connection ({status})")
    except BaseException:
        connection.close()
        raise


class Proxy(NamedTuple):
    """A proxy, and the headers that it requires."""

    host: str
    port: int
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
    headers = {}
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return Proxy(proxy_host, proxy_port or 80, headers)


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
