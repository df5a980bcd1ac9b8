"""The endpoint: what boto3 says to it, what others say, what it refuses."""

from __future__ import annotations

import copy
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import botocore.exceptions
import pytest
from botocore.config import Config

from shunter.aws_endpoint.server import EndpointServer, is_own_peer
from shunter.schedulers.sagemaker_local_scheduler.description import NOT_DESCRIBED

from .conftest import ROLE, SIGNED, file_channel

if TYPE_CHECKING:
    from .conftest import Jobs


LIST = "TrainingJobSummaries"


def refused(jobs: Jobs, request: dict[str, Any]) -> str:
    with pytest.raises(botocore.exceptions.ClientError) as error:
        jobs.sagemaker.create_training_job(**request)
    assert error.value.response["Error"]["Code"] == "ValidationException"
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    return str(error.value)


def test_a_mistake_is_refused_before_anything_starts(jobs: Jobs) -> None:
    request = jobs.request("", channels=[file_channel("a", "s3://b/c"), file_channel("a", "s3://b/c")])
    assert "given twice" in refused(jobs, request)
    assert jobs.sagemaker.list_training_jobs()["TrainingJobSummaries"] == []


@pytest.mark.slow
def test_a_name_is_taken_once(jobs: Jobs, processes: str) -> None:
    request = jobs.request("print('x')", name="one")
    jobs.sagemaker.create_training_job(**request)
    with pytest.raises(jobs.sagemaker.exceptions.ResourceInUse, match="already exists") as error:
        jobs.sagemaker.create_training_job(**request)
    assert "training-job/one" in str(error.value)
    jobs.end("one")
    with pytest.raises(jobs.sagemaker.exceptions.ResourceInUse):
        jobs.sagemaker.create_training_job(**request)
    jobs.sagemaker.delete_training_job(TrainingJobName="one")
    jobs.sagemaker.create_training_job(**request)
    assert jobs.end("one")["TrainingJobStatus"] == "Completed"


def test_one_of_many_at_once_gets_the_name(jobs: Jobs, processes: str) -> None:
    request = jobs.request("print('x')", name="race")
    results: list[str] = []

    def create() -> None:
        try:
            jobs.sagemaker.create_training_job(**copy.deepcopy(request))
            results.append("created")
        except jobs.sagemaker.exceptions.ResourceInUse:
            results.append("in use")

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["created"] + ["in use"] * 5
    assert jobs.end("race")["TrainingJobStatus"] == "Completed"


def test_a_description_holds_the_request(jobs: Jobs, processes: str) -> None:
    request = jobs.request(
        "print('x')",
        HyperParameters={"a": '"1"'},
        Environment={"A": "1"},
        RetryStrategy={"MaximumRetryAttempts": 2},
        VpcConfig={"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
    )
    answer = jobs.sagemaker.create_training_job(**request)
    name = request["TrainingJobName"]
    assert answer["TrainingJobArn"] == f"arn:aws:sagemaker:us-west-2:123456789012:training-job/{name}"
    described = jobs.end(name)
    assert holds(described, request)
    assert described["CreationTime"].tzinfo is not None


def holds(whole: Any, part: Any) -> bool:
    """Tell whether all that is in a document is in another one, which may hold more in each object."""
    if isinstance(part, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return bool(whole == part)


def test_a_description_has_what_the_service_has(jobs: Jobs, processes: str) -> None:
    """Every member, while a job runs and after each way to end, is one of the service's, and of its kind."""
    from botocore.validate import ParamValidator

    model = jobs.sagemaker.meta.service_model
    shapes = {name: model.operation_model(name) for name in ("CreateTrainingJob", "DescribeTrainingJob")}
    shape = shapes["DescribeTrainingJob"].output_shape
    assert set(shapes["CreateTrainingJob"].input_shape.members) - set(shape.members) == NOT_DESCRIBED

    def described(name: str) -> dict[str, Any]:
        answer = jobs.describe(name)
        answer.pop("ResponseMetadata")
        report = ParamValidator().validate(answer, shape)
        assert not report.has_errors(), report.generate_report()
        assert not set(answer) - set(shape.members)
        return answer

    kept = {"ResourceConfig": {**jobs.request("")["ResourceConfig"], "KeepAlivePeriodInSeconds": 60}}
    metric = {"MetricDefinitions": [{"Name": "loss", "Regex": "loss=(.*)"}]}
    running = jobs.start(
        "print('loss=2', flush=True); time.sleep(600)", AlgorithmSpecification=metric, **kept
    )
    jobs.says(running, "loss=2")
    now = described(running)
    assert now["TrainingTimeInSeconds"] >= 1
    assert not {"TrainingEndTime", "BillableTimeInSeconds", "FailureReason"} & set(now)
    assert now["WarmPoolStatus"] == {"Status": "InUse"}
    jobs.sagemaker.stop_training_job(TrainingJobName=running)
    jobs.end(running)
    stopped = described(running)
    assert stopped["FinalMetricDataList"][0]["Value"] == 2.0
    assert stopped["WarmPoolStatus"] == {"Status": "Terminated", "ResourceRetainedBillableTimeInSeconds": 0}
    pools = [
        [
            row["TrainingJobName"]
            for row in jobs.sagemaker.list_training_jobs(WarmPoolStatusEquals=status)[LIST]
        ]
        for status in ("Terminated", "InUse")
    ]
    assert pools == [[running], []]

    data = jobs.folder / "data"  # nothing else writes there while it is copied
    data.mkdir()
    (data / "x").write_text("x")
    failed = jobs.end(jobs.start("sys.exit(3)", channels=[file_channel("data", data.as_uri())]))
    named = described(failed["TrainingJobName"])
    assert "exit code: 3" in named["FailureReason"]
    assert named["BillableTimeInSeconds"] >= 1
    assert named["ProfilingStatus"] == "Disabled"
    assert "WarmPoolStatus" not in named
    assert [named[flag] for flag in named if flag.startswith("Enable")] == [False] * 3
    assert named["OutputDataConfig"]["CompressionType"] == "GZIP"
    assert {channel["RecordWrapperType"] for channel in named["InputDataConfig"]} == {"None"}


@pytest.mark.slow
def test_lists(jobs: Jobs, processes: str) -> None:
    before = datetime.now(UTC)
    for name in ("b-one", "a-two", "c-one"):
        jobs.run("sys.exit(3)" if name == "a-two" else "print()", name=name)

    def names(**query: Any) -> list[str]:
        rows = jobs.sagemaker.list_training_jobs(**query)["TrainingJobSummaries"]
        return [row["TrainingJobName"] for row in rows]

    assert names() == ["c-one", "a-two", "b-one"]
    assert names(SortBy="Name", SortOrder="Ascending") == ["a-two", "b-one", "c-one"]
    assert names(NameContains="one") == ["c-one", "b-one"]
    assert names(StatusEquals="Failed") == ["a-two"]
    assert names(CreationTimeAfter=before) == ["c-one", "a-two", "b-one"]
    assert names(CreationTimeBefore=before) == []
    assert names(LastModifiedTimeAfter=datetime.now(UTC) + timedelta(hours=1)) == []
    pages = jobs.sagemaker.get_paginator("list_training_jobs").paginate(MaxResults=2)
    assert [len(page["TrainingJobSummaries"]) for page in pages] == [2, 1]


def test_tags(jobs: Jobs, processes: str) -> None:
    name = jobs.start("print('x')", Tags=[{"Key": "a", "Value": "1"}])
    arn = jobs.end(name)["TrainingJobArn"]
    jobs.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "b", "Value": "2"}])
    jobs.sagemaker.delete_tags(ResourceArn=arn, TagKeys=["a"])
    assert jobs.sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "b", "Value": "2"}]
    tags = [{"Key": str(i), "Value": ""} for i in range(50)]
    with pytest.raises(botocore.exceptions.ClientError, match="at most 50"):
        jobs.sagemaker.add_tags(ResourceArn=arn, Tags=tags)


def test_state_outlives_the_endpoint(jobs: Jobs, endpoint: EndpointServer, processes: str) -> None:
    """A job goes on while there is no endpoint, and another one knows all of it."""
    import boto3

    name = jobs.start(
        "print('up', flush=True)\nwhile not os.path.exists(BASE + '/output/go'): time.sleep(0.02)"
    )
    jobs.says(name, "up")
    endpoint.shutdown()
    other = EndpointServer()
    thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        jobs.sagemaker = boto3.client("sagemaker", endpoint_url=other.url)
        jobs.logs = boto3.client("logs", endpoint_url=other.url)
        assert jobs.describe(name)["SecondaryStatus"] == "Training"
        work = os.path.join(os.environ["SHUNTER_HOME"], "state/sagemaker", name, "work")
        with open(f"{work}/algo-1/output/go", "w", encoding="utf-8"):
            pass
        assert jobs.end(name)["TrainingJobStatus"] == "Completed"
        assert jobs.lines(name) == ["up"]
    finally:
        other.shutdown()
        thread.join()
        other.server_close()


def test_the_wire_format(endpoint: EndpointServer) -> None:
    """As the service's protocol has it: the operation in a header, JSON, the error's name in the body."""

    def post(target: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any], Any]:
        sent = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.1", **headers}
        sent["Authorization"] = SIGNED
        request = urllib.request.Request(endpoint.url, body, sent)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error), error.headers

    status, body, headers = post("SageMaker.ListTrainingJobs", b"{}")
    assert (status, body) == (200, {"TrainingJobSummaries": []})
    assert headers["Content-Type"] == "application/x-amz-json-1.1"
    assert headers["x-amzn-RequestId"]
    status, body, _ = post("SageMaker.DescribeTrainingJob", b'{"TrainingJobName": "nope"}')
    assert (status, body["__type"]) == (400, "ValidationException")
    status, body, _ = post("SageMaker.CreateModel", b"{}")
    assert (status, body["__type"]) == (400, "UnknownOperationException")
    assert body["message"].startswith(
        "SageMaker.CreateModel is not supported by this endpoint, which has AddTags, "
    )
    assert post("SageMaker.ListTrainingJobs", b"no json")[1]["__type"] == "SerializationException"
    assert post("SageMaker.ListTrainingJobs", b'{"MaxResults": "x"}')[1]["__type"] == "ValidationException"
    assert post("SageMaker.ListTrainingJobs", b"{}", Host="evil.example")[0] == 403
    with urllib.request.urlopen(endpoint.url) as answer:
        assert answer.status == 200


def test_operations_that_are_not_here_are_refused_by_name(endpoint: EndpointServer) -> None:
    """In JSON and in CBOR, which boto3 speaks with CloudWatch; with what to do instead."""
    import boto3

    sagemaker, logs, cloudwatch = (
        boto3.client(name, endpoint_url=endpoint.url, config=Config(inject_host_prefix=False))
        for name in ("sagemaker", "logs", "cloudwatch")
    )
    now = datetime.now(UTC)
    metric = {"Namespace": "N", "MetricName": "loss", "StartTime": now, "EndTime": now, "Period": 60}
    group = "arn:aws:logs:us-west-2:123456789012:log-group:/aws/sagemaker/TrainingJobs"
    calls: list[tuple[Any, dict[str, Any], str]] = [
        (sagemaker.list_models, {}, "SageMaker.ListModels is not supported .* CreateTrainingJob, "),
        (sagemaker.search, {"Resource": "TrainingJob"}, "SageMaker.Search is not .* by ListTrainingJobs"),
        (logs.start_live_tail, {"logGroupIdentifiers": [group]}, "Logs.StartLiveTail is .* FilterLogEvents"),
        (cloudwatch.list_metrics, {}, "CloudWatch.ListMetrics is not supported .* DescribeTrainingJob"),
        (cloudwatch.get_metric_statistics, metric, "GetMetricStatistics is .* in FinalMetricDataList"),
    ]
    for call, arguments, words in calls:
        with pytest.raises(botocore.exceptions.ClientError, match=words) as error:
            call(**arguments)
        assert error.value.response["Error"]["Code"] == "UnknownOperationException"
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_other_users_are_not_answered(endpoint: EndpointServer) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    code = (
        "import os, urllib.request, urllib.error; os.setgid(65534); os.setuid(65534)\n"
        "target = {'X-Amz-Target': 'SageMaker.ListTrainingJobs'}\n"
        f"r = urllib.request.Request({endpoint.url!r}, b'{{}}', target)\n"
        "try:\n    urllib.request.urlopen(r)\n    print('answered')\n"
        "except urllib.error.HTTPError as e:\n    print(e.code)\n"
    )
    words = ["/usr/bin/python3", "-c", code]  # which everybody may run
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={})
    assert done.stdout.strip() == "403"
    assert not is_own_peer(("127.0.0.1", 1), ("127.0.0.1", 2))


def test_other_users_who_hang_up_at_once_start_nothing(endpoint: EndpointServer, jobs: Jobs) -> None:
    """The kernel says that a socket which nobody has open any more is root's."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    body = json.dumps(jobs.request("print('never')")).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: {endpoint.url.rpartition('/')[2]}\r\n"
        "X-Amz-Target: SageMaker.CreateTrainingJob\r\nContent-Type: application/x-amz-json-1.1\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    code = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534)\n"
        f"data = {head.encode() + body!r}\n"
        f"address = {endpoint.server_address[:2]!r}\n"
        "for _ in range(20):\n"
        "    s = socket.create_connection(address); s.sendall(data); s.close()\n"
    )
    subprocess.run(["/usr/bin/python3", "-c", code], check=True, env={})
    listed = jobs.sagemaker.list_training_jobs()["TrainingJobSummaries"]  # comes after all of them
    assert listed == []


def test_a_port_that_was_roots_before_is_not_roots_now() -> None:
    """Connections to others, and such as are over, may have the same address at their end."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        client = socket.create_connection(server.getsockname())
        peer, own = client.getsockname(), server.getsockname()
        assert is_own_peer(peer, own)
        assert not is_own_peer(peer, other.getsockname())
        client.close()
        assert not is_own_peer(peer, own)


def test_the_sdks_own_waiter(jobs: Jobs, processes: str) -> None:
    name = jobs.start("print('x')")
    waiter = jobs.sagemaker.get_waiter("training_job_completed_or_stopped")
    waiter.wait(TrainingJobName=name, WaiterConfig={"Delay": 0.1, "MaxAttempts": 300})
    assert jobs.describe(name)["TrainingJobStatus"] == "Completed"
    assert jobs.describe(name)["RoleArn"] == ROLE


def test_the_command_serves(jobs: Jobs, processes: str, home: object) -> None:
    """`shunter sagemaker-local serve` prints what points clients to it; SIGTERM ends it, not the jobs."""
    import boto3

    words = [sys.executable, "-m", "shunter", "sagemaker-local", "serve", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        variables = dict(
            server.stdout.readline().removeprefix("export ").strip().split("=", 1) for _ in range(3)
        )
        services = ("CLOUDWATCH", "CLOUDWATCH_LOGS", "SAGEMAKER")
        assert sorted(variables) == [f"AWS_ENDPOINT_URL_{service}" for service in services]
        assert len(set(variables.values())) == 1
        client = boto3.client("sagemaker", endpoint_url=variables["AWS_ENDPOINT_URL_SAGEMAKER"])
        client.create_training_job(**jobs.request("time.sleep(1); print('x')", name="served"))
        server.terminate()
        assert server.wait(20) == 0
    assert jobs.end("served")["TrainingJobStatus"] == "Completed"
