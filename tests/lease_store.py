"""A store of S3's kind with conditional writes: of many requests that come at once one creates an object.

moto's server looks and then writes, without a lock, so that two of them could.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class LeaseStore(ThreadingHTTPServer):
    """The server.

    Attributes:
        location: a folder for leases.
        objects: content by path.
        conflicts: how many more writes are answered 409.
        ignores_conditions: whether it overwrites objects in spite of If-None-Match, as old stores do.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.location = f"s3://leases-{uuid.uuid4().hex[:8]}/team"
        self.objects: dict[str, bytes] = {}
        self.conflicts = 0
        self.ignores_conditions = False
        self.lock = threading.Lock()

    def environ(self) -> dict[str, str]:
        """Return the variables that lead AWS's clients here."""
        host, port = self.server_address[:2]
        return {
            "AWS_ENDPOINT_URL": f"http://{host!s}:{port}",
            "AWS_ACCESS_KEY_ID": "example",
            "AWS_SECRET_ACCESS_KEY": "example",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


class _Handler(BaseHTTPRequestHandler):
    server: LeaseStore
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_GET(self) -> None:
        if self._is_allowed():
            content = self.server.objects.get(urlsplit(self.path).path)
            self._refuse(404, "NoSuchKey") if content is None else self._answer(200, content)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_allowed():
            with self.server.lock:
                conflicts, self.server.conflicts = self.server.conflicts, max(0, self.server.conflicts - 1)
                path, objects = urlsplit(self.path).path, self.server.objects
                if conflicts:
                    self._refuse(409, "ConditionalRequestConflict")
                elif path in objects and not self.server.ignores_conditions:
                    self._refuse(412, "PreconditionFailed")
                else:
                    objects[path] = content
                    self._answer(200)

    def _is_allowed(self) -> bool:
        """Check a presigned URL as far as S3's time and headers go; other requests may do all."""
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        if "X-Amz-Date" not in query:
            return True
        signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        has_header = self.headers.get("If-None-Match") == "*"
        if time.time() >= signed + int(query["X-Amz-Expires"]):
            self._refuse(403, "AccessDenied", "Request has expired")
        elif has_header != ("if-none-match" in query["X-Amz-SignedHeaders"]):
            self._refuse(403, "SignatureDoesNotMatch")
        else:
            return True
        return False

    def _refuse(self, status: int, code: str, message: str = "") -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    def _answer(self, status: int, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def running_store(host: str = "127.0.0.1") -> Iterator[LeaseStore]:
    """Run a store on an address of this machine."""
    with LeaseStore(host) as store:
        thread = threading.Thread(target=store.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield store
        finally:
            store.shutdown()
            thread.join()
