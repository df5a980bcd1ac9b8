"""The service's endpoint on this machine: HTTP on loopback, for boto3, the AWS CLI and the SageMaker SDK.

Its clients can start containers as its user, so it answers only processes of this user and of root: on Linux
it looks up whose socket the other end is. It refuses names in ``Host`` that are not loopback's, so that no
web page reaches it by another name, and requests that a browser sends for a page.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import struct
import sys
import traceback
import uuid
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from shunter import system
from shunter.aws_endpoint import job_logs, training_jobs
from shunter.errors import BackendError, ShunterError, UsageError
from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings
from shunter.schedulers.sagemaker_local_scheduler.request_validation import ApiError, without_nulls

LARGEST_REQUEST = 16 << 20
#: How many bytes of a refused request are read, so that the client gets to read the answer.
LARGEST_DRAINED = 64 << 20
#: Browsers put one of these into what web pages ask for, and no SDK does.
OF_BROWSERS = ("Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode")
CONTENT_TYPE = "application/x-amz-json-1.1"
#: What SDKs speak with CloudWatch, of which nothing is here: only refusals are written in it.
CBOR_PROTOCOL = "rpc-v2-cbor"
#: Services as the protocol calls them, and as people do.
SERVICES = {
    "SageMaker": "SageMaker",
    "Logs_20140328": "CloudWatch Logs",
    "GraniteServiceVersion20100801": "CloudWatch",
}
#: What to do instead of what clients may ask for.
INSTEAD = {
    "Search": "List jobs by ListTrainingJobs, and their tags by ListTags.",
    "StartLiveTail": "Follow logs by FilterLogEvents, as `aws logs tail --follow` does.",
    "GetMetricStatistics": "DescribeTrainingJob shows the last value of each metric, in FinalMetricDataList.",
}
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]", "::1")
Operation = Callable[[dict[str, Any], str], dict[str, Any]]


class EndpointServer(ThreadingHTTPServer):
    """Serves until `shutdown`. Keeps nothing: all state is in the jobs' directories.

    Args:
        host: address to listen on, one of loopback's.
        port: port; 0 for a free one.
        settings: how jobs are carried out.

    Raises:
        UsageError: others than this machine's processes could reach the address.
        BackendError: it cannot listen there.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str = "127.0.0.1", port: int = 0, settings: Settings | None = None) -> None:
        _check_loopback(host)
        if ":" in host:
            self.address_family = socket.AF_INET6
        create: Operation = partial(training_jobs.create_training_job, settings=settings)
        self._operations: dict[str, Operation] = {**OPERATIONS, "SageMaker.CreateTrainingJob": create}
        try:
            super().__init__((host, port), _RequestHandler)
        except (OSError, OverflowError) as error:
            problem = getattr(error, "strerror", None) or error
            raise BackendError(
                f"cannot listen on {host}:{port}: {problem}",
                hint="Use another port, or 0 for any free one. An endpoint may be running there.",
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
        operation = self._operations.get(target)
        if operation is None:
            raise unsupported(target)
        return operation(without_nulls(params), region)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, except those of clients that close the connection."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            traceback.print_exc()


OPERATIONS: dict[str, Operation] = {
    "SageMaker.CreateTrainingJob": training_jobs.create_training_job,
    "SageMaker.UpdateTrainingJob": training_jobs.update_training_job,
    "SageMaker.DescribeTrainingJob": training_jobs.describe_training_job,
    "SageMaker.ListTrainingJobs": training_jobs.list_training_jobs,
    "SageMaker.StopTrainingJob": training_jobs.stop_training_job,
    "SageMaker.DeleteTrainingJob": training_jobs.delete_training_job,
    "SageMaker.AddTags": training_jobs.add_tags,
    "SageMaker.DeleteTags": training_jobs.delete_tags,
    "SageMaker.ListTags": training_jobs.list_tags,
    "Logs_20140328.DescribeLogGroups": job_logs.describe_log_groups,
    "Logs_20140328.DescribeLogStreams": job_logs.describe_log_streams,
    "Logs_20140328.GetLogEvents": job_logs.get_log_events,
    "Logs_20140328.FilterLogEvents": job_logs.filter_log_events,
}


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "shunter", ""
    timeout = 60
    server: EndpointServer

    def do_POST(self) -> None:
        try:
            self._check_peer()
            body = self._body()
            region = region_of_signature(self.headers.get("Authorization", ""))
            self._check_protocol(body)
            target = self.headers.get("X-Amz-Target", "")
            self._reply(200, self.server.answer(target, _params(body), region))
        except ApiError as error:
            self._refuse(error)
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the client has gone, or sends nothing more
        except ShunterError as error:
            self._refuse(ApiError("InternalFailure", str(error), 500))
        except Exception as error:
            traceback.print_exc()
            self._refuse(ApiError("InternalFailure", f"a fault of the local endpoint: {error}", 500))

    def do_GET(self) -> None:
        """Answer checks that the endpoint is up, and refuse requests for other services."""
        try:
            self._check_peer()
            if self.path.partition("?")[0] != "/":
                raise ApiError(
                    "UnknownOperationException",
                    f"{self.command} {self.path[:100]}: only SageMaker's training jobs and their logs are"
                    " here; point other services, such as S3, elsewhere",
                    404,
                )
            if self._length() != 0:
                self._drain()
            self._reply(200, {"service": "SageMaker training on this machine"})
        except ApiError as error:
            self._refuse(error)

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that cannot be parsed."""
        self.request_version = self.protocol_version  # without it no head would be written
        self._refuse(ApiError("UnknownOperationException", message or "the request cannot be read", code))

    def _check_peer(self) -> None:
        name = self.headers.get("Host", "")
        name = name if name.endswith("]") else name.rpartition(":")[0] or name
        address = self.server.server_address[0]
        if name not in LOOPBACK_NAMES and name != address:
            raise ApiError(
                "AccessDeniedException", f"this endpoint does not answer to the name {name!r}", 403
            )
        for header in OF_BROWSERS:
            if header in self.headers:
                raise ApiError("AccessDeniedException", "this endpoint does not answer web pages", 403)
        if not is_own_peer(self.client_address, self.connection.getsockname()):
            raise ApiError("AccessDeniedException", "this endpoint answers the user who started it only", 403)

    def _body(self) -> bytes:
        length = self._length()
        if length is None or "Content-Length" not in self.headers:
            raise ApiError("SerializationException", "the request has no Content-Length", 411)
        if length > LARGEST_REQUEST:
            raise ApiError(
                "RequestEntityTooLargeException",
                f"the request has {length} bytes, at most {LARGEST_REQUEST} are accepted",
                413,
            )
        self._is_read = True
        return self.rfile.read(length)

    def _check_protocol(self, body: bytes) -> None:
        """Refuse AWS's other protocols, by the operation: in one the path names it, in one the body."""
        if self._speaks_cbor():
            target = self.path.removeprefix("/service/").replace("/operation/", ".")
            if target in OPERATIONS:
                raise ApiError(
                    "SerializationException", f"send {target} as JSON: this endpoint reads no CBOR"
                )
            raise unsupported(target)
        if self.headers.get_content_type() == "application/x-www-form-urlencoded" and b"Action=" in body:
            [name, *_] = parse_qs(body.decode("utf-8", "replace")).get("Action", [""])
            raise unsupported(name)

    def _speaks_cbor(self) -> bool:
        return self.headers.get("smithy-protocol") == CBOR_PROTOCOL

    def handle_one_request(self) -> None:
        """Answer a request."""
        self._is_read = False
        super().handle_one_request()

    def _refuse(self, error: ApiError) -> None:
        if not self._is_read:
            self._drain()
        self._reply(error.status, {"__type": error.code, "message": error.message}, error.code)

    def _length(self) -> int | None:
        """Return the length of the body, or None if it is unknown."""
        headers = getattr(self, "headers", None)
        if headers is None or "Transfer-Encoding" in headers:
            return None
        text = headers.get("Content-Length", "0")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None

    def _drain(self) -> None:
        """Read and discard a body: what is left of it would be parsed as the next request.

        A connection that is closed with something unread is reset, and then the answer may be lost.
        """
        self.close_connection = True
        left = min(self._length() or 0, LARGEST_DRAINED)
        try:
            while left > 0 and (data := self.rfile.read(min(left, 1 << 16))):
                left -= len(data)
        except OSError:
            pass

    def _reply(self, status: int, body: dict[str, Any], code: str = "") -> None:
        data, content_type = json.dumps(body).encode(), CONTENT_TYPE
        is_cbor = code and getattr(self, "headers", None) is not None and self._speaks_cbor()
        if is_cbor:
            data, content_type = _cbor_of(body), "application/cbor"
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if is_cbor:
            self.send_header("smithy-protocol", CBOR_PROTOCOL)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("x-amzn-RequestId", str(uuid.uuid4()))
        if code:
            self.send_header("x-amzn-ErrorType", code)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def unsupported(target: str) -> ApiError:
    """Return the refusal of an operation that is not here, which names those that are."""
    service, _, name = target.rpartition(".")
    called = f"{SERVICES.get(service, service)}.{name}".lstrip(".") or "a request that names no operation"
    known = ", ".join(sorted(known.partition(".")[2] for known in OPERATIONS))
    message = f"{called[:200]} is not supported by this endpoint, which has {known}. {INSTEAD.get(name, '')}"
    return ApiError("UnknownOperationException", message.rstrip())


def _params(body: bytes) -> dict[str, Any]:
    try:
        params = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        params = None
    if not isinstance(params, dict):
        raise ApiError("SerializationException", "the request is not a JSON object")
    return params


def _cbor_of(error: dict[str, str]) -> bytes:
    """Return an error in CBOR (RFC 8949): a map of texts."""
    texts = [text.encode() for pair in error.items() for text in pair]
    return bytes([0xA0 + len(error)]) + b"".join(struct.pack(">BI", 0x7A, len(text)) + text for text in texts)


def region_of_signature(authorization: str) -> str:
    """Return the region that a request was signed for. The signature itself is not checked.

    Raises:
        ApiError: it is not signed, or in a way that the service does not accept.
    """
    if not authorization:
        raise ApiError("MissingAuthenticationTokenException", "Missing Authentication Token", 403)
    # AWS4-HMAC-SHA256 Credential=KEY/20260101/us-east-1/sagemaker/aws4_request, SignedHeaders=A, Signature=1
    method, _, rest = authorization.partition(" ")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    scope = parts.get("Credential", "").split("/")
    if method != "AWS4-HMAC-SHA256" or len(scope) < 5 or not {"SignedHeaders", "Signature"} <= parts.keys():
        raise ApiError(
            "IncompleteSignatureException",
            "the Authorization header is not Signature Version 4: Credential, SignedHeaders and Signature",
        )
    return scope[-3]


def is_own_peer(peer: tuple[Any, ...], own: tuple[Any, ...]) -> bool:
    """Tell whether the other end of a connection is a process of this user or of root.

    False for a peer on another machine, and for one that has closed its end, although the kernel shows that
    as root's. If the system has no table of sockets, True for every peer. Both ends are address and port.
    """
    uid = system.user_of_peer((peer[0], peer[1]), (own[0], own[1]))
    return uid is None or uid in (0, os.getuid())


def _check_loopback(host: str) -> None:
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise UsageError(
            f"the endpoint does not listen on {host!r}: its clients can run programs as this user",
            hint="Listen on 127.0.0.1 or ::1. From another machine, forward a port to it with ssh -L.",
        )
