"""Jobs that go through a queue of AWS Batch: Batch by our fake, their training jobs by our own endpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shunter.components.train import script
from shunter.components.utils import sh
from shunter.errors import ConfigError, UnknownAppException
from shunter.runner.preparation import inject
from shunter.schedulers.aws import batch_jobs
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws_sagemaker_scheduler import names
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.request import make_job
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler, create_scheduler
from shunter.specs.app import AppDef, Role
from shunter.specs.status import AppState
from tests.aws.fake import FakeAws, wire
from tests.aws.fake.service_jobs import ServiceJob
from tests.sagemaker.remote.conftest import Cloud, eventually

FROM_SAGEMAKER = "Received status from SageMaker: "


class Queue:
    """A queue, and what happens to its jobs."""

    def __init__(self, aws: FakeAws, cloud: Cloud) -> None:
        self.aws = aws
        self.cloud = cloud
        aws.batch.add_queue("gpu", (), jobQueueType="SAGEMAKER_TRAINING")
        aws.services.create = self._create
        aws.services.stop = lambda name: self._sagemaker().stop_training_job(TrainingJobName=name)

    def _sagemaker(self) -> Any:
        import botocore.session

        return botocore.session.Session().create_client("sagemaker", region_name=wire.REGION)

    def _create(self, request: dict[str, Any]) -> str:
        arn: str = self._sagemaker().create_training_job(**request)["TrainingJobArn"]
        return arn

    def job(self, app_id: str) -> ServiceJob:
        return self.aws.services.of_name(app_id.rpartition(":")[2])

    def move(self, app_id: str, *states: str) -> ServiceJob:
        job = self.job(app_id)
        for state in states:
            self.aws.services.advance(job, state)
        return job

    def training(self, job: ServiceJob) -> dict[str, Any]:
        name = job.latest.rpartition("/")[2]
        found: dict[str, Any] = self._sagemaker().describe_training_job(TrainingJobName=name)
        return found

    def run(self, app_id: str) -> ServiceJob:
        """Let the next attempt run to its end, and Batch notice it."""
        job = self.move(app_id, "RUNNABLE", "SCHEDULED", "STARTING", "RUNNING")
        self.settle(app_id)
        return job

    def settle(self, app_id: str) -> None:
        job = self.job(app_id)
        ended = ("Completed", "Failed", "Stopped")
        eventually(lambda: self.training(job)["TrainingJobStatus"] in ended)
        found = self.training(job)
        succeeded = found["TrainingJobStatus"] == "Completed"
        said = "Training job completed" if succeeded else found.get("FailureReason", "Training job stopped")
        self.aws.services.end_attempt(job, FROM_SAGEMAKER + said, succeeded=succeeded)


@pytest.fixture
def queue(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    with FakeAws() as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BATCH", aws.url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", wire.REGION)
        monkeypatch.setattr(batch_jobs, "FIRST_DELAY", 0.05)
        yield Queue(aws, cloud)
    assert aws.defects == []


def options(cloud: Cloud, **more: Any) -> dict[str, Any]:
    return {
        "role": cloud.role,
        "instance_type": "ml.m5.large",
        "output_path": f"s3://{cloud.bucket}/results",
        "batch_queue": "gpu",
        **more,
    }


def submit(scheduler: AWSSageMakerScheduler, app: AppDef, cfg: dict[str, Any]) -> str:
    inject(app, scheduler.backend, scheduler.session_name)
    return scheduler.submit(app, cfg)


def described(scheduler: AWSSageMakerScheduler, app_id: str) -> Any:
    response = scheduler.describe(app_id)
    assert response is not None
    return response


@pytest.mark.slow
def test_a_job_from_the_queue_to_its_end(
    cloud: Cloud,
    queue: Queue,
    scheduler: AWSSageMakerScheduler,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(project)
    cfg = options(cloud, batch_priority=7)
    app_id = submit(scheduler, script("--lr", "0.1", script="train.py", image="i:1"), cfg)
    assert app_id.startswith("gpu:train-")
    job = queue.job(app_id)
    assert job.payload["TrainingJobName"] == job.name == job.request["clientToken"]
    assert job.payload["RoleArn"] == cloud.role_arn
    assert job.request["schedulingPriority"] == 7
    assert job.request["tags"][names.TAG_QUEUED] == app_id

    waiting = described(scheduler, app_id)
    assert (waiting.state, waiting.msg) == (AppState.PENDING, "AWS Batch has not processed it yet")
    assert [(role.role, len(role.replicas)) for role in waiting.roles_statuses] == [("train", 1)]
    assert waiting.ui_url.endswith(f"#jobs/service-job/detail/{job.id}")
    queue.move(app_id, "RUNNABLE")
    assert described(scheduler, app_id).msg == "waits in the queue for its turn and for capacity"
    assert list(scheduler.log_iter(app_id, "train")) == []
    queue.move(app_id, "SCHEDULED")
    assert described(scheduler, app_id).state == AppState.PENDING
    queue.move(app_id, "STARTING", "RUNNING")
    assert described(scheduler, app_id).state == AppState.RUNNING
    queue.settle(app_id)

    response = scheduler.wait(app_id, 30)
    assert response is not None
    assert (response.state, response.num_restarts) == (AppState.SUCCEEDED, 0)
    assert "it runs\n" in list(scheduler.log_iter(app_id, "train"))
    name = job.latest.rpartition("/")[2]
    assert response.metadata["training_jobs"] == name
    assert response.metadata["output"] == f"s3://{cloud.bucket}/results/{name}/output"
    assert response.metadata["batch_queue"] == "gpu"
    # the handle alone leads to it: here nothing is remembered
    other = create_scheduler("other")
    assert described(other, app_id).state == AppState.SUCCEEDED
    other.close()


@pytest.mark.slow
def test_attempts_follow_each_other_with_their_logs(
    cloud: Cloud, queue: Queue, scheduler: AWSSageMakerScheduler
) -> None:
    app = sh("true", image="i:1", max_retries=1)
    app.roles[0].args = ["-c", 'echo "one more"; exit 3']
    rules = [f"{FROM_SAGEMAKER}AlgorithmError*:retry", "*:final"]
    app_id = submit(scheduler, app, options(cloud, batch_retry_rules=rules))
    assert queue.job(app_id).request["retryStrategy"] == {
        "attempts": 2,
        "evaluateOnExit": [
            {"action": "RETRY", "onStatusReason": f"{FROM_SAGEMAKER}AlgorithmError*"},
            {"action": "EXIT", "onStatusReason": "*"},
        ],
    }
    first = queue.run(app_id).latest
    again = described(scheduler, app_id)
    assert again.state == AppState.PENDING
    assert "attempt 1 of 2 has ended: AlgorithmError" in again.msg
    assert [replica.exit_code for role in again.roles_statuses for replica in role.replicas] == [None]
    assert queue.run(app_id).latest != first
    failed = described(scheduler, app_id)
    assert (failed.state, failed.num_restarts) == (AppState.FAILED, 1)
    assert "exit code: 3" in failed.msg
    assert [replica.exit_code for role in failed.roles_statuses for replica in role.replicas] == [3]
    assert failed.metadata["attempt_1"].startswith("AlgorithmError")
    assert list(scheduler.log_iter(app_id, "sh")) == ["one more\n"] * 2


@pytest.mark.slow
def test_a_log_is_followed_from_the_queue_over_all_attempts(
    cloud: Cloud, queue: Queue, scheduler: AWSSageMakerScheduler
) -> None:
    app = sh("true", image="i:1")
    app.roles[0].args = ["-c", "echo started; exit 1"]
    app_id = submit(scheduler, app, options(cloud, batch_attempts=2))
    lines = scheduler.log_iter(app_id, "sh", should_tail=True)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.extend(lines), daemon=True)
    reader.start()
    queue.run(app_id)
    eventually(lambda: len(found) == 1)
    queue.run(app_id)
    reader.join(30)
    assert found == ["started\n"] * 2


@pytest.mark.slow
def test_jobs_are_cancelled_in_the_queue_and_while_they_run(
    cloud: Cloud, queue: Queue, scheduler: AWSSageMakerScheduler
) -> None:
    waiting = submit(scheduler, sh("sleep", "600", image="i:1"), options(cloud))
    scheduler.cancel(waiting)
    response = described(scheduler, waiting)
    assert response.state == AppState.CANCELLED
    assert response.msg.startswith("cancelled by ")
    running = submit(scheduler, sh("sleep", "600", image="i:1"), options(cloud))
    job = queue.move(running, "SCHEDULED", "STARTING", "RUNNING")
    eventually(lambda: queue.training(job)["SecondaryStatus"] == "Training")
    scheduler.cancel(running)
    assert described(scheduler, running).state == AppState.RUNNING
    queue.settle(running)
    assert described(scheduler, running).state == AppState.CANCELLED
    scheduler.cancel(running)
    assert queue.aws.count("TerminateServiceJob") == 2


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lose_answer", "drop", "server_error", "throttle"])
@pytest.mark.parametrize("lag", [0.0, 0.2])
def test_a_repeated_submission_is_one_job(
    cloud: Cloud, queue: Queue, scheduler: AWSSageMakerScheduler, fault: str, lag: float
) -> None:
    queue.aws.services.visible_after = lag
    queue.aws.faults.add("SubmitServiceJob", fault)
    app_id = submit(scheduler, sh("true", image="i:1"), options(cloud))
    assert [job.name for job in queue.aws.services.jobs.values()] == [app_id.rpartition(":")[2]]
    eventually(lambda: described(scheduler, app_id).state == AppState.PENDING)


def test_a_refused_submission_is_no_job(cloud: Cloud, queue: Queue, scheduler: AWSSageMakerScheduler) -> None:
    queue.aws.batch.add_queue("shared", (), jobQueueType="SAGEMAKER_TRAINING", schedulingPolicyArn="arn:p")
    with pytest.raises(AwsError, match="fair-share"):
        submit(scheduler, sh("true", image="i:1"), options(cloud, batch_queue="shared"))
    queue.aws.batch.add_queue("off", (), jobQueueType="SAGEMAKER_TRAINING", state="DISABLED")
    for name, said in (
        ("none", "there is no job queue none"),
        ("queue", "queue is a job queue of the type ECS"),
        ("off", "the job queue off is DISABLED"),
    ):
        with pytest.raises(ConfigError, match=said):
            submit(scheduler, sh("true", image="i:1"), options(cloud, batch_queue=name))
    assert queue.aws.services.jobs == {}
    cfg = options(cloud, batch_queue="shared", batch_share_identifier="team")
    assert submit(scheduler, sh("true", image="i:1"), cfg).startswith("shared:")


@pytest.mark.slow
def test_many_jobs_are_described_with_one_call(
    cloud: Cloud, queue: Queue, scheduler: AWSSageMakerScheduler
) -> None:
    app_ids = [submit(scheduler, sh("true", image="i:1"), options(cloud)) for _ in range(6)]
    queue.move(app_ids[0], "RUNNABLE", "SCHEDULED", "STARTING", "RUNNING")
    queue.aws.calls.clear()
    found = scheduler.describe_many([*app_ids, "gpu:never"])
    assert [found[app_id].state for app_id in app_ids] == [  # type: ignore[union-attr]
        AppState.RUNNING,
        *[AppState.PENDING] * 5,
    ]
    assert found["gpu:never"] is None
    # one page for all that there are, and a question for the one that there is not
    assert [call.operation for call in queue.aws.calls] == ["ListServiceJobs"] * 2
    other = create_scheduler("other")
    assert set(other.describe_many(app_ids)) == set(app_ids)
    other.close()


@pytest.mark.slow
def test_lists_hold_a_job_once(cloud: Cloud, queue: Queue, scheduler: AWSSageMakerScheduler) -> None:
    direct = submit(scheduler, sh("true", image="i:1"), options(cloud, batch_queue=None))
    waiting = submit(scheduler, sh("true", image="i:1"), options(cloud))
    done = submit(scheduler, sh("true", image="i:1"), options(cloud))
    queue.run(done)
    eventually(lambda: described(scheduler, direct).state == AppState.SUCCEEDED)
    foreign = {**queue.job(waiting).request, "jobName": "foreign", "clientToken": "f", "tags": {"a": "b"}}
    queue.aws.services.submit(queue.job(waiting).queue, foreign)
    states = {direct: AppState.SUCCEEDED, waiting: AppState.PENDING, done: AppState.SUCCEEDED}
    rows = scheduler.list()
    assert {row.app_id: row.state for row in rows} == states
    assert len(rows) == len(states)
    assert {row.name for row in rows} == {"sh"}
    queue.aws.calls.clear()
    assert {row.app_id for row in scheduler.list({"batch_queue": "gpu"})} == {waiting, done}
    # one call for the queue, and one for the tags of each job that has no training job of ours yet
    asked = sorted(call.operation for call in queue.aws.calls)
    assert asked == ["DescribeServiceJob"] * 2 + ["ListServiceJobs"]
    assert {row.app_id for row in scheduler.list({"all": True})} == {*states, "gpu:foreign"}
    with pytest.raises(ConfigError, match="Cancel it first"):
        scheduler.delete(waiting)
    scheduler.delete(done)
    assert scheduler.describe(done) is None
    assert {row.app_id for row in scheduler.list()} == {direct, waiting}


@pytest.mark.slow
def test_who_may_not_look_at_queues_has_a_list(
    cloud: Cloud, queue: Queue, scheduler: AWSSageMakerScheduler
) -> None:
    app_id = submit(scheduler, sh("true", image="i:1"), options(cloud))
    queue.run(app_id)
    queue.aws.faults.add("", "denied", times=None)
    # by its training job, which has the tags
    assert [(row.app_id, row.state) for row in scheduler.list()] == [(app_id, AppState.SUCCEEDED)]
    with pytest.raises(AwsError, match="lacks the permission batch:ListServiceJobs"):
        scheduler.list({"batch_queue": "gpu"})
    queue.aws.faults.clear()
    queue.aws.batch.queues.clear()
    assert [row.app_id for row in scheduler.list()] == [app_id]
    with pytest.raises(AwsError, match="JobQueue gpu not found"):
        scheduler.list({"batch_queue": "gpu"})


def test_what_is_not_in_the_queue(cloud: Cloud, queue: Queue, scheduler: AWSSageMakerScheduler) -> None:
    for app_id in ("gpu:never", "none:never"):
        assert scheduler.describe(app_id) is None
        assert not scheduler.exists(app_id)
        scheduler.cancel(app_id)
        scheduler.delete(app_id)
        with pytest.raises(UnknownAppException):
            scheduler.log_iter(app_id, "sh")


@pytest.mark.slow
def test_the_doctor_looks_at_the_queue(cloud: Cloud, queue: Queue, scheduler: AWSSageMakerScheduler) -> None:
    def check(name: str) -> tuple[bool | None, str]:
        checks = {check.name: check for check in scheduler.doctor(options(cloud, batch_queue=name))}
        assert "batch:SubmitServiceJob" in checks["policy of the caller"].text
        return checks["queue"].ok, checks["queue"].text

    queue.aws.batch.add_queue("off", (), jobQueueType="SAGEMAKER_TRAINING", state="DISABLED")
    assert check("gpu") == (True, "gpu")
    assert check("queue") == (False, "queue is a job queue of the type ECS")
    assert check("off") == (False, "the job queue off is DISABLED, VALID: JobQueue Healthy")
    assert check("none") == (False, "there is no job queue none in eu-west-1")


@pytest.mark.parametrize(
    ("service", "state", "message"),
    [
        ({"status": "SCHEDULED"}, AppState.PENDING, "SageMaker has it"),
        ({"status": "RUNNING", "isTerminated": True}, AppState.RUNNING, "is being stopped"),
        (
            {"status": "FAILED", "statusReason": "by hand", "isTerminated": True},
            AppState.CANCELLED,
            "by hand",
        ),
        (
            {
                "status": "FAILED",
                "statusReason": "Job attempt duration exceeded timeout",
                "isTerminated": True,
            },
            AppState.FAILED,
            "exceeded timeout",
        ),
        (
            {"status": "FAILED", "statusReason": f"{FROM_SAGEMAKER}ClientError: x"},
            AppState.FAILED,
            "ClientError",
        ),
        ({"status": "SOMETHING"}, AppState.UNKNOWN, ""),
    ],
)
def test_states(service: dict[str, Any], state: AppState, message: str) -> None:
    from shunter.schedulers.aws_sagemaker_scheduler.queued_jobs import brief

    response = brief("q:a", service)
    assert response.state == state
    assert message in response.msg


ANY = AppDef("job", [Role("any", "image:1", entrypoint="ls")])
BASE = {"role": "arn:aws:iam::123456789012:role/R", "instance_type": "ml.m5.large"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch_priority": 1}, "batch_priority is given without batch_queue"),
    ({"batch_queue": "q", "batch_retry_rules": ["*:final"]}, "one attempt"),
    ({"batch_queue": "q", "batch_attempts": 2, "batch_retry_rules": ["x:again"]}, "cannot read 'x:again'"),
    ({"batch_queue": "q", "retry": {"node": "1"}}, "batch_attempts and batch_retry_rules"),
    ({"retry": {"node": "1"}, "max_retry_attempts": 1}, "give one of them"),
    ({"retry": {"preempted": "inf"}}, "preempted is for spot instances"),
    ({"retry": {"oom": "1"}}, r"cannot honour oom=1 \(supported: 0\): it never starts a job again"),
    ({"retry": {"node": "31"}}, r"node=31 \(supported: at most 30\)"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_a_queue_does_not_take_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_job(ANY, AWSSageMakerOpts(**BASE, **given))


def test_the_whole_submission_is_shown() -> None:
    job = make_job(
        ANY,
        AWSSageMakerOpts(
            **BASE,
            batch_queue="arn:aws:batch:us-east-1:123456789012:job-queue/q",
            batch_quota_share="vision",
            batch_preemption_retries=2,
            batch_attempts=3,
            batch_timeout=600,
            user="alice",
        ),
    )
    shown = json.loads(str(job))["SubmitServiceJob"]
    assert shown.pop("clientToken")  # which may be redacted
    assert job.submission["clientToken"] == job.job_name
    payload = shown.pop("serviceRequestPayload")
    assert payload["TrainingJobName"] == job.job_name
    assert shown == {
        "jobName": job.job_name,
        "jobQueue": "arn:aws:batch:us-east-1:123456789012:job-queue/q",
        "serviceJobType": "SAGEMAKER_TRAINING",
        "quotaShareName": "vision",
        "timeoutConfig": {"attemptDurationSeconds": 600},
        "retryStrategy": {"attempts": 3},
        "preemptionConfiguration": {"preemptionRetriesBeforeTermination": 2},
        "tags": {tag["Key"]: tag["Value"] for tag in payload["Tags"]},
    }
    assert job.app_id == f"q:{job.job_name}"
