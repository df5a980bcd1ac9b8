"""HTTP as registries need it: connections that are kept, proxies, TLS, bodies that are streams.

`http.client` rather than `urllib.request`: a push is many small requests, for which a new connection each is
slow, and the answer of a registry that refuses in the middle of a body must not get lost.
"""

from __future__ import annotations

import http.client
import os
import select
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from trainyard.image_registry.proxies import proxy_for
from trainyard.image_registry.registry_errors import RegistryError
from trainyard.image_registry.tls import tls_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping

    from trainyard.image_registry.proxies import Proxy

CONNECT_TIMEOUT = 15.0
#: Seconds for which the other side may be silent.
SILENCE = 60.0
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS = 5
BLOCK = 1 << 18
#: Seconds for what a server says before it hangs up; it has been sent by then.
EARLY_TIMEOUT = 5.0
#: What a small answer may have; manifests and configurations are far below.
LONGEST_DOCUMENT = 16 << 20

#: What a broken connection looks like. Errors of TLS are OSErrors too.
BROKEN = (OSError, http.client.HTTPException)


class Origin(NamedTuple):
    """Where a URL leads: secrets for one origin are not for another."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Origin:
        """Read a URL.

        Raises:
            RegistryError: it is no URL of http or https.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not host:
            raise RegistryError(f"a registry sent us to {url!r}, which is no URL of http or https")
        return cls(parts.scheme, host, port or (443 if parts.scheme == "https" else 80))


class Answer:
    """An answer whose body is not read yet. `close` ends it, and keeps the connection if that can be."""

    def __init__(self, response: http.client.HTTPResponse, url: str, release: Callable[[bool], None]) -> None:
        self.status = response.status
        self.headers = response.headers
        self.url = url
        #: Whether there is no body by nature, whatever Content-Length says.
        self.bodiless = response.length == 0
        self._response = response
        self._release: Callable[[bool], None] | None = release

    @property
    def length(self) -> int | None:
        """Length of the body in bytes; None if it is not known beforehand."""
        text = self.headers.get("Content-Length", "")
        return (
            int(text)
            if text.isdigit() and "chunked" not in self.headers.get("Transfer-Encoding", "")
            else None
        )

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes of the body, b"" at its end."""
        return self._response.read(size)

    def document(self) -> bytes:
        """Return the whole body, and close.

        Raises:
            RegistryError: it is longer than any document.
            OSError, HTTPException: the connection broke.
        """
        with self:
            body = self._response.read(LONGEST_DOCUMENT + 1)
            if len(body) > LONGEST_DOCUMENT:
                place = self.url.partition("?")[0]  # what follows may be a signature
                raise RegistryError(f"{place} sent a document of more than {LONGEST_DOCUMENT >> 20} MiB")
            if self.length is not None and len(body) < self.length and not self.bodiless:
                raise http.client.IncompleteRead(body, self.length - len(body))
            return body

    def close(self) -> None:
        """Give the connection back, or end it if something of the body is still to come."""
        release, self._release = self._release, None
        if release is not None:
            if self._response.length == 0 and not self._response.isclosed():
                self._response.read()  # there is nothing to read; http.client wants to be told
            reusable = self._response.isclosed() and not self._response.will_close
            self._response.close()
            release(reusable)

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport:
    """Sends requests. May be used by several threads.

    Args:
        environ: variables ``https_proxy``, ``http_proxy``, ``no_proxy``, ``SSL_CERT_FILE``, ``SSL_CERT_DIR``.
        certs_dirs: directories with a folder of certificates for each ``host[:port]``.
    """

    def __init__(
        self, environ: Mapping[str, str] | None = None, certs_dirs: Iterable[str] | None = None
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._certs_dirs = certs_dirs
        self._idle: dict[Origin, list[http.client.HTTPConnection]] = {}
        self._busy: set[http.client.HTTPConnection] = set()
        self._contexts: dict[Origin, ssl.SSLContext] = {}
        self._lock = threading.Lock()

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Send one request, following no redirect. The caller closes the answer.

        Raises:
            OSError, HTTPException: there was no answer.
        """
        origin = Origin.of(url)
        connection, target, extra = self._connection(origin, url)
        try:
            if connection.sock is None:
                connection.timeout = CONNECT_TIMEOUT
                connection.connect()
            connection.sock.settimeout(SILENCE if timeout is None else timeout)
            try:
                connection.request(method, target, body, {**headers, **extra})
            except (BrokenPipeError, ConnectionResetError):
                # a server that refuses the body answers, and hangs up on us
                response = _early_answer(connection)
            else:
                response = connection.getresponse()
        except BaseException:
            self._release(origin, connection, reusable=False)
            raise
        return Answer(response, url, lambda reusable: self._release(origin, connection, reusable=reusable))

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            idle = [connection for kept in self._idle.values() for connection in kept]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def abort(self) -> None:
        """Break the connections that are in use, so that threads that wait for them go on to fail."""
        with self._lock:
            busy = list(self._busy)
        for connection in busy:
            sock = connection.sock
            if sock is not None:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.close()

    def _connection(self, origin: Origin, url: str) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
        """Return a connection, the request's target, and headers that the way there needs."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        proxy = proxy_for(origin.scheme, origin.host, origin.port, self._environ)
        extra: dict[str, str] = {}
        if proxy is not None and origin.scheme == "http":
            target, extra = url, proxy.headers
        connection = self._kept(origin) or self._made(origin, proxy)
        with self._lock:
            self._busy.add(connection)
        return connection, target, extra

    def _kept(self, origin: Origin) -> http.client.HTTPConnection | None:
        with self._lock:
            kept = self._idle.get(origin, [])
            while kept:
                connection = kept.pop()
                if _is_alive(connection):
                    return connection
                connection.close()
        return None

    def _made(self, origin: Origin, proxy: Proxy | None) -> http.client.HTTPConnection:
        host, port = (origin.host, origin.port) if proxy is None else (proxy.host, proxy.port)
        if origin.scheme == "http":
            return http.client.HTTPConnection(host, port, blocksize=BLOCK)
        connection = http.client.HTTPSConnection(host, port, context=self._context(origin), blocksize=BLOCK)
        if proxy is not None:
            connection.set_tunnel(origin.host, origin.port, headers=proxy.headers)
        return connection

    def _context(self, origin: Origin) -> ssl.SSLContext:
        with self._lock:
            if origin not in self._contexts:
                self._contexts[origin] = tls_context(
                    origin.host, origin.port, self._environ, self._certs_dirs
                )
            return self._contexts[origin]

    def _release(self, origin: Origin, connection: http.client.HTTPConnection, *, reusable: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if reusable and connection.sock is not None:
                self._idle.setdefault(origin, []).append(connection)
                return
        connection.close()


def _is_alive(connection: http.client.HTTPConnection) -> bool:
    """Tell whether the other end still holds an idle connection: one that can be read has been closed."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _early_answer(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    """Read what a server said before it hung up."""
    response = http.client.HTTPResponse(connection.sock)
    try:
        connection.sock.settimeout(EARLY_TIMEOUT)
        response.begin()
    except BROKEN as error:
        response.close()
        raise ConnectionResetError("the connection was closed while a body was being sent") from error
    response.will_close = True
    return response
