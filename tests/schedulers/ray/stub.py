"""A stub of Ray's dashboard for faults that a real one does not have when a test wants them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]


class StubDashboard:
    """Answers requests by the functions in ``routes``: (method, beginning of the path) -> answer.

    An answer is a status and JSON, text or bytes.
    """

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Callable[[str, bytes], Answer]] = {}
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, method: str, path: str, *answers: Answer) -> None:
        """Answer requests one after the other; the last answer is repeated."""
        left = list(answers)
        self.routes[method, path] = lambda *_: left.pop(0) if len(left) > 1 else left[0]

    def serve(self) -> None:
        options = {"poll_interval": 0.01}
        threading.Thread(target=self._server.serve_forever, kwargs=options, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def find(self, method: str, path: str, body: bytes) -> Answer:
        self.requests.append((method, path))
        for (wanted, beginning), function in sorted(self.routes.items(), key=lambda item: -len(item[0][1])):
            if method == wanted and path.startswith(beginning):
                return function(path, body)
        return 404, f"{path} does not exist"


def _handler_for(stub: StubDashboard) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            stub.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, content = stub.find(self.command, self.path, body)
            if status == 0:  # hang up
                self.close_connection = True
                return
            data = json.dumps(content).encode() if isinstance(content, (dict, list)) else content
            if isinstance(data, str):
                data = data.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _respond

    return Handler


@contextmanager
def stub_dashboard() -> Iterator[StubDashboard]:
    """Run a stub for a test."""
    stub = StubDashboard()
    stub.answer("GET", "/api/version", (200, {"version": "4", "ray_version": "2.60.0"}))
    stub.serve()
    try:
        yield stub
    finally:
        stub.stop()
