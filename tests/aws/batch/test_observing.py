"""What is seen of jobs: states, replicas, attempts, reasons, lists."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from shunter.errors import ConfigError
from shunter.parallel import WORKERS
from shunter.schedulers.api import DescribeAppResponse
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler, create_scheduler
from shunter.specs import AppState, Resource
from shunter.specs.status import ReplicaStatus
from tests.aws.batch.jobs import app, role
from tests.aws.fake import FakeAws
from tests.schedulers.known_context import KnownContext

CFG = {"queue": "queue"}
Submitted = tuple[str, str]


def submit(aws: FakeAws, scheduler: AWSBatchScheduler, *roles: Any, **cfg: Any) -> Submitted:
    """Submit a job; returns its app id and Batch's own."""
    app_id = scheduler.submit(app(*roles), {**CFG, **cfg})
    name = app_id.partition(":")[2]
    return app_id, next(job.id for job in aws.batch.jobs.values() if job.name == name and job.parent is None)


def look(scheduler: AWSBatchScheduler, app_id: str) -> DescribeAppResponse:
    response = scheduler.describe(app_id)
    assert response is not None
    return response


def replicas(response: DescribeAppResponse) -> list[ReplicaStatus]:
    return response.to_status().replicas()


# ---- finding


def test_a_job_of_the_history_is_one_call(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    app_id, job_id = submit(still, scheduler)
    other = create_scheduler("test")
    other.context = KnownContext(ids={app_id: f"arn:aws:batch:eu-west-1:123456789012:job/{job_id}"})
    still.calls.clear()
    assert look(other, app_id).state is AppState.PENDING
    assert [call.operation for call in still.calls] == ["DescribeJobs"]
    other.close()


def test_a_job_from_elsewhere_is_found_by_name_with_one_filtered_call(
    still: FakeAws, scheduler: AWSBatchScheduler
) -> None:
    app_id, _ = submit(still, scheduler)
    other = create_scheduler("test")
    still.calls.clear()
    assert look(other, app_id).state is AppState.PENDING
    assert look(other, app_id).state is AppState.PENDING
    assert [call.operation for call in still.calls] == ["ListJobs", "DescribeJobs", "DescribeJobs"]
    assert still.calls[0].params["filters"] == [{"name": "JOB_NAME", "values": [app_id.partition(":")[2]]}]
    other.close()


@pytest.mark.parametrize("app_id", ["nonsense", "queue:unknown", "nowhere:unknown", ":", "queue:", ":x"])
def test_unknown_jobs(still: FakeAws, scheduler: AWSBatchScheduler, app_id: str) -> None:
    assert scheduler.describe(app_id) is None
    assert scheduler.describe_many([app_id]) == {app_id: None}
    assert not scheduler.exists(app_id)
    scheduler.cancel(app_id)
    scheduler.delete(app_id)


def test_a_job_that_batch_does_not_show_yet(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    still.batch.visible_after = 3600
    app_id, job_id = submit(still, scheduler)
    assert look(scheduler, app_id).state is AppState.SUBMITTED
    assert scheduler.exists(app_id)
    assert scheduler.list() == []
    scheduler.cancel(app_id)
    assert still.calls[-1].operation == "TerminateJob"
    still.batch.jobs[job_id].visible_at = 0
    assert look(scheduler, app_id).state is AppState.PENDING


# ---- states and reasons


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("SUBMITTED", AppState.PENDING),
        ("PENDING", AppState.PENDING),
        ("RUNNABLE", AppState.PENDING),
        ("STARTING", AppState.PENDING),
        ("RUNNING", AppState.RUNNING),
    ],
)
def test_states(still: FakeAws, scheduler: AWSBatchScheduler, status: str, state: AppState) -> None:
    app_id, job_id = submit(still, scheduler)
    still.batch.advance(job_id, status)
    response = look(scheduler, app_id)
    assert response.state is state
    assert bool(response.msg) is (state is AppState.PENDING)
    assert [replica.state for replica in replicas(response)] == [state]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("finish", "state", "reason"),
    [
        ({"exit_code": 0}, AppState.SUCCEEDED, ""),
        ({"exit_code": 7}, AppState.FAILED, "exit code 7"),
        (
            {"exit_code": 137, "reason": "OutOfMemoryError: Container killed due to memory usage"},
            AppState.FAILED,
            "out of memory: OutOfMemoryError: Container killed due to memory usage",
        ),
        (
            {"exit_code": None, "reason": "CannotPullContainerError: not found"},
            AppState.FAILED,
            "its image cannot be pulled: CannotPullContainerError: not found",
        ),
        (
            {"exit_code": None, "reason": "ResourceInitializationError: unable to pull secrets"},
            AppState.FAILED,
            "could not be started: ResourceInitializationError: unable to pull secrets",
        ),
        (
            {"exit_code": None, "status_reason": "Host EC2 (instance i-1) terminated."},
            AppState.FAILED,
            "its host was taken away: Host EC2 (instance i-1) terminated.",
        ),
        (
            {"exit_code": 137, "status_reason": "Job attempt duration exceeded timeout"},
            AppState.FAILED,
            "stopped at its time limit: Job attempt duration exceeded timeout",
        ),
        ({"exit_code": 3, "reason": "something else"}, AppState.FAILED, "exit code 3: something else"),
    ],
)
def test_ends(
    still: FakeAws, scheduler: AWSBatchScheduler, finish: dict[str, Any], state: AppState, reason: str
) -> None:
    app_id, job_id = submit(still, scheduler)
    before = time.time()
    still.batch.advance(job_id, "RUNNING")
    still.batch.finish(job_id, **finish)
    response = look(scheduler, app_id)
    assert (response.state, response.msg) == (state, reason)
    (replica,) = replicas(response)
    assert (replica.state, replica.exit_code, replica.reason) == (state, finish["exit_code"], reason)
    assert replica.started_at is not None
    assert replica.ended_at is not None
    assert before - 1 <= replica.started_at <= replica.ended_at <= time.time() + 1
    assert scheduler.wait(app_id) == response


@pytest.mark.slow
@pytest.mark.parametrize("status", ["SUBMITTED", "RUNNABLE", "STARTING", "RUNNING"])
def test_cancelling_in_every_state(still: FakeAws, scheduler: AWSBatchScheduler, status: str) -> None:
    app_id, job_id = submit(still, scheduler)
    still.batch.advance(job_id, status)
    scheduler.cancel(app_id)
    response = look(scheduler, app_id)
    assert response.state is AppState.CANCELLED
    assert response.msg.startswith("cancelled by ")
    calls = still.count("TerminateJob")
    scheduler.cancel(app_id)
    assert still.count("TerminateJob") == calls == 1
    assert scheduler.list()[0].state is AppState.CANCELLED


def test_somebody_elses_cancelling(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    app_id, job_id = submit(still, scheduler)
    still.batch.advance(job_id, "RUNNING")
    still.batch.stop(still.batch.job(job_id), "it costs too much", terminate=True)
    response = look(scheduler, app_id)
    assert (response.state, response.msg) == (AppState.CANCELLED, "it costs too much")


def test_a_job_that_failed_while_it_was_cancelled_before_is_not_taken_for_cancelled(
    still: FakeAws, scheduler: AWSBatchScheduler
) -> None:
    app_id, job_id = submit(still, scheduler)
    still.batch.finish(job_id, 1)
    scheduler.cancel(app_id)
    assert look(scheduler, app_id).state is AppState.FAILED
    assert still.count("TerminateJob") == 0


# ---- attempts


def test_attempts_and_restarts(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    app_id, job_id = submit(still, scheduler, role(max_retries=2))
    still.batch.advance(job_id, "RUNNING")
    assert look(scheduler, app_id).num_restarts == 0
    still.batch.finish(job_id, 1)
    assert look(scheduler, app_id).num_restarts == 0  # it waits for its second attempt
    still.batch.advance(job_id, "RUNNING")
    assert look(scheduler, app_id).num_restarts == 1
    still.batch.finish(job_id, 1)
    still.batch.finish(job_id, 5)
    response = look(scheduler, app_id)
    assert (response.state, response.num_restarts) == (AppState.FAILED, 2)
    assert response.msg == "exit code 5; not restarted: 3 of 3 attempts are used up"
    assert replicas(response)[0].restarts == 2
    assert [(each.number, each.exit_code) for each in replicas(response)[0].earlier] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("how", "attempts"),
    [
        ({"exit_code": 1}, 1),
        ({"exit_code": None, "status_reason": "Host EC2 (instance i-1) terminated."}, 4),
        ({"exit_code": 42}, 4),
    ],
)
def test_a_reclaimed_host_is_distinguished_from_a_failure_of_the_program(
    still: FakeAws, scheduler: AWSBatchScheduler, how: dict[str, Any], attempts: int
) -> None:
    _, job_id = submit(still, scheduler, role(max_retries=3), retry_on="spot", retry_rules=["exit:42:retry"])
    for _ in range(4):
        if still.batch.job(job_id).status != "FAILED":
            still.batch.finish(job_id, **{"reason": "", **how})
    assert len(still.batch.job(job_id).attempts) == attempts


@pytest.mark.parametrize(
    ("how", "attempts", "said"),
    [
        ({"exit_code": 1}, 1, "its rule for exit code 1 says EXIT"),
        ({"exit_code": 127}, 1, "its rule for exit code 127 says EXIT"),
        (
            {"exit_code": 137, "reason": "OutOfMemoryError: Container killed"},
            3,
            "3 of 3 attempts",
        ),
        ({"exit_code": None, "status_reason": "Host EC2 (instance i-1) terminated."}, 3, "3 of 3 attempts"),
    ],
)
@pytest.mark.filterwarnings("ignore:aws_batch (counts|accepts):RuntimeWarning")
def test_retries_by_class(
    still: FakeAws, scheduler: AWSBatchScheduler, how: dict[str, Any], attempts: int, said: str
) -> None:
    retry = {"exception": "0", "oom": "2", "node": "2", "other": "2"}
    app_id, job_id = submit(still, scheduler, role(), retry=retry)
    for _ in range(4):
        if still.batch.job(job_id).status != "FAILED":
            still.batch.finish(job_id, **{"reason": "", **how})
    assert len(still.batch.job(job_id).attempts) == attempts
    assert f"not restarted: {said}" in look(scheduler, app_id).msg


# ---- several replicas


def test_multi_node_job(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    app_id, job_id = submit(still, scheduler, role(num_replicas=2), role("reader", num_replicas=2))
    still.batch.advance(job_id, "RUNNING")
    still.batch.finish(f"{job_id}#3", 9)
    response = look(scheduler, app_id)
    assert response.state is AppState.RUNNING
    found = [(each.role, each.id, each.state, each.exit_code) for each in replicas(response)]
    assert found == [
        ("trainer", 0, AppState.RUNNING, None),
        ("trainer", 1, AppState.RUNNING, None),
        ("reader", 0, AppState.RUNNING, None),
        ("reader", 1, AppState.FAILED, 9),
    ]
    still.batch.finish(f"{job_id}#0", 4)
    still.batch.finish(f"{job_id}#1", 0)
    still.batch.finish(f"{job_id}#2", 0)
    response = look(scheduler, app_id)
    assert response.state is AppState.FAILED
    assert response.msg == "reader/1: exit code 9 (2 of 4 replicas failed)"
    assert response.ui_url is not None
    assert response.ui_url.endswith(f"#jobs/mnp-job/{job_id}")
    assert [(r.name, r.num_replicas, r.entrypoint) for r in response.roles] == [
        ("trainer", 2, "python"),
        ("reader", 2, "python"),
    ]


def test_the_first_node_decides_but_the_others_are_not_forgotten(
    still: FakeAws, scheduler: AWSBatchScheduler
) -> None:
    app_id, job_id = submit(still, scheduler, role(num_replicas=3))
    still.batch.finish(f"{job_id}#2", 5)
    still.batch.finish(f"{job_id}#1", None, "", "Main node exited")
    still.batch.finish(f"{job_id}#0", 0)
    response = look(scheduler, app_id)
    assert response.state is AppState.SUCCEEDED
    assert response.msg == "its first replica succeeded, but trainer/2: exit code 5"
    states = [each.state for each in replicas(response)]
    assert states == [AppState.SUCCEEDED, AppState.CANCELLED, AppState.FAILED]


def test_array_job(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    app_id, job_id = submit(still, scheduler, role(num_replicas=3), array=True)
    assert look(scheduler, app_id).state is AppState.PENDING
    still.batch.advance(f"{job_id}:1", "RUNNING")
    assert still.batch.job(job_id).status == "PENDING"  # Batch leaves the parent there
    response = look(scheduler, app_id)
    assert response.state is AppState.RUNNING
    assert [each.state.name for each in replicas(response)] == ["PENDING", "RUNNING", "PENDING"]
    still.batch.finish(f"{job_id}:1", 6)
    assert look(scheduler, app_id).state is AppState.RUNNING
    still.batch.finish(f"{job_id}:0", 0)
    still.batch.finish(f"{job_id}:2", 0)
    response = look(scheduler, app_id)
    assert (response.state, response.msg) == (AppState.FAILED, "trainer/1: exit code 6")
    assert [each.exit_code for each in replicas(response)] == [0, 6, 0]
    assert response.ui_url is not None
    assert response.ui_url.endswith(f"#jobs/array-job/{job_id}")
    assert scheduler.list()[0].state is AppState.FAILED


def test_replicas_of_a_large_job_are_described_a_hundred_at_a_time(
    still: FakeAws, scheduler: AWSBatchScheduler
) -> None:
    app_id, job_id = submit(still, scheduler, role(num_replicas=250), array=True)
    still.batch.advance(job_id, "RUNNING")
    still.calls.clear()
    assert len(replicas(look(scheduler, app_id))) == 250
    assert still.count("DescribeJobs") == 1 + 3


def test_jobs_of_the_predecessor(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    container = {"image": "i", "command": ["python", "a.py"], "environment": [], "resourceRequirements": []}
    named = {**container, "environment": [{"name": "TORCHX_ROLE_NAME", "value": "trainer"}]}
    session = AwsSession()
    session.call(
        "batch",
        "RegisterJobDefinition",
        jobDefinitionName="theirs",
        type="multinode",
        nodeProperties={
            "numNodes": 3,
            "mainNode": 0,
            "nodeRangeProperties": [
                {"targetNodes": "0:1", "container": named},
                {"targetNodes": "2", "container": container},
            ],
        },
    )
    for name, tags in (("theirs-x", {"torchx.pytorch.org/version": "0.7"}), ("nobodys", {})):
        session.call("batch", "SubmitJob", jobName=name, jobQueue="queue", jobDefinition="theirs", tags=tags)
    assert [row.app_id for row in scheduler.list()] == ["queue:theirs-x"]
    both = {row.app_id for row in scheduler.list({"all": True})}
    assert both == {"queue:theirs-x", "queue:nobodys"}
    response = look(scheduler, "queue:theirs-x")
    assert [(each.role, each.id) for each in replicas(response)] == [
        ("trainer", 0),
        ("trainer", 1),
        ("node", 0),
    ]


# ---- waiting


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queue", "environment", "resource", "words"),
    [
        ({"state": "DISABLED"}, {}, None, "the queue blocked is disabled"),
        ({"status": "INVALID", "statusReason": "no role"}, {}, None, "blocked is invalid: no role"),
        ({}, {"status": "INVALID", "statusReason": "CLIENT_ERROR"}, None, "hosts is invalid: CLIENT_ERROR"),
        ({}, {"state": "DISABLED"}, None, "hosts is disabled"),
        (
            {},
            {"computeResources": {"type": "EC2", "maxvCpus": 8}},
            Resource(16, 0, 64),
            "at most 8 vCPUs, and a replica needs 16",
        ),
        (
            {},
            {
                "computeResources": {
                    "type": "EC2",
                    "maxvCpus": 999,
                    "instanceTypes": ["g5.xlarge", "m5.xlarge"],
                }
            },
            Resource(4, 8, 64),
            r"no instance type of the compute environment hosts \(g5.xlarge, m5.xlarge\) has",
        ),
        (
            {},
            {"computeResources": {"type": "FARGATE", "maxvCpus": 999}},
            Resource(4, 1, 64),
            "Fargate's, which has no GPUs",
        ),
    ],
)
def test_what_a_job_waits_for(
    still: FakeAws,
    scheduler: AWSBatchScheduler,
    queue: dict[str, Any],
    environment: dict[str, Any],
    resource: Resource | None,
    words: str,
) -> None:
    still.batch.add_environment("hosts", **_subnets(environment))
    still.batch.add_queue("blocked", ("hosts",))
    app_id, job_id = submit(still, scheduler, role(resource=resource or Resource(1, 0, 64)), queue="blocked")
    still.batch.queues["blocked"].update(queue)
    still.batch.advance(job_id, "RUNNABLE")
    response = look(scheduler, app_id)
    assert pytest.approx(len(response.msg), abs=400) == 100
    import re

    assert re.search(words, response.msg), response.msg
    calls = len(still.calls)
    look(scheduler, app_id)
    assert len(still.calls) - calls == 1  # what the queue says holds for a while


def _subnets(environment: dict[str, Any]) -> dict[str, Any]:
    if "computeResources" not in environment:
        return environment
    return {**environment, "computeResources": {"subnets": [], **environment["computeResources"]}}


def test_batchs_own_reason_comes_first_and_a_good_queue_adds_nothing(
    still: FakeAws, scheduler: AWSBatchScheduler
) -> None:
    app_id, job_id = submit(still, scheduler)
    still.batch.advance(job_id, "RUNNABLE", "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY")
    assert look(scheduler, app_id).msg == "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"
    still.faults.add("DescribeJobQueues", "denied", None)
    assert create_scheduler("test").describe(app_id) is not None


def test_the_place_in_the_queue_is_that_of_batchs_snapshot(
    still: FakeAws, scheduler: AWSBatchScheduler
) -> None:
    jobs = [submit(still, scheduler) for _ in range(3)]
    for _, job_id in jobs[:2]:
        still.batch.advance(job_id, "RUNNABLE")
    assert (
        scheduler.details(jobs[1][0]).queue_position() == "number 2 of the first 2 runnable jobs of its queue"
    )
    assert scheduler.details(jobs[2][0]).queue_position() == ""


# ---- lists


def test_filters(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    still.batch.add_queue("other")
    running, job_id = submit(still, scheduler)
    still.batch.advance(job_id, "RUNNING")
    old, old_id = submit(still, scheduler)
    still.batch.job(old_id).created -= 3600_000
    elsewhere, _ = submit(still, scheduler, queue="other")

    def ids(**cfg: Any) -> list[str]:
        return [row.app_id for row in scheduler.list(cfg)]

    assert ids() == [old, running, elsewhere]
    assert ids(queue="queue") == [old, running]
    assert ids(queue="arn:aws:batch:eu-west-1:123456789012:job-queue/other") == [elsewhere]
    assert ids(states={AppState.RUNNING}) == [running]
    assert ids(since=time.time() - 60) == [running, elsewhere]
    row = scheduler.list({"queue": "other"})[0]
    assert row.name == "Train Me"
    assert row.submitted_at == pytest.approx(time.time(), abs=60)
    with pytest.raises(AwsError, match="nowhere"):
        scheduler.list({"queue": "nowhere"})


def fill(aws: FakeAws, scheduler: AWSBatchScheduler, count: int, queues: int = 1) -> None:
    """Make many jobs, without a request for each."""
    submit(aws, scheduler)
    (first,) = aws.batch.jobs.values()
    for index in range(1, queues):
        aws.batch.add_queue(f"queue{index}")
    arns = [queue["jobQueueArn"] for queue in aws.batch.queues.values()]
    for number in range(1, count):
        request = {**first.request, "jobName": f"job-{number}"}
        queue = {"jobQueueArn": arns[number % len(arns)]}
        aws.batch.submit(first.definition, queue, request)


@pytest.mark.slow
def test_ten_thousand_jobs(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    count, queues = 10_000, 7
    fill(still, scheduler, count, queues)
    still.calls.clear()
    rows = scheduler.list()
    assert len({row.app_id for row in rows}) == len(rows) == count
    sizes = [
        sum(job.queue.endswith(f"/{name}") for job in still.batch.jobs.values())
        for name in still.batch.queues
    ]
    assert still.count("DescribeJobQueues") == 1
    assert still.count("ListJobs") == sum(math.ceil(size / 100) for size in sizes)
    assert still.count("DescribeJobs") == math.ceil(count / 100)
    assert len(still.calls) == 1 + still.count("ListJobs") + 100
    assert WORKERS <= 16


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["repeat", "empty_page", "throttle", "server_error", "drop", "truncate"])
def test_lists_are_complete_whatever_happens(
    still: FakeAws, scheduler: AWSBatchScheduler, fault: str
) -> None:
    fill(still, scheduler, 450)
    still.faults.add("ListJobs", fault, 1, skip=2)
    still.faults.add("DescribeJobs", "throttle" if fault == "throttle" else "drop", 1, skip=1)
    rows = scheduler.list({"queue": "queue"})
    assert len(rows) == len({row.app_id for row in rows}) == 450
    assert ("ListJobs", fault) in still.faults.happened


def test_a_list_without_end_is_an_error(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    fill(still, scheduler, 250)
    still.faults.add("ListJobs", "repeat", None, skip=1)
    with pytest.raises(AwsError, match="does not end"):
        scheduler.list({"queue": "queue"})


# ---- deleting


def test_deleting(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    app_id, job_id = submit(still, scheduler, role(max_retries=1))
    still.batch.advance(job_id, "RUNNING")
    with pytest.raises(ConfigError, match="cannot be deleted"):
        scheduler.delete(app_id)
    still.batch.log(job_id, "a line")
    still.batch.finish(job_id, 1)
    still.batch.advance(job_id, "RUNNING")
    still.batch.finish(job_id, 1)
    scheduler.delete(app_id)
    assert still.count("DeleteLogStream") == 2
    assert not scheduler.exists(app_id)
    assert create_scheduler("test").describe(app_id) is None
    assert scheduler.list() == []
    assert len(scheduler.list({"all": True})) == 1
