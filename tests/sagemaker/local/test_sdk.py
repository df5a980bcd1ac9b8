"""The SageMaker SDK, as it is: its Estimator pointed at the endpoint by variables alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends import sagemaker_sdk

from .conftest import unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Bucket, Jobs

# If a job has not ended when the SDK first describes it, the SDK takes 40 s more: it describes jobs every
# 30 s, sleeps 10 s between readings of logs, and once more after the end.
LONGEST_SDK_RUN = 200
pytestmark = pytest.mark.timeout(LONGEST_SDK_RUN + 40)

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


SETUP = """
import json, sys, time
import sagemaker
from sagemaker.estimator import Estimator
from sagemaker.exceptions import UnexpectedStatusException
bucket, folder = sys.argv[1:]
session = sagemaker.Session(default_bucket=bucket)

def estimator(script, hosts=1, **more):
    return Estimator(
        image_uri="image", role="arn:aws:iam::123456789012:role/R", instance_count=hosts,
        instance_type="ml.m5.large", sagemaker_session=session, output_path=f"s3://{bucket}/out",
        container_entry_point=["sh", "-c"], container_arguments=[script], base_job_name="sdk", **more,
    )
"""
COMPLETE = """
script = 'for i in $(seq 1000); do echo "$TRAINING_JOB_NAME $i"; done'
estimator(script, hosts=3).fit(logs="All")
"""
ATTACH = """
wait = "while ! test -e " + folder + "/go; do sleep 0.1; done"
script = wait + "; echo late; echo 1 > $SAGEMAKER_BASE_DIR/model/m"
first = estimator(script, tags=[{"Key": "team", "Value": "red"}])
first.fit(wait=False)
open(folder + "/go", "w").close()
again = Estimator.attach(first.latest_training_job.name, sagemaker_session=session)
again.logs()
assert again.model_data == f"s3://{bucket}/out/{first.latest_training_job.name}/output/model.tar.gz"
assert again.model_data == first.model_data
arn = first.latest_training_job.describe()["TrainingJobArn"]
assert session.list_tags(arn) == [{"Key": "team", "Value": "red"}]
print("ATTACHED", again.latest_training_job.name)
"""
FAILED = """
try:
    estimator('echo "ValueError: the rate is negative"; exit 3').fit(logs="None")
except UnexpectedStatusException as error:
    assert error.actual_status == "Failed"
    print("RAISED", error)
"""
STOPPED = """
long = estimator("echo up; exec sleep 600")
long.fit(wait=False)
while long.latest_training_job.describe()["SecondaryStatus"] != "Training":
    time.sleep(0.1)
long.latest_training_job.stop()
long.latest_training_job.wait(logs="None")
print("ENDED", long.latest_training_job.describe()["TrainingJobStatus"])
"""
PYTORCH = """
from sagemaker.pytorch import PyTorch
with open(folder + "/train.py", "w") as file:
    file.write("import os, sys\\n")
    file.write("print('ARGUMENTS', sys.argv[1:], os.environ['SM_HP_LR'], os.environ['SM_HOSTS'])\\n")
    file.write("print('loss=0.25')")
fitted = PyTorch(
    entry_point="train.py", source_dir=folder, image_uri="image",
    framework_version="2.1.0", py_version="py310",
    role="arn:aws:iam::123456789012:role/R", instance_count=2, instance_type="ml.m5.large",
    sagemaker_session=session, output_path=f"s3://{bucket}/out", hyperparameters={"lr": 0.1, "name": "a b"},
    metric_definitions=[{"Name": "loss", "Regex": "loss=(.*)"}],
)
fitted.fit({"train": f"s3://{bucket}/data"})
final = fitted.latest_training_job.describe()["FinalMetricDataList"]
print("METRICS", [(metric["MetricName"], metric["Value"]) for metric in final])
"""


def run_sdk(code: str, *words: str, environ: dict[str, str]) -> str:
    """Run code with the SDK; returns what it printed."""
    unset = {"PYTHONPATH", "AWS_ENDPOINT_URL_S3"}
    done = subprocess.run(
        [sagemaker_sdk(), "-W", "ignore", "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=LONGEST_SDK_RUN,
        env={**{key: value for key, value in os.environ.items() if key not in unset}, **environ},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def sdk(
    endpoint: Any, processes: str, bucket: Bucket, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Runs code that makes estimators whose jobs are processes; results go to a bucket of its own."""
    sagemaker_sdk()
    # the image's `train` is the toolkit's, as in any image of shunter
    monkeypatch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    bucket.put("data/x.csv", b"1")
    folder = tmp_path / "sdk"
    folder.mkdir()
    return lambda code: run_sdk(SETUP + code, bucket.name, str(folder), environ={"AWS_ENDPOINT_URL": moto})


@pytest.mark.slow
def test_all_that_three_hosts_wrote_is_printed(sdk: Callable[[str], str]) -> None:
    """The SDK's own local mode loses lines of such a burst."""
    numbers = re.findall(r"sdk-[0-9-]+ ([0-9]+)$", sdk(COMPLETE), re.MULTILINE)
    assert sorted(numbers) == sorted([str(number) for number in range(1, 1001)] * 3)


@pytest.mark.slow
def test_a_job_is_attached_to(sdk: Callable[[str], str]) -> None:
    printed = sdk(ATTACH)
    assert "ATTACHED sdk-" in printed
    assert "late" in printed


@pytest.mark.slow
def test_failures_and_stops(sdk: Callable[[str], str]) -> None:
    printed = sdk(FAILED + STOPPED)
    raised = printed.partition("RAISED ")[2]
    assert "Failed. Reason: AlgorithmError: ValueError: the rate is negative, exit code: 3" in raised
    assert "ENDED Stopped" in printed


@pytest.mark.slow
def test_a_framework_estimator_fits(sdk: Callable[[str], str]) -> None:
    """Code packed and uploaded by the SDK, fetched and started by the toolkit."""
    printed = sdk(PYTORCH)
    words = "ARGUMENTS ['--lr', '0.1', '--name', 'a b'] 0.1 [\"127."
    assert printed.count(words) == 2
    assert "METRICS [('loss', 0.25)]" in printed
    assert "Completed - Training job completed" in printed


@pytest.mark.slow
def test_an_estimator_fits(jobs: Jobs, containers: str, bucket: Bucket, moto: str) -> None:
    bucket.put("data/x.csv", b"1")
    printed = run_sdk(FIT, bucket.name, jobs.image, environ={"AWS_ENDPOINT_URL": moto})
    assert "Completed - Training job completed" in printed
    assert printed.count('{"a": "1"}x.csv') == 2
    assert printed.count("loss=3") == 2
    uri = printed.partition("MODEL ")[2].strip()
    assert uri.startswith(bucket.uri("out/sdk-"))
    model = bucket.get(uri.removeprefix(bucket.uri("")))
    assert unpack(model) == {"m": b"model\n"}
