from __future__ import annotations

import http.server
import threading
import time
from typing import Any

import pytest

from shunter.schedulers.aws.session import AwsSession
from tests.aws.fake import FakeAws
from tests.aws.fake.wire import REGION


@pytest.mark.parametrize("service", ["batch", "logs"])
def test_cut_answers_are_asked_for_again(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with FakeAws() as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        aws.logs.create_group("group")
        session = AwsSession(REGION)
        operation = {"batch": "DescribeJobQueues", "logs": "DescribeLogGroups"}[service]
        aws.faults.add(operation, "truncate", times=2)
        answer = session.call(service, operation)
        if service == "batch":
            assert [queue["jobQueueName"] for queue in answer["jobQueues"]] == ["queue"]
        else:
            assert [group["logGroupName"] for group in answer["logGroups"]] == ["group"]
        assert aws.count(operation) == 3


class _Proxy(http.server.BaseHTTPRequestHandler):
    """Answers in the place of AWS."""

    page = b"<html>Please log in to the network.</html>"

    def do_POST(self) -> None:
        self.server.asked += 1  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("page", [_Proxy.page, b"", b'{"TrainingJobStatus": "Comple'])
def test_the_page_of_a_proxy_is_no_answer(page: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read as a job without a state, and a submission as accepted."""
    import botocore.session
    from botocore.config import Config

    from shunter.schedulers.aws.aws_errors import AwsUnreachableError
    from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(_Proxy, "page", page)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
    server.asked = 0  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(AwsUnreachableError, match="the answer cannot be read"):
            AWSSageMakerScheduler("s").describe("job-1")
        assert server.asked > 1  # type: ignore[attr-defined]
        config = Config(retries={"mode": "standard", "total_max_attempts": 1})
        theirs = botocore.session.Session().create_client("sagemaker", config=config)
        if not page.startswith(b"{"):  # of half a document botocore itself says nothing
            with pytest.raises(AwsUnreachableError, match="no TrainingJobStatus"):
                AWSSageMakerScheduler("s", client=theirs).describe("job-1")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
