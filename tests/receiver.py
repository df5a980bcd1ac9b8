"""A receiver of notifications on this machine's loopback network."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE = 120


class Receiver:
    """Keeps what it receives.

    Attributes:
        url: where it listens.
        received: headers (by small letters) and body of each request, in order.
        answers: the statuses of the next answers; 204 when none is left.
        headers: of all answers.
    """

    def __init__(self) -> None:
        self.url = ""
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.headers: dict[str, str] = {}
        self.condition = threading.Condition()

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Keep a request; returns the status to answer with."""
        with self.condition:
            self.received.append((headers, body))
            self.condition.notify_all()
            return self.answers.pop(0) if self.answers else 204

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Wait for this many requests; returns their bodies."""
        with self.condition:
            assert self.condition.wait_for(lambda: len(self.received) >= count, PATIENCE), self.received
            return [json.loads(body) for _, body in self.received]


@contextmanager
def receiving(host: str = "127.0.0.1") -> Iterator[Receiver]:
    """Run a receiver."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(receiver.take(headers, body))
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    receiver.url = f"http://{host}:{server.server_address[1]}/ended"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
