"""CloudWatch's metrics of training jobs, by boto3 in the protocol that it speaks; and that protocol."""

from __future__ import annotations

import contextlib
import http.client
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import botocore.exceptions
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.aws_endpoint.wire_formats import decode_cbor, encode_cbor

from .conftest import SIGNED

if TYPE_CHECKING:
    from .conftest import Jobs

NAMESPACE = "/aws/sagemaker/TrainingJobs"
METRIC = {"MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]}


@pytest.fixture
def cloudwatch(endpoint: Any) -> Any:
    import boto3

    return boto3.client("cloudwatch", endpoint_url=endpoint.url)


def query(job: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "Namespace": NAMESPACE,
        "MetricName": "loss",
        "Dimensions": [{"Name": "TrainingJobName", "Value": job["TrainingJobName"]}],
        "StartTime": job["TrainingStartTime"],
        "EndTime": job["TrainingEndTime"] + timedelta(minutes=1),
        "Period": 3600,
        "Statistics": ["Average", "Minimum", "Maximum", "Sum", "SampleCount"],
        **more,
    }


def test_statistics_of_what_all_hosts_wrote(jobs: Jobs, cloudwatch: Any, processes: str) -> None:
    script = "for value in (4, 1, 1):\n    print(f'loss={value}')\n"
    job = jobs.run(script, hosts=2, AlgorithmSpecification=METRIC)
    answer = cloudwatch.get_metric_statistics(**query(job))
    assert answer["Label"] == "loss"
    points = answer["Datapoints"]
    assert sum(point["SampleCount"] for point in points) == 6  # two of them, if the hour has just changed
    assert sum(point["Sum"] for point in points) == 12
    assert {point["Unit"] for point in points} == {"None"}
    if len(points) == 1:
        assert (points[0]["Average"], points[0]["Minimum"], points[0]["Maximum"]) == (2.0, 1.0, 4.0)
    assert job["TrainingStartTime"] - timedelta(hours=1) < points[0]["Timestamp"] < job["TrainingEndTime"]
    assert points[0]["Timestamp"].minute == 0

    for nothing in (
        {"MetricName": "other"},
        {"Namespace": "Other"},
        {"Dimensions": []},
        {"Dimensions": [{"Name": "TrainingJobName", "Value": "nope"}]},
        {"StartTime": datetime(2020, 1, 1, tzinfo=UTC), "EndTime": datetime(2020, 1, 2, tzinfo=UTC)},
    ):
        assert cloudwatch.get_metric_statistics(**query(job, **nothing))["Datapoints"] == []


def test_what_metrics_refuse(cloudwatch: Any) -> None:
    now = datetime.now(UTC)
    job = {"TrainingJobName": "x", "TrainingStartTime": now, "TrainingEndTime": now}
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"Period": 45}, "InvalidParameterValue", "Period"),
        ({"Statistics": ["Median"]}, "InvalidParameterValue", "Median"),
        ({"ExtendedStatistics": ["p99"]}, "InvalidParameterCombination", "not computed here"),
        ({"EndTime": now - timedelta(days=1)}, "InvalidParameterValue", "before EndTime"),
        ({"StartTime": now - timedelta(days=1), "Period": 1}, "InvalidParameterCombination", "1440"),
    ]
    for change, code, words in wrong:
        with pytest.raises(botocore.exceptions.ClientError, match=words) as error:
            cloudwatch.get_metric_statistics(**query(job, **change))
        assert error.value.response["Error"]["Code"] == code
    with pytest.raises(botocore.exceptions.ClientError, match="ListMetrics is not supported"):
        cloudwatch.list_metrics()


def test_other_protocols(endpoint: Any) -> None:
    """JSON works too; of the oldest protocol, and of what is no CBOR, the error says so."""

    def post(path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent["Authorization"] = SIGNED
        line = http.client.HTTPConnection("127.0.0.1", endpoint.server_address[1], timeout=30)
        with contextlib.closing(line):
            line.request("POST", path, body, sent)
            answer = line.getresponse()
            return answer.status, answer.read()

    now = datetime.now(UTC).timestamp()
    job = {"Namespace": NAMESPACE, "MetricName": "loss", "StartTime": now - 60, "EndTime": now, "Period": 60}
    target = "GraniteServiceVersion20100801.GetMetricStatistics"
    status, body = post("/", json.dumps({**job, "Statistics": ["Sum"]}).encode(), X_Amz_Target=target)
    assert (status, json.loads(body)["Datapoints"]) == (200, [])
    status, body = post("/", b"Action=ListMetrics", Content_Type="application/x-www-form-urlencoded")
    assert status == 400
    assert b"use a newer SDK" in body
    path = "/service/GraniteServiceVersion20100801/operation/GetMetricStatistics"
    status, body = post(path, b"\xa1\x61", smithy_protocol="rpc-v2-cbor", Content_Type="application/cbor")
    assert (status, decode_cbor(body)["__type"]) == (400, "SerializationException")


SCALARS = st.booleans() | st.integers(-(1 << 64), (1 << 64) - 1) | st.text()
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
DOCUMENTS = st.recursive(
    SCALARS | NUMBERS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(DOCUMENTS)
def test_cbor_is_that_of_the_sdk(document: Any) -> None:
    """boto3's own reader finds the same in it."""
    from io import BufferedReader, BytesIO

    from botocore.parsers import BaseCBORParser

    stream = BufferedReader(BytesIO(encode_cbor(document)))  # type: ignore[arg-type]
    assert BaseCBORParser().parse_data_item(stream) == document
