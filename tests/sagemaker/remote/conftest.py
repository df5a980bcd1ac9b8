from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shunter.schedulers.aws import cloudwatch
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler, create_scheduler
from shunter.specs.status import is_terminal
from tests.aws_services import read_models_once
from tests.sagemaker.remote.iam import Iam

read_models_once()

REGION = "us-east-1"
_TRUST = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole",'
    ' "Principal": {"Service": "sagemaker.amazonaws.com"}}]}'
)
SETTLE = 0.2
#: The command line as a program that knows this too: ``python -c COMMAND_LINE run ...``.
COMMAND_LINE = (
    "import sys; from shunter.schedulers.aws import cloudwatch; from shunter.cli import main; "
    f"cloudwatch.SETTLE = {SETTLE}; sys.argv[0] = 'shunter'; sys.exit(main())"
)


class Cloud:
    """S3, STS and IAM by moto; SageMaker and its logs by this machine's own endpoint.

    Attributes:
        url: moto's endpoint.
        sagemaker: the endpoint for SageMaker and CloudWatch Logs.
        bucket: a bucket of the test's own.
        role: name of a role.
        calls: what SageMaker and its logs were asked for, in order.
        refused: operations that these credentials may not use.
        largest_page: how many items there are on a page at most.
    """

    def __init__(self, url: str, sagemaker: str) -> None:
        self.url = url
        self.sagemaker = sagemaker
        self.role = f"Training-{uuid.uuid4().hex[:8]}"
        self.bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        self.calls: list[str] = []
        self.refused: set[str] = set()
        self.largest_page = 100

    def environ(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ENDPOINT_URL_SAGEMAKER": self.sagemaker,
            "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": self.sagemaker,
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "example",
            "AWS_DEFAULT_REGION": REGION,
        }

    def client(self, service: str) -> Any:
        import botocore.session

        return botocore.session.Session().create_client(service, region_name=REGION)

    def prepare(self) -> None:
        answer = self.client("iam").create_role(
            RoleName=self.role, Path="/service-role/", AssumeRolePolicyDocument=_TRUST
        )
        self.role_arn: str = answer["Role"]["Arn"]
        self.client("s3").create_bucket(Bucket=self.bucket)

    def objects(self, bucket: str | None = None, prefix: str = "") -> list[str]:
        pages = self.client("s3").get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=bucket or self.bucket, Prefix=prefix)
        return [item["Key"] for page in found for item in page.get("Contents", [])]

    def read(self, key: str, bucket: str | None = None) -> bytes:
        body: bytes = self.client("s3").get_object(Bucket=bucket or self.bucket, Key=key)["Body"].read()
        return body

    def put(self, key: str, content: bytes | str) -> str:
        body = content.encode() if isinstance(content, str) else content
        self.client("s3").put_object(Bucket=self.bucket, Key=key, Body=body)
        return f"s3://{self.bucket}/{key}"


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches an account: the credentials of this machine are out of sight."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)


@pytest.fixture(autouse=True)
def logs_are_complete_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here no agent sends the last lines late, as on AWS."""

    monkeypatch.setattr(cloudwatch, "SETTLE", SETTLE)


@pytest.fixture
def cloud(moto: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    from shunter.aws_endpoint.server import EndpointServer
    from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings
    from shunter.schedulers.sagemaker_local_scheduler.request_validation import ApiError

    with EndpointServer(settings=Settings(docker="never", grace=5.0)) as endpoint:
        made = Cloud(moto, endpoint.url)
        carry_out = endpoint.answer

        def answer(target: str, params: dict[str, Any], region: str) -> dict[str, Any]:
            made.calls.append(target)
            if target in made.refused:
                raise ApiError("AccessDeniedException", f"not authorized to perform {target}")
            if "MaxResults" in params:
                params["MaxResults"] = min(params["MaxResults"], made.largest_page)
            return carry_out(target, params, region)

        monkeypatch.setattr(endpoint, "answer", answer)
        thread = threading.Thread(target=endpoint.serve_forever, daemon=True)
        thread.start()
        for name, value in made.environ().items():
            monkeypatch.setenv(name, value)
        made.prepare()
        yield made
        endpoint.shutdown()
        thread.join()


@pytest.fixture
def iam(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Iam]:
    """IAM that simulates policies too; schedulers that are made after it ask it."""
    with Iam(cloud.url) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL_IAM", made.url)
        yield made


@pytest.fixture
def scheduler(cloud: Cloud) -> Iterator[AWSSageMakerScheduler]:
    made = create_scheduler("test")
    yield made
    made.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text("print('it runs')\n")
    return directory


def wait_for(scheduler: AWSSageMakerScheduler, app_id: str, seconds: float = 50.0) -> Any:
    """Wait for a job's end, and return its description."""
    response = scheduler.wait(app_id, seconds)
    assert response is not None
    assert is_terminal(response.state), response
    return response


def eventually(condition: Any, seconds: float = 30.0) -> Any:
    """Ask until it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found
