"""Servers that stand in front of a real registry and do what networks and other people's proxies do."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple

from shunter.backoff import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Fault(NamedTuple):
    """What is answered in the registry's place."""

    status: int
    headers: dict[str, str] = {}
    body: bytes = b""
    #: Whether the request is passed to the registry all the same.
    late: bool = False


class Seen(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]


Rule = "Callable[[Seen, int], Fault | None]"


class HttpProxy:
    """Passes requests on, but for those that ``rule(request, how many came so far)`` has a fault for."""

    def __init__(self, port: int, rule: Callable[[Seen, int], Fault | None] = lambda *_: None) -> None:
        self.seen: list[Seen] = []
        self.rule = rule
        self.registry_port = port
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Seen(self.command, self.path, dict(self.headers))
                outer.seen.append(request)
                fault = outer.rule(request, len(outer.seen))
                if fault is None or fault.late:
                    status, headers, content = outer.passed(request, body)
                if fault is not None:
                    status, headers, content = fault.status, fault.headers, fault.body
                self.send_response(status)
                for key, value in headers.items():
                    if key.lower() not in ("date", "content-length", "transfer-encoding", "connection"):
                        self.send_header(key, value)
                length = headers.get("Content-Length") if self.command == "HEAD" else None
                if status != 204:
                    self.send_header("Content-Length", length or str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def passed(self, request: Seen, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Ask the registry."""
        connection = http.client.HTTPConnection("127.0.0.1", self.registry_port, timeout=30)
        with contextlib.closing(connection):
            connection.request(request.method, request.path, body, dict(request.headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()

    def of(self, method: str, part: str = "") -> list[Seen]:
        """Return the requests of a method whose path holds a text."""
        return [seen for seen in self.seen if seen.method == method and part in seen.path]

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def http_proxy(port: int, rule: Callable[[Seen, int], Fault | None] = lambda *_: None) -> Iterator[HttpProxy]:
    """Run a proxy."""
    proxy = HttpProxy(port, rule)
    try:
        yield proxy
    finally:
        proxy.close()


class CuttingProxy:
    """Passes bytes on, and breaks connections after the numbers of bytes in ``cuts``, each once.

    Args:
        port: of the registry.
        cuts: numbers of bytes.
        downwards: whether bytes from the registry are counted, rather than those to it.
    """

    def __init__(self, port: int, cuts: list[int], *, downwards: bool = False) -> None:
        self.cuts = list(cuts)
        self.broken = 0
        self._port = port
        self._downwards = downwards
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            for source, sink, counted in ((near, far, not self._downwards), (far, near, self._downwards)):
                thread = threading.Thread(target=self._copy, args=(source, sink, counted), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _copy(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                passed += len(block)
                if counted and self._is_over(passed):
                    break
                sink.sendall(block)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        # one who waits for room in a full buffer hears of the end only when there is some
        with contextlib.suppress(OSError):
            while source.recv(1 << 16):
                pass

    def _is_over(self, passed: int) -> bool:
        with self._lock:
            for cut in self.cuts:
                if passed > cut:
                    self.cuts.remove(cut)
                    self.broken += 1
                    return True
        return False

    def close(self) -> None:
        """End it, and everything that goes through it."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for sock in self._sockets:
            sock.close()


@contextlib.contextmanager
def cutting_proxy(port: int, cuts: list[int], *, downwards: bool = False) -> Iterator[CuttingProxy]:
    """Run a proxy that breaks connections."""
    proxy = CuttingProxy(port, cuts, downwards=downwards)
    try:
        yield proxy
    finally:
        proxy.close()


class FakeTime(Clock):
    """Time that passes only while somebody sleeps. ``on_sleep`` is what happens meanwhile."""

    def __init__(self, on_sleep: Callable[[], object] = lambda: None) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.on_sleep = on_sleep

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.slept.append(seconds)
        self.on_sleep()

    def monotonic(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.sleep(seconds)
        return event.is_set()

    def random(self) -> float:
        return 0.0
