"""Training jobs on this machine: real containers, real processes, S3 by moto, boto3 as everybody has it."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.aws_services import read_models_once
from tests.toolkit.image import docker

from .proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

read_models_once()

PATIENCE = 90
ROLE = "arn:aws:iam::123456789012:role/Training"
GROUP = "/aws/sagemaker/TrainingJobs"
SIGNED = (
    "AWS4-HMAC-SHA256 Credential=K/20260101/us-west-2/sagemaker/aws4_request, SignedHeaders=host, Signature=0"
)
START = 'exec python3 "${SAGEMAKER_BASE_DIR:-/opt/ml}/input/data/script/train.py" "$@"'
PREAMBLE = "import json, os, signal, sys, time\nBASE = os.environ.get('SAGEMAKER_BASE_DIR', '/opt/ml')\n"
PREAMBLE += (
    "CONFIG = json.load(open(BASE + '/input/config/resourceconfig.json'))\n"
    # a process is called by its address; its name is in the environment
    "HOST = os.environ.get('SHUNTER_CURRENT_HOST') or CONFIG['current_host']\n"
)


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[None]:
    """Credentials that are worth nothing; and nothing may be left running at the end."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("SHUNTER_SAGEMAKER_PATIENCE_SECONDS", "20")
    yield
    from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL
    from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
    from shunter.schedulers.supervisor import recovery

    for job in TrainingJob.all():
        state = recovery.current_state(job)
        if state is not None and state["status"] not in TERMINAL:
            recovery.stop(job, state, by="a test")
            with contextlib.suppress(ProcessLookupError, TypeError):
                os.kill(state["supervisor"][0], 9)
            until(lambda job=job: (recovery.current_state(job) or {}).get("status") in TERMINAL)


@pytest.fixture(params=["containers", "processes"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which hosts are made."""
    choose(monkeypatch, request.param)
    if request.param == "containers":
        request.getfixturevalue("image")
    return str(request.param)


@pytest.fixture
def containers(image: str, monkeypatch: pytest.MonkeyPatch) -> str:
    choose(monkeypatch, "containers")
    return "containers"


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> str:
    choose(monkeypatch, "processes")
    return "processes"


def choose(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("SHUNTER_SAGEMAKER_DOCKER", "always" if mode == "containers" else "never")


@pytest.fixture
def bucket(moto: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto)
    return Bucket(moto)


@pytest.fixture
def proxy(moto: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What jobs reach S3 by."""
    made = Proxy(moto)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", made.url)
    yield made
    made.close()


class Bucket:
    """A bucket of its own."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self.name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        self.client.create_bucket(Bucket=self.name)

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def keys(self, prefix: str = "") -> list[str]:
        listing = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix)
        return sorted(entry["Key"] for entry in listing.get("Contents", ()))

    def uri(self, key: str) -> str:
        return f"s3://{self.name}/{key}"


@pytest.fixture
def endpoint(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The endpoint, with boto3 pointed at it by its variables."""
    from shunter.aws_endpoint.server import EndpointServer

    server = EndpointServer()
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", server.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", server.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", server.url)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until something holds, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)
    return found


class Jobs:
    """Makes requests, and sees what becomes of them, with boto3 alone."""

    def __init__(self, folder: Path, image: str) -> None:
        import boto3

        self.sagemaker = boto3.client("sagemaker")
        self.logs = boto3.client("logs")
        self.folder = folder
        self.out = folder / "out"
        self.image = image

    def request(self, script: str, name: str = "", **more: Any) -> dict[str, Any]:
        """A request whose program is a Python script with BASE, HOST, CONFIG and some modules."""
        code = self.folder / f"code-{uuid.uuid4().hex[:8]}"
        code.mkdir()
        (code / "train.py").write_text(PREAMBLE + script)
        groups = [
            group["InstanceGroupName"] for group in more.get("ResourceConfig", {}).get("InstanceGroups", ())
        ]
        assigned = {"InstanceGroupNames": groups} if groups else {}
        channel = file_channel("script", code.as_uri(), InputMode="FastFile", **assigned)
        algorithm = {
            "TrainingImage": self.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["sh", "-c", START, "train"],
            **more.pop("AlgorithmSpecification", {}),
        }
        count = more.pop("hosts", 1)
        return {
            "TrainingJobName": name or f"job-{uuid.uuid4().hex[:12]}",
            "RoleArn": ROLE,
            "AlgorithmSpecification": algorithm,
            "InputDataConfig": [channel, *more.pop("channels", [])],
            "OutputDataConfig": {"S3OutputPath": self.out.as_uri()},
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": count, "VolumeSizeInGB": 5},
            "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
            **more,
        }

    def start(self, script: str, **more: Any) -> str:
        request = self.request(script, **more)
        self.sagemaker.create_training_job(**request)
        return str(request["TrainingJobName"])

    def describe(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.sagemaker.describe_training_job(TrainingJobName=name)
        return answer

    def run(self, script: str, **more: Any) -> dict[str, Any]:
        return self.end(self.start(script, **more))

    def end(self, name: str) -> dict[str, Any]:
        """Wait for a job's end and return its description."""
        until(lambda: self.describe(name)["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"))
        return self.describe(name)

    def reaches(self, name: str, secondary: str) -> None:
        def look() -> bool:
            found = self.describe(name)
            assert found["TrainingJobStatus"] in ("InProgress", "Stopping"), found.get("FailureReason")
            return bool(found["SecondaryStatus"] == secondary)

        until(look)

    def streams(self, name: str) -> list[str]:
        answer = self.logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")
        return [stream["logStreamName"] for stream in answer["logStreams"]]

    def lines(self, name: str, host: str = "algo-1", attempt: int = -1) -> list[str]:
        """All that a host has written, read page by page."""
        streams = [stream for stream in self.streams(name) if stream.startswith(f"{name}/{host}-")]
        found: list[str] = []
        token: dict[str, str] = {}
        while True:
            answer = self.logs.get_log_events(
                logGroupName=GROUP, logStreamName=streams[attempt], startFromHead=True, **token
            )
            found += [event["message"] for event in answer["events"]]
            if token.get("nextToken") == answer["nextForwardToken"]:
                return found
            token = {"nextToken": answer["nextForwardToken"]}

    def says(self, name: str, text: str, host: str = "algo-1", attempt: int = -1) -> None:
        """Wait until a host has written a line."""

        def look() -> bool:
            streams = [stream for stream in self.streams(name) if f"/{host}-" in stream]
            if len(streams) < attempt + 1 or not streams:
                return False
            if text in self.lines(name, host, attempt):
                return True
            status = self.describe(name)
            assert status["TrainingJobStatus"] in ("InProgress", "Stopping"), (
                status.get("FailureReason"),
                self.lines(name, host, attempt),
            )
            return False

        until(look)

    def artifact(self, name: str, kind: str = "model") -> dict[str, bytes]:
        """The files of a job's model or output."""
        return unpack((self.out / name / "output" / f"{kind}.tar.gz").read_bytes())


def unpack(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {
            member.name: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive
            if member.isfile()
        }


@pytest.fixture
def jobs(endpoint: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Jobs:
    names = request.fixturenames
    wants_image = "containers" in names or (
        "mode" in names and request.getfixturevalue("mode") == "containers"
    )
    return Jobs(tmp_path, request.getfixturevalue("image") if wants_image else "no-image")


def file_channel(name: str, uri: str, distribution: str = "FullyReplicated", **more: Any) -> dict[str, Any]:
    kind = more.pop("S3DataType", "S3Prefix")
    source = {"S3DataType": kind, "S3Uri": uri, "S3DataDistributionType": distribution}
    if "InstanceGroupNames" in more:
        source["InstanceGroupNames"] = more.pop("InstanceGroupNames")
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}, **more}


def leftovers(home: Path) -> list[str]:
    """Containers and networks of this test's jobs."""
    label = f"label=shunter.sagemaker.job={home}/state/sagemaker"
    jobs = [f"{label}/{path.name}" for path in (home / "state/sagemaker").iterdir()]
    found = []
    for job in jobs:
        found += docker("ps", "-aq", "--filter", job).stdout.split()
        found += docker("network", "ls", "-q", "--filter", job).stdout.split()
    return found
