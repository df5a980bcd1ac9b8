"""StartLiveTail by boto3: what jobs write from then on, for every writer and every filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
import pytest

from shunter.aws_endpoint import job_logs

from .conftest import GROUP

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Jobs

ARN = f"arn:aws:logs:us-west-2:123456789012:log-group:{GROUP}"
WAITS = """
print('before', flush=True)
while not os.path.exists(os.environ['GO']):
    time.sleep(0.02)
for number in range(1200):
    print(json.dumps({'level': 'ERROR' if number % 100 == 0 else 'INFO', 'number': number}))
"""


@pytest.fixture
def logs(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client that puts nothing before the host's name: what is looked up then would not be this machine."""
    monkeypatch.setenv("AWS_DISABLE_HOST_PREFIX_INJECTION", "true")
    monkeypatch.setattr(job_logs, "SECONDS_BETWEEN_UPDATES", 0.02)
    return boto3.client("logs")


def numbers(stream: Any, count: int, name: str) -> list[int]:
    """Read a session until it has sent this many lines; returns their numbers."""
    found: list[int] = []
    for event in stream:
        if "sessionUpdate" not in event:
            continue
        update = event["sessionUpdate"]
        assert len(update["sessionResults"]) <= 500
        for row in update["sessionResults"]:
            assert row["logStreamName"].startswith(f"{name}/algo-1-")
            assert row["logGroupIdentifier"] == f"123456789012:{GROUP}"
            assert row["timestamp"] <= row["ingestionTime"] + 1000
            found.append(int(row["message"].split()[-1].rstrip("}")))
        if len(found) >= count:
            return found
    return found


@pytest.mark.slow
def test_what_is_written_from_then_on_comes(jobs: Jobs, processes: str, logs: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    name = jobs.start(WAITS, Environment={"GO": str(go)})
    jobs.says(name, "before")
    other = jobs.start("print('other', flush=True)")
    jobs.end(other)
    whole = logs.start_live_tail(logGroupIdentifiers=[ARN])["responseStream"]
    wanted = {"logStreamNamePrefixes": [f"{name}/"], "logEventFilterPattern": '{ $.level = "ERROR" }'}
    errors = logs.start_live_tail(logGroupIdentifiers=[ARN], **wanted)["responseStream"]
    start = next(iter(whole))["sessionStart"]
    assert start["logGroupIdentifiers"] == [ARN]
    assert start["sessionId"]
    assert next(iter(errors))["sessionStart"]["logStreamNamePrefixes"] == [f"{name}/"]
    go.touch()
    assert numbers(whole, 1200, name) == list(range(1200))
    assert numbers(errors, 12, name) == list(range(0, 1200, 100))
    whole.close()
    errors.close()
    jobs.end(name)
