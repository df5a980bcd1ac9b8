"""What the tests of the log reader have in common: a job whose streams a test knows, and how it is read."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from shunter.backoff import Clock
from shunter.schedulers.api import LogBlock, LogQuery
from shunter.schedulers.aws.cloudwatch import AttemptLog, ReplicaAttempts, read_streams
from shunter.schedulers.aws.session import ATTEMPTS, AwsSession, refuse_foreign
from tests.aws.clock import FakeClock
from tests.aws.fake import FakeAws
from tests.aws.fake.wire import REGION

GROUP = "/aws/batch/job"


@functools.cache
def sdk_session() -> Any:
    """Return a session that all share, since reading the models of services takes time."""
    import botocore.session

    return botocore.session.Session()


def logs_client(aws: FakeAws, **more: Any) -> Any:
    from botocore.config import Config

    config = Config(
        inject_host_prefix=False,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        connect_timeout=5,
        read_timeout=20,
        max_pool_connections=16,
    )
    keys = {"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "example"} | more
    client = sdk_session().create_client(
        "logs", region_name=REGION, endpoint_url=aws.url, config=config, **keys
    )
    client.meta.events.register("after-call", refuse_foreign)
    return client


class Rig:
    """A job of equal replicas, the fake that keeps its logs, and the time of both."""

    def __init__(self, aws: FakeAws, clock: Clock, replicas: int = 1) -> None:
        self.aws = aws
        self.clock = clock
        self.client = logs_client(aws)
        self.session = AwsSession(REGION, None, {"logs": self.client})
        self.attempts: dict[int, list[AttemptLog]] = {
            k: [AttemptLog(f"job/default/{k}")] for k in range(replicas)
        }
        self.over = False
        self.refreshed: list[float] = []
        self.failures: list[Exception] = []

    def refresh(self) -> dict[tuple[str, int], ReplicaAttempts]:
        self.refreshed.append(self.clock.monotonic())
        if self.failures:
            raise self.failures.pop(0)
        return {("node", k): ReplicaAttempts(list(runs), self.over) for k, runs in self.attempts.items()}

    def stream(self, k: int = 0) -> str:
        return self.attempts[k][-1].stream

    def put(self, k: int, *events: str | tuple[int, str], visible_after: float = 0.0) -> None:
        self.aws.logs.put(GROUP, self.stream(k), events, visible_after=visible_after)

    def end(self) -> None:
        """All replicas end now."""
        self.over = True
        now = self.clock.time()
        for runs in self.attempts.values():
            runs[-1] = AttemptLog(runs[-1].stream, now)

    def end_long_ago(self) -> None:
        self.over = True
        for runs in self.attempts.values():
            runs[-1] = AttemptLog(runs[-1].stream, self.clock.time() - 3600)

    def blocks(self, **query: Any) -> Iterator[LogBlock]:
        return read_streams(self.session, GROUP, self.refresh, LogQuery(**query), self.clock)

    def read(self, **query: Any) -> dict[int, bytes]:
        texts: dict[int, bytes] = dict.fromkeys(self.attempts, b"")
        for block in self.blocks(**query):
            assert block.role == "node"
            texts[block.replica] += block.data
        return texts

    def text(self, **query: Any) -> str:
        """Return what is read of the first replica."""
        return self.read(**query)[0].decode()


def clock_of(job: Rig) -> FakeClock:
    assert isinstance(job.clock, FakeClock)
    return job.clock


@contextmanager
def rig(replicas: int = 1) -> Iterator[Rig]:
    """Give a job on a fake whose time passes only where the reader waits."""
    clock = FakeClock()
    sdk_time = SimpleNamespace(sleep=clock.sleep, time=clock.time)
    with FakeAws(now=clock.time) as aws, mock.patch("botocore.endpoint.time", sdk_time):
        made = Rig(aws, clock, replicas)
        yield made
        made.client.close()
        assert aws.defects == []
