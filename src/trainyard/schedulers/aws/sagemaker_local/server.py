"""The service's endpoint on this machine: HTTP on loopback, for boto3, the AWS CLI and the SageMaker SDK.

Whoever could reach it could start containers as its user, so it answers this user's (and root's) processes
only: on Linux it looks up whose socket the other end is. Names other than loopback's in ``Host`` are refused,
so that no web page can reach it by a name of its own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainyard.errors import BackendError
from trainyard.schedulers.aws.sagemaker_local.api import LocalSageMaker
from trainyard.schedulers.aws.sagemaker_local.errors import ApiError
from trainyard.schedulers.aws.sagemaker_local.launch import DEFAULT_REGION, Settings
from trainyard.schedulers.aws.sagemaker_local.logs_api import LocalLogs

LARGEST_REQUEST = 16 << 20
CONTENT_TYPE = "application/x-amz-json-1.1"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]", "::1")


class Endpoint(ThreadingHTTPServer):
    """Serves until `shutdown`. Keeps nothing: all state is in the jobs' directories.

    Args:
        host: address to listen on.
        port: port; 0 for a free one.
        settings: how jobs are carried out.

    Raises:
        BackendError: it cannot listen there.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str = "127.0.0.1", port: int = 0, settings: Settings | None = None) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.sagemaker = LocalSageMaker(settings)
        self.logs = LocalLogs()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise BackendError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                hint="Take another port, or 0 for any that is free.",
            ) from error

    @property
    def url(self) -> str:
        """Where it is reached."""
        host, port = self.server_address[:2]
        text = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{text}]:{port}" if ":" in text else f"http://{text}:{port}"

    def answer(self, target: str, params: dict[str, Any], region: str) -> dict[str, Any]:
        """Carry out an operation, named as in ``X-Amz-Target``.

        Raises:
            ApiError: it is refused.
        """
        service, _, operation = target.partition(".")
        if service == "SageMaker" and operation == "CreateTrainingJob":
            return self.sagemaker.create_training_job(params, region)
        found = OPERATIONS.get(target)
        if found is None:
            raise ApiError(
                "UnknownOperationException", f"{target or 'this'} is not carried out on this machine"
            )
        owner = self.sagemaker if service == "SageMaker" else self.logs
        result: dict[str, Any] = getattr(owner, found)(params)
        return result

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that go away."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            traceback.print_exc()


OPERATIONS = {
    "SageMaker.DescribeTrainingJob": "describe_training_job",
    "SageMaker.ListTrainingJobs": "list_training_jobs",
    "SageMaker.StopTrainingJob": "stop_training_job",
    "SageMaker.DeleteTrainingJob": "delete_training_job",
    "SageMaker.AddTags": "add_tags",
    "SageMaker.DeleteTags": "delete_tags",
    "SageMaker.ListTags": "list_tags",
    "SageMaker.Search": "search",
    "Logs_20140328.DescribeLogStreams": "describe_log_streams",
    "Logs_20140328.GetLogEvents": "get_log_events",
    "Logs_20140328.FilterLogEvents": "filter_log_events",
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: Endpoint

    def do_POST(self) -> None:
        try:
            self._check_peer()
            params = self._params()
            answer = self.server.answer(self.headers.get("X-Amz-Target", ""), params, self._region())
            self._reply(200, answer)
        except ApiError as error:
            self._reply(error.status, {"__type": error.code, "message": error.message}, error.code)
        except Exception as error:
            traceback.print_exc()
            text = f"a fault of the local endpoint: {error}"
            self._reply(500, {"__type": "InternalFailure", "message": text}, "InternalFailure")

    def do_GET(self) -> None:
        """Answer what looks whether somebody is there."""
        self._reply(200, {"service": "SageMaker training on this machine"})

    def _check_peer(self) -> None:
        name = self.headers.get("Host", "")
        name = name if name.endswith("]") else name.rpartition(":")[0] or name
        address = self.server.server_address[0]
        if name not in LOOPBACK_NAMES and name != address:
            raise ApiError(
                "AccessDeniedException", f"this endpoint does not answer to the name {name!r}", 403
            )
        if not is_own_peer(self.client_address[0], self.client_address[1]):
            raise ApiError("AccessDeniedException", "this endpoint answers the user who started it only", 403)

    def _params(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST_REQUEST:
            self.close_connection = True
            raise ApiError("SerializationException", "the request has no length, or is too large")
        try:
            params = json.loads(self.rfile.read(int(length)) or b"{}")
        except ValueError:
            params = None
        if not isinstance(params, dict):
            raise ApiError("SerializationException", "the request is no JSON object")
        return params

    def _region(self) -> str:
        """Return the region that the request was signed for."""
        # Credential=KEY/20260101/us-east-1/sagemaker/aws4_request
        _, found, rest = self.headers.get("Authorization", "").partition("Credential=")
        scope = rest.partition(",")[0].split("/")
        return scope[2] if found and len(scope) >= 5 else DEFAULT_REGION

    def _reply(self, status: int, body: dict[str, Any], code: str = "") -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("x-amzn-RequestId", str(uuid.uuid4()))
        if code:
            self.send_header("x-amzn-ErrorType", code)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of every request."""


def is_own_peer(address: str, port: int) -> bool:
    """Tell whether the other end of a connection is a process of this user or of root.

    Where the system does not tell, or the peer is not on this machine, it is not.
    """
    if not os.path.exists("/proc/net/tcp"):
        return True
    version, width = (socket.AF_INET6, 16) if ":" in address else (socket.AF_INET, 4)
    raw = socket.inet_pton(version, address.partition("%")[0])
    # The kernel shows each group of four bytes in this machine's order.
    swapped = b"".join(
        int.from_bytes(raw[i : i + 4], sys.byteorder).to_bytes(4, "big") for i in range(0, width, 4)
    )
    wanted = f"{swapped.hex().upper()}:{port:04X}"
    table = "/proc/net/tcp6" if version == socket.AF_INET6 else "/proc/net/tcp"
    with open(table, encoding="ascii") as file:
        for line in file:
            fields = line.split()
            if len(fields) > 7 and fields[1] == wanted:
                return int(fields[7]) in (0, os.getuid())
    return False
