"""Code that goes to AWS Batch in images: pushed to a real registry, submitted to a fake of AWS."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from shunter.docker.image_reference import Reference
from shunter.errors import ConfigError, ShunterError
from shunter.image_registry.client import RegistryClient
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler
from shunter.specs.workspace import Workspace
from tests.aws.batch.jobs import app, role
from tests.aws.fake import FakeAws
from tests.registry.server import RegistryServer, logged_in, registry
from tests.workspace.machines import base, code, command, docker

__all__ = ["base", "code", "command", "logged_in", "registry"]
pytestmark = pytest.mark.xdist_group("docker")


@pytest.fixture
def image(base: str, logged_in: RegistryServer) -> str:
    """An image in the registry, and not under this name in the daemon."""
    name = f"{logged_in.host}/bases/small:1"
    docker("tag", base, name)
    docker("push", name)
    docker("rmi", name)
    return name


def submitted_image(aws: FakeAws, scheduler: AWSBatchScheduler, image: str, **where: Any) -> str:
    info = scheduler.submit_dryrun(
        app(role(image=image)), {"queue": "queue", **where["cfg"]}, where["workspace"]
    )
    planned = info.request.job_def["containerProperties"]["image"]
    scheduler.ship(info)
    scheduler.schedule(info)
    sent: str = list(aws.batch.jobs.values())[-1].definition["containerProperties"]["image"]
    assert (planned == sent) is (info.shipment is None)
    return sent


def test_the_definition_has_the_image_by_its_digest(
    still: FakeAws, scheduler: AWSBatchScheduler, image: str, logged_in: RegistryServer, code: Path
) -> None:
    repo = f"{logged_in.host}/jobs/{uuid.uuid4().hex[:10]}"
    where = {"cfg": {"image_repo": repo, "quiet": True, "platform": "EC2"}, "workspace": str(code)}
    first = submitted_image(still, scheduler, image, **where)
    assert first.startswith(f"{repo}@sha256:")
    assert submitted_image(still, scheduler, image, **where) == first
    assert still.count("RegisterJobDefinition") == 1
    assert scheduler.has_images([first])
    (code / "main.py").write_text("print('changed')")
    assert submitted_image(still, scheduler, image, **where) != first
    assert still.count("RegisterJobDefinition") == 2


def test_code_that_was_asked_for_needs_a_repository(
    still: FakeAws, scheduler: AWSBatchScheduler, code: Path
) -> None:
    with pytest.raises(ConfigError, match=r"definition has \d+ bytes.*; nothing was submitted"):
        scheduler.submit(app(), {"queue": "queue"}, str(code))
    assert still.calls == []
    implied = Workspace({str(code): ""}, implicit=True)
    sent = submitted_image(still, scheduler, "any:1", cfg={}, workspace=implied)
    assert sent == "any:1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queue", "problem"),
    [
        ("nosuch", "there is no job queue nosuch"),
        ("off", "the job queue off is DISABLED"),
        ("queue", "expired"),
    ],
)
def test_nothing_is_pushed_where_the_queue_or_the_credentials_do_not_hold(
    still: FakeAws,
    scheduler: AWSBatchScheduler,
    image: str,
    logged_in: RegistryServer,
    code: Path,
    queue: str,
    problem: str,
) -> None:
    still.batch.add_queue("off", state="DISABLED")
    if problem == "expired":
        still.faults.add("DescribeJobQueues", "expired_token", times=None)
    repo = f"{logged_in.host}/jobs/{uuid.uuid4().hex[:10]}"
    cfg = {"queue": queue, "image_repo": repo, "quiet": True}
    info = scheduler.submit_dryrun(app(role(image=image)), cfg, str(code))
    with pytest.raises(ShunterError, match=problem):
        scheduler.ship(info)
    assert still.count("DescribeJobQueues") == len(still.calls) == 1
    planned = Reference.parse(info.request.job_def["containerProperties"]["image"])
    with RegistryClient(planned.registry) as client:
        assert client.manifest(planned.repository, planned.selector) is None
