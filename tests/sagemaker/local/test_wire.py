"""What is said to the endpoint byte by byte: by clients that err, by browsers, by many at once."""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import botocore.config
import botocore.exceptions
import pytest

from shunter.aws_endpoint.server import LARGEST_REQUEST, EndpointServer
from shunter.errors import BackendError, UsageError

from .conftest import SIGNED, until

if TYPE_CHECKING:
    from .conftest import Jobs

LIST = "SageMaker.ListTrainingJobs"
JSON = "application/x-amz-json-1.1"


@pytest.fixture
def line(endpoint: EndpointServer) -> Iterator[http.client.HTTPConnection]:
    """A connection that is kept."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.server_address[1], timeout=30)
    with contextlib.closing(connection):
        yield connection


def say(
    line: http.client.HTTPConnection, target: str | None = LIST, body: bytes = b"{}", **headers: str
) -> tuple[int, Any]:
    """Say something, and check that the answer has the service's form."""
    sent = {"Content-Type": JSON, "Authorization": SIGNED}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    if not sent["Authorization"]:
        del sent["Authorization"]
    if target is not None:
        sent["X-Amz-Target"] = target
    method = sent.pop("Method", "POST")
    line.request(method, sent.pop("Path", "/"), body, sent)
    answer = line.getresponse()
    data = answer.read()
    assert answer.headers["Content-Type"] == JSON
    assert answer.headers["x-amzn-RequestId"]
    assert int(answer.headers["Content-Length"]) == len(data) or method == "HEAD"
    found = json.loads(data) if data else None
    if answer.status >= 400 and found is not None:
        assert found["__type"] == answer.headers["x-amzn-ErrorType"]
        assert found["message"]
    return answer.status, found


WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "no target": ({"target": None}, 400, "UnknownOperationException"),
    "no service": ({"target": "CreateTrainingJob"}, 400, "UnknownOperationException"),
    "other service": ({"target": "Batch.SubmitJob"}, 400, "UnknownOperationException"),
    "other operation": ({"target": "SageMaker.__init__"}, 400, "UnknownOperationException"),
    "the oldest protocol": (
        {"body": b"Action=ListMetrics", "Content_Type": "application/x-www-form-urlencoded"},
        400,
        "UnknownOperationException",
    ),
    "no JSON": ({"body": b"{"}, 400, "SerializationException"),
    "no object": ({"body": b"[]"}, 400, "SerializationException"),
    "no text": ({"body": b"\xff\xfe"}, 400, "SerializationException"),
    "deep": ({"body": b'{"a":' * 100_000}, 400, "SerializationException"),
    "long number": ({"body": b'{"MaxResults": ' + b"1" * 5000 + b"}"}, 400, "SerializationException"),
    "unknown member": ({"body": b'{"Max": 1}'}, 400, "ValidationException"),
    "infinite": ({"body": b'{"MaxResults": 1e999}'}, 400, "ValidationException"),
    "not signed": ({"Authorization": ""}, 403, "MissingAuthenticationTokenException"),
    "signature version 2": ({"Authorization": "AWS K:sig"}, 400, "IncompleteSignatureException"),
    "signature 4a": (
        {"Authorization": SIGNED.replace("HMAC", "ECDSA-P256")},
        400,
        "IncompleteSignatureException",
    ),
    "half a signature": (
        {"Authorization": SIGNED.partition(", Signature")[0]},
        400,
        "IncompleteSignatureException",
    ),
    "short scope": (
        {"Authorization": SIGNED.replace("/sagemaker/aws4_request", "")},
        400,
        "IncompleteSignatureException",
    ),
    "too large": ({"body": b" " * (LARGEST_REQUEST + 1)}, 413, "RequestEntityTooLargeException"),
    "web page": ({"Origin": "http://evil.example"}, 403, "AccessDeniedException"),
    "web page of this machine": ({"Origin": "http://127.0.0.1:80"}, 403, "AccessDeniedException"),
    "form of a web page": ({"Sec_Fetch_Mode": "navigate"}, 403, "AccessDeniedException"),
    "name of a web page": ({"Host": "evil.example"}, 403, "AccessDeniedException"),
    "like loopback": ({"Host": "127.0.0.1.evil.example:80"}, 403, "AccessDeniedException"),
    "put": ({"Method": "PUT"}, 501, "UnknownOperationException"),
    "options": ({"Method": "OPTIONS"}, 501, "UnknownOperationException"),
    "bucket": ({"Method": "GET", "Path": "/bucket?list-type=2"}, 404, "UnknownOperationException"),
    "web page that gets": ({"Method": "GET", "Origin": "null"}, 403, "AccessDeniedException"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_answered_as_the_service_does(
    line: http.client.HTTPConnection, capfd: pytest.CaptureFixture[str], mistake: str
) -> None:
    """Each by an error that SDKs understand; and the next request finds the endpoint well."""
    said, status, code = WRONG[mistake]
    answer = say(line, **said)
    assert (answer[0], answer[1]["__type"]) == (status, code)
    assert say(line) == (200, {"TrainingJobSummaries": []})
    assert capfd.readouterr().err == ""


def test_a_connection_is_kept(line: http.client.HTTPConnection) -> None:
    for _ in range(3):
        assert say(line, Authorization=SIGNED)[0] == 200
        used = line.sock
        assert say(line, "SageMaker.DescribeTrainingJob", b'{"TrainingJobName": "x"}')[0] == 400
        assert say(line, body=b"", Method="HEAD") == (200, None)
        assert say(line, body=b"", Method="GET")[0] == 200
        assert line.sock is used
    assert say(line, body=b"{}", Method="GET")[0] == 200  # which nobody would read
    assert line.sock is None


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"POST / HTTP/9.9\r\n\r\n", 505),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: " + LIST.encode() + b"\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", 411),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            411,
        ),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 403),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_what_is_no_request(
    endpoint: EndpointServer, capfd: pytest.CaptureFixture[str], said: bytes, status: int
) -> None:
    """TLS, garbage, bodies of unknown length: an error, and the end of the connection."""
    with socket.create_connection(endpoint.server_address[:2], timeout=30) as wire:
        wire.sendall(said)
        answer = b""
        while data := wire.recv(65536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["__type"]
    assert capfd.readouterr().err == ""


def test_clients_that_go_away(endpoint: EndpointServer, capfd: pytest.CaptureFixture[str]) -> None:
    for said in (b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"):
        with socket.create_connection(endpoint.server_address[:2]) as wire:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # resets
            wire.sendall(said)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", endpoint.server_address[1])) as line:
        assert say(line)[0] == 200
    assert capfd.readouterr().err == ""


def test_where_it_listens(endpoint: EndpointServer) -> None:
    port = endpoint.server_address[1]
    with pytest.raises(BackendError, match=rf"cannot listen on 127.0.0.1:{port}: Address already in use"):
        EndpointServer(port=port)
    with pytest.raises(BackendError, match="port must be 0-65535"):
        EndpointServer(port=70000)
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com", ""):
        with pytest.raises(UsageError, match="does not listen on") as error:
            EndpointServer(host)
        assert "ssh -L" in error.value.hint
    if os.path.exists("/proc/net/if_inet6"):
        with EndpointServer("::1") as other:
            assert other.url == f"http://[::1]:{other.server_address[1]}"
    words = [sys.executable, "-m", "shunter", "sagemaker-local", "serve", "--port", str(port)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def client_of(url: str, connections: int) -> Any:
    import boto3

    config = botocore.config.Config(
        max_pool_connections=connections, read_timeout=300, retries={"max_attempts": 0}
    )
    return boto3.client("sagemaker", endpoint_url=url, config=config)


@pytest.mark.slow
def test_killed_and_started_again(jobs: Jobs, processes: str) -> None:
    """SIGKILL in the midst of requests: what was answered is there, and all else is whole or not at all."""
    words = [sys.executable, "-m", "shunter", "sagemaker-local", "serve", "--port", "0"]

    def serve() -> tuple[subprocess.Popen[str], str]:
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert server.stdout is not None
        return server, server.stdout.readline().partition("=")[2].strip()

    server, url = serve()
    request = jobs.request(
        "print('out'); time.sleep(600 if 'long' in os.environ['TRAINING_JOB_NAME'] else 0)"
    )
    created: list[str] = []
    client = client_of(url, 4)

    def create(number: int) -> None:
        name = f"job-{number}" if number else "long-1"
        try:
            client.create_training_job(**{**copy.deepcopy(request), "TrainingJobName": name})
            created.append(name)
        except botocore.exceptions.BotoCoreError:
            pass  # the endpoint was gone

    create(0)
    create(1)
    with ThreadPoolExecutor(4) as pool:
        for number in range(2, 10):
            pool.submit(create, number)
        until(lambda: len(created) > 3)
        server.send_signal(signal.SIGKILL)
    server.communicate()
    server, url = serve()
    try:
        jobs.sagemaker = client_of(url, 4)
        summaries = jobs.sagemaker.list_training_jobs(MaxResults=100)["TrainingJobSummaries"]
        assert {row["TrainingJobName"] for row in summaries} >= set(created)
        assert jobs.describe("long-1")["TrainingJobStatus"] == "InProgress"
        for row in summaries:
            if row["TrainingJobName"] != "long-1":
                ended = jobs.end(row["TrainingJobName"])
                if row["TrainingJobName"] in created:
                    assert ended["TrainingJobStatus"] == "Completed", ended
        jobs.sagemaker.stop_training_job(TrainingJobName="long-1")
        assert jobs.end("long-1")["TrainingJobStatus"] == "Stopped"
    finally:
        server.terminate()
        server.communicate()
