"""A web server for jobs, and what tests of `shunter forward` ask it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from urllib.request import urlopen

#: It answers a POST when it has seen the end of what is sent: the client closes one direction.
PROGRAM = """\
import http.server

class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(self.path.encode() * 100_000)

    def do_POST(self):
        self.reply(self.rfile.read())

    def reply(self, data):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
print("port %d" % server.server_port, flush=True)
server.serve_forever()
"""


class Forwarding:
    """A running ``shunter forward``. A context manager that ends it."""

    def __init__(self, target: str, port: int, environ: Mapping[str, str]) -> None:
        words = [sys.executable, "-m", "shunter", "forward", target, f"{port}:0"]
        self.process = subprocess.Popen(
            words, env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.match(r"http://127\.0\.0\.1:(\d+) is port", line := self.process.stdout.readline())
        if found is None:
            raise AssertionError(line + self.process.communicate()[1])
        self.port = int(found[1])

    def __enter__(self) -> Forwarding:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()

    def get(self, path: str) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=100) as answer:
            data: bytes = answer.read()
        return data

    def post(self, data: bytes) -> bytes:
        """Send a request, then the end of the stream; return the body of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=100) as connection:
            connection.sendall(b"POST / HTTP/1.0\r\n\r\n" + data)
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as answer:
                return answer.read().partition(b"\r\n\r\n")[2]

    def check(self) -> None:
        """Use it: large answers, several connections at once, a direction that is closed."""
        answers: dict[str, bytes] = {}
        paths = ["/a", "/b", "/c"]
        threads = [
            threading.Thread(target=lambda path=path: answers.update({path: self.get(path)}))
            for path in paths
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == {path: path.encode() * 100_000 for path in paths}
        data = bytes(range(256)) * 2000
        assert self.post(data) == data

    def end(self, signum: int) -> str:
        """Send it a signal and return what it wrote to stderr in the end."""
        self.process.send_signal(signum)
        return self.said()

    def said(self) -> str:
        """Return what it wrote to stderr, when it has ended."""
        return self.process.communicate(timeout=100)[1]
