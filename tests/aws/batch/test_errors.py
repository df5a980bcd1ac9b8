"""What goes wrong between here and AWS, as a person sees it: one clear line and the right exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shunter.schedulers.aws_batch_scheduler.observe import console_url
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler
from tests.aws.batch.jobs import app
from tests.aws.fake import FakeAws

USER = "arn:aws:iam::123456789012:user/somebody"
RUN = ("run", "-s", "aws_batch", "-cfg", "queue=queue", "utils.echo", "--image", "i", "--msg", "hi")


def cli(*words: str, unset: tuple[str, ...] = (), **env: str) -> tuple[int, str, str]:
    environ = {key: value for key, value in os.environ.items() if key not in unset} | env
    done = subprocess.run(
        [sys.executable, "-m", "shunter", *words],
        capture_output=True,
        text=True,
        timeout=55,
        env=environ,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def submitted(aws: FakeAws) -> str:
    aws.batch.runs = False
    code, out, err = cli(*RUN)
    assert code == 0, err
    return out.split()[-1]


@pytest.mark.slow
def test_no_credentials(aws: FakeAws) -> None:
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    code, _, err = cli(*RUN, unset=keys)
    assert code == 4
    assert "there are no AWS credentials" in err
    assert "AWS_PROFILE" in err
    assert aws.calls == []


def test_unknown_profile(aws: FakeAws) -> None:
    code, _, err = cli("run", "-s", "aws_batch", "-cfg", "queue=queue,profile=nobody", *RUN[5:])
    assert code == 3
    assert "there is no AWS profile 'nobody'" in err


def test_no_region(aws: FakeAws) -> None:
    code, _, err = cli(*RUN, unset=("AWS_DEFAULT_REGION",))
    assert code == 3
    assert "no AWS region" in err
    assert "region=" in err


@pytest.mark.slow
def test_expired_credentials(aws: FakeAws) -> None:
    handle = submitted(aws)
    aws.faults.add("", "expired_token", None)
    code, _, err = cli(*RUN)
    assert code == 4
    assert "credentials have expired" in err
    assert "aws sso login" in err
    code, out, _ = cli("status", handle, "--json")
    status = json.loads(out)
    assert status["state"] == "UNREACHABLE"
    assert "expired" in status["msg"]


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["DescribeJobDefinitions", "RegisterJobDefinition", "SubmitJob"])
def test_a_missing_permission_is_named_with_who_lacks_it(aws: FakeAws, operation: str) -> None:
    aws.faults.add(operation, "denied", None)
    code, _, err = cli(*RUN)
    assert code == 4
    assert f"{USER} lacks the permission batch:{operation}" in err
    assert "shunter doctor" in err


@pytest.mark.slow
def test_no_server_answers(aws: FakeAws) -> None:
    handle = submitted(aws)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, out, _ = cli("status", handle, "--json", AWS_ENDPOINT_URL=url, AWS_MAX_ATTEMPTS="1")
        status = json.loads(out)
        assert status["state"] == "UNREACHABLE"
        assert "cannot be reached" in status["msg"]
        code, out, err = cli("list", "-s", "aws_batch", AWS_ENDPOINT_URL=url)
    assert code == 4
    assert handle in out  # what the history knows
    assert "cannot be reached" in err


@pytest.mark.slow
def test_passing_trouble_is_not_noticed(aws: FakeAws, scheduler: AWSBatchScheduler) -> None:
    aws.batch.runs = False
    app_id = scheduler.submit(app(), {"queue": "queue"})
    for fault in ("throttle", "server_error", "drop", "truncate"):
        aws.faults.add("DescribeJobs", fault, 2)
        assert scheduler.describe(app_id) is not None
    assert len(aws.faults.happened) == 8


# ---- a configuration of the directory


@pytest.mark.slow
def test_a_job_remembers_its_region_and_profile(
    aws: FakeAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.batch.runs = False
    config = tmp_path / "config"
    config.write_text("[profile team]\naws_access_key_id = AKIATEAM\naws_secret_access_key = x\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    code, out, err = cli(
        "run", "-s", "aws_batch", "-cfg", "queue=queue,region=eu-west-1,profile=team", *RUN[5:]
    )
    assert code == 0, err
    code, out, err = cli("status", out.split()[-1], "--json")  # neither region nor profile is given here
    assert json.loads(out)["state"] == "PENDING", err


def test_dry_run_needs_neither_credentials_nor_region(aws: FakeAws) -> None:
    unset = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
    code, out, err = cli(*RUN[:5], "--dryrun", *RUN[5:], unset=unset)
    assert code == 0, err
    assert '"RegisterJobDefinition": {' in out
    assert '"SubmitJob": {' in out
    assert aws.calls == []


def test_a_job_is_repeated(aws: FakeAws) -> None:
    handle = submitted(aws)
    code, out, err = cli("rerun", handle)
    assert code == 0, err
    assert out.split()[-1] != handle
    assert aws.count("SubmitJob") == 2
    assert aws.count("RegisterJobDefinition") == 1


@pytest.mark.parametrize(
    ("arn", "kind", "url"),
    [
        ("arn:aws:batch:us-east-1:1:job/x", "container", "https://us-east-1.console.aws.amazon.com/batch/home?region=us-east-1#jobs/detail/x"),
        ("arn:aws-cn:batch:cn-north-1:1:job/x", "array", "https://cn-north-1.console.amazonaws.cn/batch/home?region=cn-north-1#jobs/array-job/x"),
        ("arn:aws-us-gov:batch:us-gov-west-1:1:job/x", "multinode", "https://us-gov-west-1.console.amazonaws-us-gov.com/batch/home?region=us-gov-west-1#jobs/mnp-job/x"),
        ("x", "container", None),
    ],
)  # fmt: skip
def test_console_urls(arn: str, kind: str, url: str | None) -> None:
    assert console_url(arn, kind) == url


def test_given_clients_are_used(aws: FakeAws) -> None:
    class Client:
        def __init__(self) -> None:
            self.asked: list[Any] = []

        def list_jobs(self, **params: Any) -> dict[str, Any]:
            self.asked.append(params)
            return {"jobSummaryList": []}

    client = Client()
    scheduler = AWSBatchScheduler("test", client=client)
    assert scheduler.describe("queue:name") is None
    assert len(client.asked) == 1
    assert aws.calls == []
    scheduler.close()
