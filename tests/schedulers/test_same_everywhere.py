"""One script and one command line on every scheduler: the same arguments, variables and artifacts.

Slurm, Grid Engine and Ray are real, of several nodes; SageMaker is this machine's endpoint.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from tests import backends, grid_engine, ray_cluster, slurm_cluster
from tests.docs.documents import ROOT
from tests.sagemaker.remote.conftest import Cloud, cloud, no_account  # noqa: F401 - fixtures
from tests.schedulers.docker.host_image import host_env, host_mounts, make_host_image
from tests.toolkit.image import docker, temporary_image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

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


RESUMED = """
import os, sys
place = os.path.join(os.environ["SM_CHECKPOINT_DIR"], "epoch")
if not os.path.exists(place):
    print("from the beginning")
    with open(place, "w") as file:
        file.write("1")
    sys.exit(3)
print("goes on after epoch", open(place).read())
"""
KEEPS = """
import os
k = os.environ["TORCHX_REPLICA_IDX"]
for path, folder in ("model/m", "SM_MODEL_DIR"), ("checkpoints/c", "SM_CHECKPOINT_DIR"):
    open(os.path.join(os.environ[folder], path[-1]), "w").write(f"{path} of {k}")
"""
SCHEDULERS = ["local_cwd", "local_docker", "slurm", "ray", "sge"]


@dataclass
class Place:
    """A scheduler, and what a command line needs for it.

    Attributes:
        scheduler: its name.
        options: words before the component.
        variables: variables of the job, by ``--env``.
        mounts: what containers see of this machine.
        bucket: where results go; None for a directory.
    """

    scheduler: str
    options: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    image: str = "image:1"
    mounts: list[str] = field(default_factory=list)
    cloud: Cloud | None = None

    def run(self, component: str, *words: str, project: Path, ends_well: bool = True) -> str:
        """Run a job to its end, and return its handle."""
        at = words.index("--") if "--" in words else len(words)
        own = ["--image", self.image, *(word for mount in self.mounts for word in ("--mounts", mount))]
        if self.variables:
            own += ["--env", ",".join(f"{name}={value}" for name, value in self.variables.items())]
        line = [
            "run",
            "-s",
            self.scheduler,
            "--wait",
            *self.options,
            component,
            *words[:at],
            *own,
            *words[at:],
        ]
        done = subprocess.run(
            [*SHUNTER, *line], capture_output=True, text=True, check=False, timeout=280, cwd=project
        )
        handles = [word for word in done.stdout.split() if word.startswith(f"{self.scheduler}://")]
        if (done.returncode == 0) is not ends_well:
            log = self.log(handles[0])[-4000:] if handles else ""
            raise AssertionError(f"{done.stderr}{done.stdout}{log}")
        return handles[0]

    def log(self, handle: str) -> str:
        """Return the logs of all replicas."""
        done = subprocess.run([*SHUNTER, "log", handle], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def fetch(self, handle: str, target: Path) -> dict[str, bytes]:
        """Return the results of a job by their paths, after bringing them to a directory."""
        words = ["fetch", handle, "--to", str(target)]
        done = subprocess.run([*SHUNTER, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return {
            str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()
        }


SHUNTER = [sys.executable, "-m", "shunter"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text(SCRIPT)
    for name in ("training", "testing"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "part.csv").write_text(f"{name},1")
    (tmp_path / "out").mkdir()
    (tmp_path / "kept").mkdir()
    return directory


@pytest.fixture(scope="module")
def host_image() -> Iterator[str]:
    with temporary_image(make_host_image) as made:
        yield made


@pytest.fixture
def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
) -> Iterator[Place]:
    """The place of the test's parameter, with everything that it needs started."""
    scheduler = request.param
    own = {**host_env(), "GLOO_SOCKET_IFNAME": "eth0"}
    monkeypatch.setenv("SHUNTER_SAGEMAKER_DOCKER", "never")
    if scheduler == "local_docker":
        made = Place(
            scheduler, variables=own, image=request.getfixturevalue("host_image"), mounts=host_mounts()
        )
    elif scheduler == "slurm":
        backends.need("slurm")
        cluster = slurm_cluster.shared_cluster(tmp_path_factory)
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        made = Place(scheduler, variables=own)
    elif scheduler == "sge":
        backends.need("sge")
        for name, value in grid_engine.shared_cluster(tmp_path_factory).environment.items():
            monkeypatch.setenv(name, value)
        made = Place(scheduler, ["-cfg", "pe=spread,memory="], own)
    elif scheduler == "ray":
        backends.need("ray")
        monkeypatch.setenv("RAY_ADDRESS", ray_cluster.shared_cluster(tmp_path_factory).address)
        made = Place(scheduler, variables=own)
    elif scheduler in ("aws_sagemaker", "sagemaker_local"):
        aws = request.getfixturevalue("cloud")
        options = (
            ["-cfg", f"role={aws.role},instance_type=ml.m5.large"] if scheduler == "aws_sagemaker" else []
        )
        made = Place(scheduler, options, cloud=aws if scheduler == "aws_sagemaker" else None)
    else:
        made = Place(scheduler, variables={"OMP_NUM_THREADS": "1"})
    yield made
    if scheduler == "local_docker":
        _remove_containers(home)


def _remove_containers(home: Path) -> None:
    """Remove the containers of the test's jobs, and their images, which have the code in them."""
    listed = subprocess.run([*SHUNTER, "list", "--json"], capture_output=True, text=True, check=False)
    handles = re.findall(r"local_docker://[^\s\"]+", listed.stdout)
    images = set()
    for handle in handles:
        name = f"label=shunter.app-id={handle.rpartition('/')[2]}"
        found = docker("ps", "-aq", "--filter", name, check=False).stdout.split()
        images |= {docker("inspect", "-f", "{{.Image}}", each, check=False).stdout.strip() for each in found}
    for handle in dict.fromkeys(handles):
        subprocess.run([*SHUNTER, "delete", handle], capture_output=True, check=False)
    for image in images - {""}:
        docker("rmi", "-f", image, check=False)


@pytest.mark.parametrize("place", [*SCHEDULERS, "sagemaker_local", "aws_sagemaker"], indirect=True)
def test_the_documents_example_is_the_same_everywhere(place: Place, project: Path) -> None:
    aws = place.cloud
    output = f"s3://{aws.bucket}/out" if aws else str(project.parent / "out")
    words = ["--script", "train.py", "--output", output]
    for name in ("training", "testing"):
        words += ["--channel", f"{name}={project.parent / 'data' / name}"]
    handle = place.run("train.script", *words, "--", *WORDS, project=project)
    name = handle.rpartition("/")[2]
    places = [path for path in _names(aws, project) if path.endswith("/output/model.tar.gz")]
    assert places == [f"out/{name}/output/model.tar.gz"]

    def fetch(file: str) -> bytes:
        path = f"out/{name}/output/{file}"
        return aws.read(path) if aws else (project.parent / path).read_bytes()

    with tarfile.open(fileobj=io.BytesIO(fetch("model.tar.gz"))) as archive:
        members = {member.removeprefix("./") for member in archive.getnames()} - {"", "."}
        assert members == {"model.json"}
        seen: dict[str, Any] = json.load(archive.extractfile(_member(archive, "model.json")))  # type: ignore[arg-type]
    with tarfile.open(fileobj=io.BytesIO(fetch("output.tar.gz"))) as archive:
        report = archive.extractfile(_member(archive, "report.txt"))
        assert report is not None
        assert report.read() == b"trained 3 epochs"
    came = place.fetch(handle, project.parent / "came")
    assert json.loads(came["model/model.json"]) == seen
    assert came["output/data/report.txt"] == b"trained 3 epochs"
    assert seen["argv"][1:] == WORDS
    assert seen["data"] == {"training": {"part.csv": "training,1"}, "testing": {"part.csv": "testing,1"}}
    base = seen["variables"]["SM_INPUT_DIR"].removesuffix("/input")
    host = seen["variables"]["SM_CURRENT_HOST"]  # a process is called by its address
    assert host == "algo-1" or ip_address(host) in ip_network("127.128.0.0/9")
    variables = {
        key: value.replace(base, "/opt/ml").replace(host, "algo-1")
        for key, value in seen["variables"].items()
        if key not in OF_THE_PLACE
    }
    assert variables == EXPECTED
    assert seen["variables"].keys() - EXPECTED.keys() == OF_THE_PLACE


@pytest.mark.parametrize("place", SCHEDULERS, indirect=True)
def test_a_job_that_fails_goes_on_from_its_checkpoint(place: Place, project: Path) -> None:
    (project / "train.py").write_text(RESUMED)
    words = ["--script", "train.py", "--checkpoints", str(project.parent / "kept"), "--max_retries", "1"]
    log = place.log(place.run("train.script", *words, project=project))
    assert log.index("from the beginning") < log.index("goes on after epoch 1")


@pytest.mark.parametrize("place", SCHEDULERS, indirect=True)
def test_results_come_back_without_an_output(place: Place, project: Path) -> None:
    (project / "train.py").write_text(KEEPS)
    # Ray keeps files where all nodes see them, or else they come with the log
    ways = [["-cfg", f"job_dir={project.parent}/kept"], []] if place.scheduler == "ray" else [[]]
    words = ["--script", "train.py", "--num_replicas", "2", "--cpu", "1"]
    own = place.options
    for number, options in enumerate(ways):
        place.options = [*own, *options]
        handle = place.run("train.script", *words, project=project)
        came = place.fetch(handle, project.parent / f"came-{number}")
        assert {path: content.decode() for path, content in came.items() if "/success" not in path} == {
            f"train/{k}/{path}": f"{path} of {k}" for k in (0, 1) for path in ("model/m", "checkpoints/c")
        }
        assert "shunter-results" not in place.log(handle)


@pytest.mark.parametrize("place", SCHEDULERS, indirect=True)
def test_the_digits_example(place: Place, project: Path) -> None:
    for name in ("train.py", "digits.csv.gz"):
        shutil.copy(ROOT / "examples" / "digits" / name, project)
    words = ["--script", "train.py", "--num_replicas", "2", "--output", str(project.parent / "out")]
    handle = place.run("train.script", *words, "--", "--epochs", "2", project=project)
    log = place.log(handle)
    for seed in (0, 1):
        assert f"seed {seed}: 1437 images to train on" in log
    assert log.count('{"epoch": 2, "loss": 0.') == 2
    results = project.parent / "out" / handle.rpartition("/")[2] / "output"
    with tarfile.open(results / "model.tar.gz") as archive:
        models = {name.rpartition("/")[2] for name in archive.getnames()}
    assert {"seed-0.json", "seed-1.json"} & models


@pytest.mark.parametrize("place", SCHEDULERS, indirect=True)
def test_torchrun_on_two_nodes(place: Place, project: Path) -> None:
    backends.need("torch")
    (project / "train.py").write_text((ROOT / "examples" / "ddp" / "train.py").read_text())
    words = ["--script", "train.py", "-j", "2x1", "--cpu", "1", "--memMB", "1024", "--rdzv_port", "0"]
    log = place.log(place.run("dist.ddp", *words, project=project))
    for rank in (0, 1):
        assert re.search(rf"rank {rank} of 2 step 100 loss", log)
        assert re.search(rf"rank {rank} found y = 3\.\d\d x \+|rank {rank} found y = 2\.\d\d x \+", log)


def _member(archive: tarfile.TarFile, name: str) -> str:
    return next(member for member in archive.getnames() if member.endswith(name))


def _names(aws: Cloud | None, project: Path) -> list[str]:
    place = project.parent
    here = [str(path.relative_to(place)) for path in (place / "out").rglob("*") if path.is_file()]
    return here + (aws.objects(prefix="out/") if aws else [])


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
