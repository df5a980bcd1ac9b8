"""The HTTP server of the fake."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.aws.fake import wire
from tests.aws.fake.batch import Batch
from tests.aws.fake.batch_api import BatchApi
from tests.aws.fake.faults import BREAKS, Faults, error_of
from tests.aws.fake.identity import Identity
from tests.aws.fake.logs import Logs
from tests.aws.fake.service_jobs import ServiceJobs
from tests.aws.fake.sessions import Sessions
from tests.aws.fake.wire import ApiError, WrongAnswerError

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Call:
    """A request that came in."""

    operation: str
    params: dict[str, Any]
    service: str


class FakeAws:
    """AWS as far as the launcher uses it, on a free port of this machine.

    Args:
        now: gives the time, seconds since the epoch; the real one by default.
        port: where to listen; 0 for a free port.

    Attributes:
        url: what clients are pointed to, as by ``AWS_ENDPOINT_URL``.
        batch, services, logs, identity: the services' state, which tests look at and change.
        faults: what goes wrong, see `Faults.add`.
        calls: every request so far.
        defects: answers that botocore's model does not allow, and crashes: a test must find none.
    """

    def __init__(self, now: Callable[[], float] = time.time, port: int = 0) -> None:
        self.now = now
        self.logs = Logs(now)
        self.batch = Batch(self.logs, now)
        self.services = ServiceJobs(now)
        self.identity = Identity()
        self.faults = Faults()
        self.calls: list[Call] = []
        self.defects: list[str] = []
        sessions = Sessions()
        self._apis: dict[str, Any] = {
            "batch": BatchApi(self.batch, self.services),
            "logs": self.logs,
            "sts": self.identity,
            "iam": self.identity,
            "ecs": sessions,
            "ssm": sessions,
        }
        self._last: dict[str, Answer] = {}
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.fake = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="fake-aws", daemon=True
        )

    def __enter__(self) -> FakeAws:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and end all jobs."""
        self.batch.close()
        self._server.shutdown()
        self.break_connections()
        self._server.server_close()
        self._thread.join(10)

    def break_connections(self) -> None:
        """Break all connections that are open."""
        self._server.close_connections()

    def environ(self) -> dict[str, str]:
        """Return the variables that point any client of AWS to this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "example",
            "AWS_DEFAULT_REGION": wire.REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def count(self, operation: str) -> int:
        """Return how many requests for an operation came in."""
        return sum(call.operation == operation for call in self.calls)

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> Answer | str:
        """Return the answer to a request, or how the connection breaks."""
        service = "batch"
        operation = ""
        try:
            service = wire.service_of(headers)
            operation, params = wire.parse_request(service, method, path, headers, body)
            self.calls.append(Call(operation, params, service))
            fault = self.faults.next(operation, params)
            return self._carry_out(service, operation, params, fault)
        except ApiError as error:
            return wire.render_error(service, error)
        except Exception as error:
            self.defects.append(f"{operation or path}: {type(error).__name__}: {error}")
            if not isinstance(error, WrongAnswerError):
                raise
            return wire.render_error(service, ApiError("FakeDefect", str(error), 501))

    def _carry_out(self, service: str, operation: str, params: dict[str, Any], fault: str) -> Answer | str:
        error = error_of(fault, service, operation, self.identity.user)
        if error is not None:
            raise error
        if fault == "drop":
            return fault
        streams = params.get("logStreamName") or params.get("logStreamNames", "")
        series = f"{operation} {streams} {params.get('jobQueue', '')}"
        if fault == "repeat" and series in self._last:
            return self._last[series]
        if fault == "empty_page":
            params = params | {"limit": 0, "maxResults": 0}
        method = getattr(self._apis[service], _snake(operation), None)
        if method is None:
            raise ApiError("UnknownOperationException", f"the fake does not have {operation}", 501)
        answer = wire.render_answer(service, operation, method(params))
        if fault in BREAKS:
            self._last[series] = answer
            return fault if fault == "lose_answer" else _truncated(answer)
        self._last[series] = answer
        return answer


def _truncated(answer: Answer) -> Answer:
    status, headers, body = answer
    return status, headers | {"Content-Length": str(len(body) + 1000)}, body[: len(body) // 2]


def _snake(operation: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    fake: FakeAws

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that a client gave up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.server.fake.answer(self.command, self.path, self.headers, body)
        if isinstance(answer, str):
            self.close_connection = True
            return
        status, headers, content = answer
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = headers.get("Content-Length") is not None

    do_GET = do_POST = do_DELETE = _serve

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The fake's time, which need not be the machine's."""
        return super().date_time_string(self.server.fake.now() if timestamp is None else timestamp)

    def log_message(self, format: str, *args: Any) -> None:
        pass
