"""Stands between a client and a server, and breaks connections on demand."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

#: What becomes of a request: it is passed on; it is dropped before or after the server has seen it; it waits.
PASS, DROP, LOSE_ANSWER, STALL = "pass", "drop", "lose answer", "stall"
#: Of requests with a body: method, path, headers.
Fault = Callable[[str, str, dict[str, str]], str]


class Proxy:
    """A running proxy.

    Attributes:
        url: where it listens.
        fault: decides of each request.
        stalled: is set while a request waits.
    """

    def __init__(self, target: str) -> None:
        self.fault: Fault = lambda method, path, headers: PASS
        self.stalled = threading.Event()
        self.released = threading.Event()
        self._target = urlsplit(target).netloc
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        headers = dict(request.headers.items())
        verdict = self.fault(request.command, request.path, headers)
        if verdict == STALL:
            self.stalled.set()
            self.released.wait(30)
            verdict = DROP
        if verdict == DROP:
            request.close_connection = True
            request.connection.close()
            return
        if headers.get("Expect", "").lower() == "100-continue":
            headers.pop("Expect")
        body = _body(request)
        upstream = http.client.HTTPConnection(self._target, timeout=30)
        headers.pop("Transfer-Encoding", None)
        headers["Content-Length"] = str(len(body))
        upstream.request(request.command, request.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if verdict == LOSE_ANSWER:
            request.close_connection = True
            request.connection.close()
            return
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "server", "date", "content-length"):
                request.send_header(name, value)
        length = answer.getheader("Content-Length") if request.command == "HEAD" else str(len(content))
        request.send_header("Content-Length", length or "0")
        request.end_headers()
        request.wfile.write(content)


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    parts = []
    while size := int(request.rfile.readline().split(b";")[0], 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    while request.rfile.readline().strip():
        pass
    return b"".join(parts)


@contextmanager
def between(target: str) -> Iterator[Proxy]:
    """Run a proxy in front of a server."""
    proxy = Proxy(target)
    thread = threading.Thread(target=proxy.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        proxy.server.shutdown()
        proxy.server.server_close()
        thread.join()
