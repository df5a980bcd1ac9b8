"""A job is submitted once, whatever happens to the requests and answers."""

from __future__ import annotations

import warnings

import pytest

from shunter.backoff import Clock
from shunter.components.train import script
from shunter.schedulers.aws import batch_jobs
from shunter.schedulers.aws.aws_errors import (
    AwsCredentialsError,
    AwsError,
    AwsForbiddenError,
    AwsThrottledError,
    AwsUnreachableError,
)
from shunter.schedulers.aws.batch_jobs import JobRef
from shunter.schedulers.aws_batch_scheduler import submission
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler, create_scheduler
from shunter.schedulers.toolkit_start import start_toolkits
from shunter.specs import AppState
from shunter.sweeps import run_sweep
from tests.aws.batch.jobs import app, role
from tests.aws.fake import FakeAws

CFG = {"queue": "queue"}


def names_of(aws: FakeAws) -> list[str]:
    return [job.name for job in aws.batch.jobs.values()]


def test_points_that_run_some_at_a_time_are_jobs(
    still: FakeAws, scheduler: AWSBatchScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shunter.runner import Runner
    from shunter.sweeps import grid, point_jobs

    monkeypatch.setattr(point_jobs, "_feed_in_background", lambda handle: None)
    with Runner("test", {"aws_batch": lambda *_, **__: scheduler}) as runner:
        found = grid({"msg": ["one", "two", "three"]}, image="busybox:1")
        handle = run_sweep(runner, "utils.echo", found, "aws_batch", {"queue": "queue"}, parallel=2)
        assert handle.startswith("sweep://")
        assert len(still.batch.jobs) == 2
        first = next(iter(still.batch.jobs))
        still.batch.advance(first, "SUCCEEDED")
        point_jobs.submit_points(runner, handle.rpartition("/")[2], wait=False)
        assert len(still.batch.jobs) == 3


def test_calls_of_a_submission(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    scheduler.submit(app(), CFG)
    assert [call.operation for call in still.calls] == [
        "DescribeJobDefinitions",
        "RegisterJobDefinition",
        "SubmitJob",
    ]
    still.calls.clear()
    scheduler.submit(app(), CFG)
    assert [call.operation for call in still.calls] == ["DescribeJobDefinitions", "SubmitJob"]


def test_history_learns_where_the_job_is(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    info = scheduler.submit_dryrun(app(), {**CFG, "region": "eu-west-1"})
    app_id = scheduler.schedule(info)
    assert app_id == info.app_id
    (job,) = still.batch.jobs.values()
    ref = JobRef.from_text(info.native_id)
    assert (ref.job_id, ref.region, ref.profile) == (job.id, "eu-west-1", "")
    assert JobRef.from_text(ref._replace(profile="a b").to_text()).profile == "a b"
    assert JobRef.from_text("an-id profile=p") == JobRef("an-id", "", "p")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "times", "sent"),
    [
        ("lose_answer", 1, 1),
        ("truncate", 1, 1),
        ("drop", 1, 2),
        ("server_error", 2, 3),
        ("throttle", 3, 4),
        ("throttle", 4, 5),
    ],
)
def test_one_job_whatever_is_lost(
    still: FakeAws, scheduler: AWSBatchScheduler, pauses: list[float], fault: str, times: int, sent: int
) -> None:
    still.faults.add("SubmitJob", fault, times)
    app_id = scheduler.submit(app(), CFG)
    assert names_of(still) == [app_id.partition(":")[2]]
    assert still.count("SubmitJob") == sent
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.state is AppState.PENDING


def test_a_job_that_cannot_be_seen_yet_is_not_kept_twice(
    still: FakeAws, scheduler: AWSBatchScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost submission shows only after the second one was sent: the first job stays, the second ends."""
    still.batch.visible_after = 3600
    still.faults.add("SubmitJob", "lose_answer")
    paused: list[float] = []

    def sleep(clock: Clock, seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == batch_jobs.LOOKS:  # the pause before the second submission
            still.batch.visible_after = 0
            for job in still.batch.jobs.values():
                job.visible_at = 0

    monkeypatch.setattr(Clock, "sleep", sleep)
    app_id = scheduler.submit(app(), CFG)
    first, second = still.batch.jobs.values()
    assert first.name == second.name == app_id.partition(":")[2]
    assert (first.status, second.status) == ("SUBMITTED", "FAILED")
    assert second.status_reason == submission.DUPLICATE
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.state is AppState.PENDING


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("denied", AwsForbiddenError),
        ("expired_token", AwsCredentialsError),
        ("bad_key", AwsCredentialsError),
    ],
)
def test_a_refusal_is_not_repeated(
    still: FakeAws, scheduler: AWSBatchScheduler, pauses: list[float], fault: str, error: type[AwsError]
) -> None:
    still.faults.add("SubmitJob", fault, None)
    with pytest.raises(error):
        scheduler.submit(app(), CFG)
    assert still.count("SubmitJob") == 1
    assert pauses == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [("throttle", AwsThrottledError), ("drop", AwsUnreachableError), ("server_error", AwsError)],
)
def test_attempts_come_to_an_end(
    still: FakeAws, scheduler: AWSBatchScheduler, pauses: list[float], fault: str, error: type[AwsError]
) -> None:
    still.faults.add("SubmitJob", fault, None)
    with pytest.raises(error):
        scheduler.submit(app(), CFG)
    assert still.count("SubmitJob") == batch_jobs.ATTEMPTS
    assert not still.batch.jobs


def test_refusals_of_batch_come_with_its_words(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    still.batch.add_queue(
        "fair", schedulingPolicyArn="arn:aws:batch:eu-west-1:123456789012:scheduling-policy/p"
    )
    with pytest.raises(AwsError, match="fair share"):
        scheduler.submit(app(), {"queue": "fair"})
    with pytest.raises(AwsError, match="nowhere not found"):
        scheduler.submit(app(), {"queue": "nowhere"})
    app_id = scheduler.submit(app(), {"queue": "fair", "share_id": "team", "priority": 3})
    (job,) = still.batch.jobs.values()
    assert job.request["shareIdentifier"] == "team"
    assert job.definition["schedulingPriority"] == 3
    assert app_id.startswith("fair:train-me-team-")


def test_definitions_by_content(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    for _ in range(3):
        scheduler.submit(app(role(args=["--out", "${app_id}"])), CFG)
    scheduler.submit(app(role(args=["other"])), CFG)
    assert still.count("RegisterJobDefinition") == 2
    assert {len(revisions) for revisions in still.batch.definitions.values()} == {1}
    outs = [job.container["command"][-1] for job in still.batch.jobs.values()][:3]
    assert outs == names_of(still)[:3]


def test_definitions_are_collected_when_no_job_needs_them(
    still: FakeAws, scheduler: AWSBatchScheduler
) -> None:
    scheduler.submit(app(role(args=["old"])), CFG)
    needed = scheduler.submit(app(role(args=["needed"])), CFG)
    first, second = still.batch.jobs.values()
    still.batch.finish(first.id)
    assert scheduler.leftovers({}, 3600) == []
    found = scheduler.leftovers({}, 0)
    assert [item.id for item in found] == [first.definition["jobDefinitionArn"]]
    scheduler.remove_leftovers({}, found)
    assert first.definition["status"] == "INACTIVE"
    assert scheduler.leftovers({}, 0) == []
    still.batch.finish(second.id)
    assert [item.id for item in scheduler.leftovers({}, 0)] == [second.definition["jobDefinitionArn"]]
    assert scheduler.describe(needed) is not None
    scheduler.submit(app(role(args=["old"])), CFG)  # registered again
    assert [d["revision"] for d in still.batch.definitions[first.definition["jobDefinitionName"]]] == [1, 2]


def test_region_of_a_queues_arn(still: FakeAws) -> None:
    queue = "arn:aws:batch:eu-west-1:123456789012:job-queue/queue"
    scheduler = create_scheduler("test")
    app_id = scheduler.submit(app(), {"queue": queue})
    assert app_id.startswith("queue:train-me-")
    response = scheduler.describe(app_id)
    assert response is not None
    assert scheduler.list({"queue": queue})[0].app_id == app_id
    scheduler.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "lost"), [("", "/opt/ml/model"), ("/out", "/out"), ("/mnt/out", ""), ("s3://bucket/p", "")]
)
def test_results_of_a_script_are_where_it_is_said_or_lost_with_a_word(
    still: FakeAws, scheduler: AWSBatchScheduler, output: str, lost: str
) -> None:
    mounts = ["type=bind", "src=/efs", "dst=/mnt"]
    job = script(script="train.py", image="me/train:1", output=output, mounts=mounts)
    start_toolkits(job, scheduler.backend, scheduler.capabilities, scheduler._toolkit_place)
    info = scheduler.submit_dryrun(job, {**CFG, "image_repo": "me/jobs"})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        app_id = scheduler.schedule(info)
    assert [f"writes to {lost} is lost" in str(warning.message) for warning in said] == [True] * bool(lost)
    response = scheduler.describe(app_id)
    assert response is not None
    expected = f"{output}/{app_id.partition(':')[2]}/output" if output else None
    assert response.to_status().results == expected
