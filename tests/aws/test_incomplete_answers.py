from __future__ import annotations

import http.server
import threading
import time
from typing import Any

import pytest

from shunter.schedulers.aws.session import check_answers
from tests.aws.fake import FakeAws
from tests.aws.fake.wire import REGION
from tests.aws.logtools import sdk_session


def client_of(aws: FakeAws, service: str, attempts: int) -> Any:
    from botocore.config import Config

    config = Config(retries={"mode": "standard", "total_max_attempts": attempts}, inject_host_prefix=False)
    client = sdk_session().create_client(
        service,
        region_name=REGION,
        endpoint_url=aws.url,
        config=config,
        aws_access_key_id="AKIAEXAMPLE",
        aws_secret_access_key="example",
    )
    check_answers(client)
    return client


@pytest.mark.parametrize("service", ["batch", "logs"])
def test_cut_answers_are_asked_for_again(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeAws() as aws:
        aws.logs.create_group("group")
        client = client_of(aws, service, 3)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        operation = {"batch": "DescribeJobQueues", "logs": "DescribeLogGroups"}[service]
        aws.faults.add(operation, "truncate", times=2)
        if service == "batch":
            assert [q["jobQueueName"] for q in client.describe_job_queues()["jobQueues"]] == ["queue"]
        else:
            assert [g["logGroupName"] for g in client.describe_log_groups()["logGroups"]] == ["group"]
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
