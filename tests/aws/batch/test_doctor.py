"""What the doctor finds, on a fake of AWS."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shunter.schedulers.api import Check
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler
from shunter.specs import AppDef, Resource, Role
from tests.aws.fake import FakeAws

ROLE = "arn:aws:iam::123456789012:role/jobs"


def found(scheduler: AWSBatchScheduler, **cfg: Any) -> dict[str, Check]:
    return {check.name: check for check in scheduler.doctor(cfg)}


def test_all_is_well(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    checks = found(scheduler, queue="queue")
    assert {name: check.ok for name, check in checks.items() if name != "log group"} == {
        "credentials": True,
        "queue": True,
        "policy": None,
    }
    assert "eu-west-1" in checks["credentials"].text


def test_without_credentials_there_is_nothing_to_see(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    still.faults.add("", "expired_token", None)
    checks = found(scheduler, queue="queue")
    assert list(checks) == ["credentials"]
    assert checks["credentials"].ok is False
    assert "expired" in checks["credentials"].text


@pytest.mark.slow
def test_what_may_not_be_looked_at_is_no_failure(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    for operation in ("DescribeJobQueues", "GetRole", "DescribeLogGroups"):
        still.faults.add(operation, "denied", None)
    checks = found(scheduler, queue="queue", job_role_arn=ROLE)
    assert [checks[name].ok for name in ("queue", "job_role_arn", "log group")] == [None, None, None]
    assert "batch:DescribeJobQueues" in checks["queue"].text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queue", "environment", "cfg", "name", "words"),
    [
        ({"state": "DISABLED"}, {}, {}, "queue", "disabled"),
        ({"status": "INVALID", "statusReason": "x y"}, {}, {}, "queue", "x y"),
        ({}, {"status": "INVALID", "statusReason": "no subnet"}, {}, "queue", "no subnet"),
        ({}, {}, {"share_id": "a"}, "share_id", "no scheduling policy"),
        (
            {"schedulingPolicyArn": "arn:aws:batch:x:1:scheduling-policy/p"},
            {},
            {},
            "share_id",
            "need a share",
        ),
        ({}, {}, {"platform": "FARGATE"}, "platform", "FARGATE"),
    ],
)
def test_queues(
    still: FakeAws,
    scheduler: AWSBatchScheduler,
    queue: dict[str, Any],
    environment: dict[str, Any],
    cfg: dict[str, Any],
    name: str,
    words: str,
) -> None:
    still.batch.add_environment("hosts", **environment)
    still.batch.add_queue("mine", ("hosts",), **queue)
    check = found(scheduler, queue="mine", **cfg)[name]
    assert check.ok is False
    assert words in check.text


def test_a_job_is_compared_with_the_hosts_of_its_queue(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    resources = {"type": "EC2", "maxvCpus": 64, "instanceTypes": ["g5.xlarge"]}
    still.batch.add_environment("hosts", computeResources=resources)
    still.batch.add_queue("mine", ("hosts",))

    def look(cpu: int) -> Check:
        role = Role("r", "127.0.0.1:1/no/registry:1", entrypoint="true", resource=Resource(cpu, 1, 1024))
        info = scheduler.submit_dryrun(AppDef("fits", [role]), {"queue": "mine"})
        checks = {check.name: check for check in scheduler.doctor({}, info)}
        assert checks["image 127.0.0.1:1/no/registry:1"].ok is None
        return checks["the job"]

    assert look(4).ok
    assert (
        look(8).text
        == "no instance type of the compute environment hosts (g5.xlarge) has 8 vCPUs, 1024 MiB, 1 GPUs"
    )


def test_what_does_not_exist(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    checks = found(scheduler, queue="none", job_role_arn=ROLE, log_group="/none")
    for name in ("queue", "job_role_arn", "log group"):
        assert checks[name].ok is False
        assert "there is no" in checks[name].text


@pytest.mark.slow
def test_policy_holds_every_call_that_is_made(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    """The calls of a job's whole life, against the policy that the doctor prints."""
    from tests.aws.batch.test_observing import submit

    text = found(scheduler, queue="queue", job_role_arn=ROLE)["policy"].text
    policy = json.loads(text.partition("\n")[2])
    allowed = {
        action
        for statement in policy["Statement"]
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
    still.calls.clear()
    app_id, job_id = submit(still, scheduler)
    still.batch.advance(job_id, "RUNNABLE")
    scheduler.describe(app_id)
    still.batch.advance(job_id, "RUNNING")
    still.batch.log(job_id, "a line")
    scheduler.cancel(app_id)
    assert list(scheduler.log_iter(app_id, "trainer", should_tail=True)) == ["a line\n"]
    scheduler.list()
    leftovers = scheduler.leftovers({}, 0)
    scheduler.remove_leftovers({}, leftovers)
    scheduler.delete(app_id)
    made = {f"{call.service}:{call.operation}" for call in still.calls}
    assert made - allowed == set()
    assert "iam:PassRole" in allowed
