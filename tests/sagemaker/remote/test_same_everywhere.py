"""One script and one command line on every scheduler: the same arguments, variables and artifacts."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import backends
from tests.sagemaker.remote.conftest import Cloud
from tests.toolkit.image import docker, make_image, require_docker

# As the predecessor's documents have it: defaults from the SM_* variables, channels training and testing.
SCRIPT = """
import argparse, json, os, sys

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--hosts", type=json.loads, default=json.loads(os.environ["SM_HOSTS"]))
    parser.add_argument("--current-host", type=str, default=os.environ["SM_CURRENT_HOST"])
    parser.add_argument("--model-dir", type=str, default=os.environ["SM_MODEL_DIR"])
    parser.add_argument("--training", type=str, default=os.environ["SM_CHANNEL_TRAINING"])
    parser.add_argument("--testing", type=str, default=os.environ["SM_CHANNEL_TESTING"])
    parser.add_argument("--output", type=str, default=os.environ["SM_OUTPUT_DATA_DIR"])
    args = parser.parse_args()
    data = {}
    for name in ("training", "testing"):
        place = getattr(args, name)
        data[name] = {file: open(os.path.join(place, file)).read() for file in sorted(os.listdir(place))}
    seen = {name: value for name, value in os.environ.items() if name.startswith("SM_")}
    with open(os.path.join(args.model_dir, "model.json"), "w") as file:
        json.dump({"argv": sys.argv, "data": data, "variables": seen, "args": vars(args)}, file)
    with open(os.path.join(args.output, "report.txt"), "w") as file:
        file.write(f"trained {args.epochs} epochs")
    print("loss: 0.25")
"""
WORDS = ["--learning-rate", "0.01", "--epochs", "3", "--batch-size", "64"]
#: What says where and on what the job runs, rather than what it is.
OF_THE_PLACE = {
    "SM_CURRENT_INSTANCE_GROUP",
    "SM_CURRENT_INSTANCE_GROUP_HOSTS",
    "SM_CURRENT_INSTANCE_TYPE",
    "SM_FRAMEWORK_PARAMS",
    "SM_INPUT_DATA_CONFIG",
    "SM_INSTANCE_GROUPS",
    "SM_INSTANCE_GROUPS_DICT",
    "SM_MODULE_DIR",
    "SM_NETWORK_INTERFACE_NAME",
    "SM_NUM_CPUS",
    "SM_RESOURCE_CONFIG",
    "SM_TRAINING_ENV",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text(SCRIPT)
    for name in ("training", "testing"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "part.csv").write_text(f"{name},1")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    backends.need("docker")
    require_docker()
    tag = f"trainyard-same:{uuid.uuid4().hex[:12]}"
    make_image(tag)
    yield tag
    docker("rmi", "-f", tag, check=False)


def run(scheduler: str, project: Path, cloud: Cloud, image: str, output: str) -> str:
    """Run the one command line, and return the job's name."""
    place = project.parent
    words = ["run", "-s", scheduler, "--wait"]
    if scheduler == "aws_sagemaker":
        words += ["-cfg", f"role={cloud.role},instance_type=ml.m5.large"]
    words += ["train.script", "--script", "train.py", "--image", image, "--output", output]
    for name in ("training", "testing"):
        words += ["--channel", f"{name}={place / 'data' / name}"]
    if scheduler == "local_docker":
        words += ["--mounts", f"type=bind,src={place},dst={place}"]
    line = [sys.executable, "-m", "trainyard", *words, "--", *WORDS]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=55)
    if done.returncode:
        handle = next(word for word in done.stdout.split() if "://" in word)
        log = subprocess.run([*line[:3], "log", handle], capture_output=True, text=True, check=False)
        raise AssertionError(done.stderr + done.stdout + log.stdout[-3000:])
    return next(word for word in done.stdout.split() if word.startswith(f"{scheduler}://")).rpartition("/")[2]


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["local_cwd", "local_docker", "sagemaker_local", "aws_sagemaker"])
def test_the_documents_example_is_the_same_everywhere(
    scheduler: str,
    cloud: Cloud,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("TRAINYARD_SAGEMAKER_DOCKER", "never")
    image = request.getfixturevalue("image") if scheduler == "local_docker" else "image:1"
    aws = scheduler == "aws_sagemaker"
    output = f"s3://{cloud.bucket}/out" if aws else str(project.parent / "out")
    name = run(scheduler, project, cloud, image, output)
    if scheduler == "local_docker":
        request.addfinalizer(lambda: _remove_container(f"{name}-train-0"))
    places = [path for path in _names(cloud, project) if path.endswith("/output/model.tar.gz")]
    assert places == [f"out/{name}/output/model.tar.gz"]

    def fetch(file: str) -> bytes:
        path = f"out/{name}/output/{file}"
        return cloud.read(path) if aws else (project.parent / path).read_bytes()

    with tarfile.open(fileobj=io.BytesIO(fetch("model.tar.gz"))) as archive:
        members = {member.removeprefix("./") for member in archive.getnames()} - {"", "."}
        assert members == {"model.json"}
        seen: dict[str, Any] = json.load(archive.extractfile(_member(archive, "model.json")))  # type: ignore[arg-type]
    with tarfile.open(fileobj=io.BytesIO(fetch("output.tar.gz"))) as archive:
        report = archive.extractfile(_member(archive, "report.txt"))
        assert report is not None
        assert report.read() == b"trained 3 epochs"
    assert seen["argv"][1:] == WORDS
    assert seen["data"] == {"training": {"part.csv": "training,1"}, "testing": {"part.csv": "testing,1"}}
    base = seen["variables"]["SM_INPUT_DIR"].removesuffix("/input")
    variables = {
        key: re.sub(re.escape(base), "/opt/ml", value)
        for key, value in seen["variables"].items()
        if key not in OF_THE_PLACE
    }
    assert variables == EXPECTED
    assert seen["variables"].keys() - EXPECTED.keys() == OF_THE_PLACE


def _remove_container(name: str) -> None:
    """Remove the job's container, and its image, which has the code in it."""
    own = docker("inspect", "-f", "{{.Image}}", name, check=False).stdout.strip()
    docker("rm", "-f", name, check=False)
    docker("rmi", "-f", own, check=False)


def _member(archive: tarfile.TarFile, name: str) -> str:
    return next(member for member in archive.getnames() if member.endswith(name))


def _names(cloud: Cloud, project: Path) -> list[str]:
    place = project.parent
    here = [str(path.relative_to(place)) for path in (place / "out").rglob("*") if path.is_file()]
    return here + cloud.objects(prefix="out/")


EXPECTED = {
    "SM_CHANNELS": '["testing","training"]',
    "SM_CHANNEL_TESTING": "/opt/ml/input/data/testing",
    "SM_CHANNEL_TRAINING": "/opt/ml/input/data/training",
    "SM_CHECKPOINT_DIR": "/opt/ml/checkpoints",
    "SM_CURRENT_HOST": "algo-1",
    "SM_DISTRIBUTION_INSTANCE_GROUPS": "[]",
    "SM_FRAMEWORK_MODULE": "",
    "SM_HOSTS": '["algo-1"]',
    "SM_HPS": "{}",
    "SM_INPUT_CONFIG_DIR": "/opt/ml/input/config",
    "SM_INPUT_DIR": "/opt/ml/input",
    "SM_IS_HETERO": "false",
    "SM_LOG_LEVEL": "20",
    "SM_MODEL_DIR": "/opt/ml/model",
    "SM_MODULE_NAME": "train",
    "SM_NUM_GPUS": "0",
    "SM_NUM_NEURONS": "0",
    "SM_OUTPUT_DATA_DIR": "/opt/ml/output/data",
    "SM_OUTPUT_DIR": "/opt/ml/output",
    "SM_OUTPUT_INTERMEDIATE_DIR": "/opt/ml/output/intermediate",
    "SM_USER_ARGS": json.dumps(WORDS, separators=(",", ":")),
    "SM_USER_ENTRY_POINT": "train.py",
}
