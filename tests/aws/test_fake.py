"""The fake of AWS: what tests rely on, seen through botocore's clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.aws.fake import FakeAws, wire
from tests.aws.fake.faults import KINDS
from tests.aws.logtools import sdk_session


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with FakeAws() as fake:
        yield fake
        assert fake.defects == []


@pytest.fixture
def batch(aws: FakeAws) -> Any:
    return client(aws, "batch")


def client(aws: FakeAws, service: str, **options: Any) -> Any:
    from botocore.config import Config

    config = Config(retries={"total_max_attempts": 1}, inject_host_prefix=False, **options)
    return sdk_session().create_client(
        service,
        region_name=wire.REGION,
        endpoint_url=aws.url,
        config=config,
        aws_access_key_id="AKIAEXAMPLE",
        aws_secret_access_key="example",
    )


def container(script: str, **more: Any) -> dict[str, Any]:
    return {"image": "any", "command": ["sh", "-c", script], **more}


def define(batch: Any, script: str = "true", name: str = "definition", **more: Any) -> str:
    arn: str = batch.register_job_definition(
        jobDefinitionName=name, type="container", containerProperties=container(script), **more
    )["jobDefinitionArn"]
    return arn


def submit(batch: Any, name: str = "job", definition: str = "definition", **more: Any) -> str:
    job_id: str = batch.submit_job(jobName=name, jobQueue="queue", jobDefinition=definition, **more)["jobId"]
    return job_id


def describe(batch: Any, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = batch.describe_jobs(jobs=[job_id])["jobs"][0]
    return found


def refusal(call: Any, **params: Any) -> str:
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError) as caught:
        call(**params)
    return str(caught.value)


def lines(aws: FakeAws, stream: str, group: str = "/aws/batch/job") -> list[str]:
    events = client(aws, "logs").get_log_events(logGroupName=group, logStreamName=stream, startFromHead=True)
    return [event["message"] for event in events["events"]]


# ---- jobs that run


def test_a_container_job_runs(aws: FakeAws, batch: Any) -> None:
    define(batch, "echo $NAME; echo err >&2; echo; printf last; exit 3")
    overrides = {"environment": [{"name": "NAME", "value": "me"}]}
    job_id = submit(batch, containerOverrides=overrides, tags={"a": "b"})
    aws.batch.wait(job_id)
    job = describe(batch, job_id)
    assert (job["status"], job["container"]["exitCode"], job["tags"]) == ("FAILED", 3, {"a": "b"})
    assert lines(aws, job["attempts"][0]["container"]["logStreamName"]) == ["me", "err", "last"]
    assert job["createdAt"] <= job["startedAt"] <= job["stoppedAt"]


def test_nodes_run_and_know_their_place(aws: FakeAws, batch: Any, tmp_path: Path) -> None:
    names = ("NODE_INDEX", "NUM_NODES", "MAIN_NODE_PRIVATE_IPV4_ADDRESS")
    script = "echo " + " ".join(f"[$AWS_BATCH_JOB_{name}]" for name in names)
    until = f"until [ -e {tmp_path}/done ]; do sleep 0.02; done"  # the main node's end would end the others
    ranges = [
        {"targetNodes": "0:1", "container": container(f"{script}; {until}")},
        {"targetNodes": "2:", "container": container(f"{script} second; touch {tmp_path}/done")},
    ]
    nodes = {"numNodes": 3, "mainNode": 0, "nodeRangeProperties": ranges}
    batch.register_job_definition(jobDefinitionName="mnp", type="multinode", nodeProperties=nodes)
    job_id = submit(batch, definition="mnp")
    aws.batch.wait(f"{job_id}#2")
    assert aws.batch.wait(job_id).status == "SUCCEEDED"
    children = batch.list_jobs(multiNodeJobId=job_id)["jobSummaryList"]
    assert [child["nodeProperties"]["nodeIndex"] for child in children] == [0, 1, 2]
    found = [describe(batch, child["jobId"]) for child in children]
    assert [node["nodeDetails"]["isMainNode"] for node in found] == [True, False, False]
    streams = [node["attempts"][0]["container"]["logStreamName"] for node in found]
    assert lines(aws, streams[0]) == ["[0] [3] []"]
    assert lines(aws, streams[2]) == ["[2] [3] [127.0.0.1] second"]
    assert "container" not in describe(batch, job_id)


def test_an_array_runs(aws: FakeAws, batch: Any) -> None:
    define(batch, "exit $AWS_BATCH_JOB_ARRAY_INDEX")
    job_id = submit(batch, arrayProperties={"size": 2})
    aws.batch.wait(job_id)
    job = describe(batch, job_id)
    assert job["status"] == "FAILED"
    assert job["arrayProperties"]["statusSummary"]["SUCCEEDED"] == 1
    assert [describe(batch, f"{job_id}:{i}")["container"]["exitCode"] for i in range(2)] == [0, 1]


def test_attempts_by_the_rules(aws: FakeAws, batch: Any) -> None:
    rules = [{"onExitCode": "7", "action": "EXIT"}, {"onReason": "*", "action": "RETRY"}]
    define(
        batch,
        "echo $AWS_BATCH_JOB_ATTEMPT; [ $AWS_BATCH_JOB_ATTEMPT -lt 3 ] || exit 7; exit 1",
        retryStrategy={"attempts": 5, "evaluateOnExit": rules},
    )
    job_id = submit(batch)
    aws.batch.wait(job_id)
    attempts = describe(batch, job_id)["attempts"]
    assert [attempt["container"]["exitCode"] for attempt in attempts] == [1, 1, 7]
    streams = [attempt["container"]["logStreamName"] for attempt in attempts]
    assert [lines(aws, stream) for stream in streams] == [["1"], ["2"], ["3"]]


def test_a_command_that_is_not_there(aws: FakeAws, batch: Any) -> None:
    properties = {"image": "any", "command": ["/no/such/thing"]}
    batch.register_job_definition(jobDefinitionName="d", type="container", containerProperties=properties)
    job_id = submit(batch, definition="d")
    aws.batch.wait(job_id)
    assert "CannotStartContainerError" in describe(batch, job_id)["container"]["reason"]


def test_terminating_and_cancelling(aws: FakeAws, batch: Any) -> None:
    define(batch, "sleep 1000")
    job_id = submit(batch)
    aws.batch.wait(job_id, "RUNNING")
    batch.cancel_job(jobId=job_id, reason="does nothing")
    assert describe(batch, job_id)["status"] == "RUNNING"
    batch.terminate_job(jobId=job_id, reason="enough")
    aws.batch.wait(job_id)
    job = describe(batch, job_id)
    assert (job["status"], job["statusReason"], job["isTerminated"]) == ("FAILED", "enough", True)
    assert job["attempts"][0]["container"]["exitCode"] == 137
    batch.terminate_job(jobId="unknown", reason="nothing happens")


# ---- jobs that a test drives


def test_driving_a_job(aws: FakeAws, batch: Any) -> None:
    aws.batch.runs = False
    define(batch, retryStrategy={"attempts": 2})
    job_id = submit(batch)
    assert describe(batch, job_id)["status"] == "SUBMITTED"
    aws.batch.advance(job_id, "RUNNABLE", "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE")
    assert "MAX_RESOURCE" in describe(batch, job_id)["statusReason"]
    aws.batch.advance(job_id, "RUNNING")
    aws.batch.log(job_id, "hello")
    stream = describe(batch, job_id)["container"]["logStreamName"]
    assert lines(aws, stream) == ["hello"]
    aws.batch.finish(job_id, None, status_reason="Host EC2 (instance i-1) terminated.")
    assert describe(batch, job_id)["status"] == "RUNNABLE"
    aws.batch.finish(job_id, 0)
    job = describe(batch, job_id)
    assert (job["status"], len(job["attempts"])) == ("SUCCEEDED", 2)
    waiting = submit(batch)
    batch.cancel_job(jobId=waiting, reason="not wanted")
    assert describe(batch, waiting)["isCancelled"]


def test_a_job_is_not_seen_at_once(aws: FakeAws, batch: Any) -> None:
    aws.batch.runs = False
    aws.batch.visible_after = 1000
    define(batch)
    job_id = submit(batch)
    name = [{"name": "JOB_NAME", "values": ["job"]}]
    assert batch.describe_jobs(jobs=[job_id])["jobs"] == []
    assert batch.list_jobs(jobQueue="queue", filters=name)["jobSummaryList"] == []
    aws.batch.job(job_id).visible_at = 0
    assert len(batch.list_jobs(jobQueue="queue", filters=name)["jobSummaryList"]) == 1


def test_lists_have_pages(aws: FakeAws, batch: Any) -> None:
    aws.batch.runs = False
    define(batch)
    ids = [submit(batch, f"job-{i % 2}-{i}") for i in range(250)]
    everything = [{"name": "AFTER_CREATED_AT", "values": ["1"]}]
    page = batch.list_jobs(jobQueue="queue", filters=everything)
    assert len(page["jobSummaryList"]) == 100
    found, token = [], None
    while True:
        more = {"nextToken": token} if token else {}
        page = batch.list_jobs(jobQueue="queue", filters=everything, maxResults=30, **more)
        assert len(page["jobSummaryList"]) <= 30
        found += [job["jobId"] for job in page["jobSummaryList"]]
        token = page.get("nextToken")
        if not token:
            break
    assert found == ids[::-1]
    assert batch.list_jobs(jobQueue="queue")["jobSummaryList"] == []  # running ones only
    assert len(batch.list_jobs(jobQueue="queue", jobStatus="SUBMITTED")["jobSummaryList"]) == 250
    some = batch.list_jobs(jobQueue="queue", filters=[{"name": "JOB_NAME", "values": ["JOB-1-1*"]}])
    assert {job["jobName"] for job in some["jobSummaryList"]} == {
        f"job-1-{i}" for i in range(1, 250, 2) if str(i)[0] == "1"
    }
    assert "at most 100" in refusal(batch.describe_jobs, jobs=ids[:101])


def test_definitions(aws: FakeAws, batch: Any) -> None:
    arns = [define(batch, tags={"i": f"{i}"}) for i in range(3)]
    assert [arn.rpartition(":")[2] for arn in arns] == ["1", "2", "3"]
    batch.deregister_job_definition(jobDefinition=arns[2])
    active = batch.describe_job_definitions(jobDefinitionName="definition", status="ACTIVE")
    assert [found["revision"] for found in active["jobDefinitions"]] == [1, 2]
    aws.batch.runs = False
    assert describe(batch, submit(batch))["jobDefinition"] == arns[1]
    assert "is not active" in refusal(batch.submit_job, jobName="j", jobQueue="queue", jobDefinition=arns[2])
    assert batch.list_tags_for_resource(resourceArn=arns[0])["tags"] == {"i": "0"}
    batch.tag_resource(resourceArn=arns[0], tags={"x": "y"})
    assert batch.list_tags_for_resource(resourceArn=arns[0])["tags"] == {"i": "0", "x": "y"}


def test_what_aws_refuses(aws: FakeAws, batch: Any) -> None:
    aws.batch.add_queue("fair", schedulingPolicyArn="arn:aws:batch:eu-west-1:1:scheduling-policy/p")
    aws.batch.runs = False
    define(batch)
    job = {"jobName": "j", "jobDefinition": "definition"}
    assert "required for fair share" in refusal(batch.submit_job, jobQueue="fair", **job)
    assert "FIFO" in refusal(batch.submit_job, jobQueue="queue", shareIdentifier="a", **job)
    assert "not found" in refusal(batch.submit_job, jobQueue="nowhere", **job)
    assert "at least 60" in refusal(
        batch.submit_job, jobQueue="queue", timeout={"attemptDurationSeconds": 5}, **job
    )
    ranges = [{"targetNodes": "0:1", "container": container("true")}]
    nodes = {"numNodes": 3, "mainNode": 0, "nodeRangeProperties": ranges}
    assert "cover all nodes" in refusal(
        batch.register_job_definition, jobDefinitionName="d", type="multinode", nodeProperties=nodes
    )
    assert "valid pattern" in refusal(
        batch.register_job_definition,
        jobDefinitionName="a b",
        type="container",
        containerProperties=container("true"),
    )


# ---- faults


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault(aws: FakeAws, batch: Any, kind: str) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    whole = batch.describe_job_queues()
    aws.faults.add("DescribeJobQueues", kind)
    try:
        answer = batch.describe_job_queues()
    except (ClientError, BotoCoreError) as error:
        failed = str(error)
    else:
        failed = ""
    names = {
        "throttle": "TooManyRequests",
        "server_error": "ServerException",
        "expired_token": "ExpiredToken",
        "bad_key": "UnrecognizedClient",
        "invalid_page_token": "nextToken",
        "denied": "batch:DescribeJobQueues",
        "drop": "closed",
        "lose_answer": "closed",
    }
    if kind in names:
        assert names[kind] in failed
    elif kind == "repeat":
        assert answer["jobQueues"] == whole["jobQueues"]
    elif kind == "empty_page":
        assert answer["jobQueues"] == []
        assert "nextToken" in answer
    else:
        assert "jobQueues" not in answer  # botocore makes an empty answer of a cut one
    assert aws.faults.happened == [("DescribeJobQueues", kind)]
    assert batch.describe_job_queues()["jobQueues"] == whole["jobQueues"]


def test_a_submission_whose_answer_is_lost_has_happened(aws: FakeAws, batch: Any) -> None:
    from botocore.exceptions import ConnectionClosedError

    aws.batch.runs = False
    define(batch)
    aws.faults.add("SubmitJob", "lose_answer")
    with pytest.raises(ConnectionClosedError):
        submit(batch)
    name = [{"name": "JOB_NAME", "values": ["job"]}]
    assert len(batch.list_jobs(jobQueue="queue", filters=name)["jobSummaryList"]) == 1
    submit(batch)  # names need not be unique: AWS takes it again
    assert len(batch.list_jobs(jobQueue="queue", filters=name)["jobSummaryList"]) == 2


def test_faults_that_wait_and_choose(aws: FakeAws, batch: Any) -> None:
    aws.faults.add("DescribeJobs", "denied", times=None, skip=1, when=lambda params: params["jobs"] == ["b"])
    for jobs, is_refused in ((["b"], False), (["a"], False), (["b"], True), (["b"], True), (["a"], False)):
        if is_refused:
            assert "AccessDenied" in refusal(batch.describe_jobs, jobs=jobs)
        else:
            batch.describe_jobs(jobs=jobs)


# ---- the wire


def test_answers_that_aws_cannot_give_are_defects() -> None:
    with pytest.raises(wire.WrongAnswerError, match="jobName"):
        wire.check_answer("batch", "SubmitJob", {"jobId": "x"})
    with pytest.raises(wire.WrongAnswerError, match="BOGUS"):
        wire.check_answer(
            "batch", "ListJobs", {"jobSummaryList": [{"jobId": "i", "jobName": "n", "status": "BOGUS"}]}
        )
    with FakeAws() as aws:
        aws.batch.add_environment("broken", state="SLEEPING")
        assert "FakeDefect" in refusal(client(aws, "batch").describe_compute_environments)
        assert len(aws.defects) == 1


def test_requests_that_aws_would_not_take(aws: FakeAws) -> None:
    batch = client(aws, "batch", parameter_validation=False)
    assert "Missing required parameter" in refusal(batch.submit_job, jobName="x")
    assert aws.defects == []


def test_identity(aws: FakeAws) -> None:
    assert client(aws, "sts").get_caller_identity()["Arn"] == aws.identity.user
    iam = client(aws, "iam")
    assert "cannot be found" in refusal(iam.get_role, RoleName="nobody")
    aws.identity.roles.add("somebody")
    assert iam.get_role(RoleName="somebody")["Role"]["Arn"].endswith("role/somebody")
    aws.identity.forbidden.add("batch:Submit*")
    results = iam.simulate_principal_policy(
        PolicySourceArn=aws.identity.user, ActionNames=["batch:SubmitJob", "batch:ListJobs"]
    )["EvaluationResults"]
    assert [result["EvalDecision"] for result in results] == ["implicitDeny", "allowed"]


def test_log_groups_and_streams_have_pages(aws: FakeAws) -> None:
    logs = client(aws, "logs")
    for i in range(120):
        aws.logs.create_stream("group", f"s{i:03}")
    aws.logs.put("group", "s007", ["x"])
    names, token = [], None
    while True:
        page = logs.describe_log_streams(logGroupName="group", **({"nextToken": token} if token else {}))
        names += [stream["logStreamName"] for stream in page["logStreams"]]
        token = page.get("nextToken")
        if not token:
            break
    assert names == [f"s{i:03}" for i in range(120)]
    newest = logs.describe_log_streams(
        logGroupName="group", orderBy="LastEventTime", descending=True, limit=1
    )
    assert newest["logStreams"][0]["logStreamName"] == "s007"
    assert "does not exist" in refusal(logs.describe_log_streams, logGroupName="other")
    logs.create_log_group(logGroupName="other")
    assert "already exists" in refusal(logs.create_log_group, logGroupName="other")


def test_events_that_come_late_lie_before_the_token(aws: FakeAws) -> None:
    """This is why a reader must not trust tokens alone."""
    logs = client(aws, "logs")
    place: dict[str, Any] = {"logGroupName": "group", "logStreamName": "s", "startFromHead": True}
    aws.logs.put("group", "s", [(1000, "a"), (3000, "b")])
    token = logs.get_log_events(**place)["nextForwardToken"]
    aws.logs.put("group", "s", [(2000, "late"), (3000, "c")])
    page = logs.get_log_events(nextToken=token, **place)
    assert [event["message"] for event in page["events"]] == ["c"]
    assert (
        logs.get_log_events(nextToken=page["nextForwardToken"], **place)["nextForwardToken"]
        == page["nextForwardToken"]
    )
    assert [event["message"] for event in logs.get_log_events(**place)["events"]] == ["a", "late", "b", "c"]
