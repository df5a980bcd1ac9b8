"""The SageMaker SDK, as it is: its Estimator pointed at the endpoint by variables alone."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

from tests.backends import sagemaker_sdk

from .conftest import unpack

if TYPE_CHECKING:
    import pytest

    from .conftest import Bucket, Jobs

FIT = """
import os, sys
import sagemaker
from sagemaker.estimator import Estimator
from sagemaker.inputs import TrainingInput
bucket, image = sys.argv[1:]
command = "cat /opt/ml/input/config/hyperparameters.json; ls /opt/ml/input/data/train;"
estimator = Estimator(
    image_uri=image, role="arn:aws:iam::123456789012:role/R", instance_count=2, instance_type="ml.m5.large",
    sagemaker_session=sagemaker.Session(default_bucket=bucket), output_path=f"s3://{bucket}/out",
    container_entry_point=["sh", "-c"],
    container_arguments=[command + " echo model > /opt/ml/model/m; echo loss=3"],
    hyperparameters={"a": 1}, metric_definitions=[{"Name": "loss", "Regex": "loss=(.*)"}],
    max_run=100, base_job_name="sdk",
)
estimator.fit({"train": TrainingInput(f"s3://{bucket}/data")}, logs="All")
print("MODEL", estimator.model_data)
"""


def test_an_estimator_fits(
    jobs: Jobs, containers: str, bucket: Bucket, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = sagemaker_sdk()
    bucket.put("data/x.csv", b"1")
    environ: dict[str, Any] = {
        **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        "AWS_ENDPOINT_URL": moto,
    }
    done = subprocess.run(
        [python, "-W", "ignore", "-c", FIT, bucket.name, jobs.image],
        capture_output=True,
        text=True,
        timeout=58,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Completed - Training job completed" in done.stdout
    assert done.stdout.count('{"a": "1"}x.csv') == 2
    assert done.stdout.count("loss=3") == 2
    uri = done.stdout.partition("MODEL ")[2].strip()
    assert uri.startswith(bucket.uri("out/sdk-"))
    model = bucket.get(uri.removeprefix(bucket.uri("")))
    assert unpack(model) == {"m": b"model\n"}
