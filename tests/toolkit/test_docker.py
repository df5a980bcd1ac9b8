"""The toolkit in a container made as the seed's README tells: FROM a Python image, pip install, COPY, ENV."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import Tree
from .image import DOCKER, docker, make_wheel, temporary_image

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("docker")]

TRAIN = """
import argparse, json, os

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, default=1)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--communicator", type=str)
parser.add_argument("--frequency", type=int, default=20)
parser.add_argument("--training", type=str, default=os.environ["SM_CHANNEL_TRAINING"])
parser.add_argument("--testing", type=str, default=os.environ["SM_CHANNEL_TESTING"])
parser.add_argument("--hosts", type=list, default=json.loads(os.environ["SM_HOSTS"]))
args = parser.parse_args()
with open(os.path.join(os.environ["SM_MODEL_DIR"], "model.json"), "w") as file:
    json.dump(vars(args), file)
print("pid", os.getpid(), "parent", os.getppid())
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The seed's image: our package instead of theirs, the script under /opt/ml/code, SAGEMAKER_PROGRAM."""
    folder = tmp_path_factory.mktemp("image")
    wheel = make_wheel(folder)
    (folder / "train.py").write_text(TRAIN)
    with temporary_image() as base:
        (folder / "Dockerfile").write_text(
            f"FROM {base}\n"
            f"COPY {wheel.name} /tmp/\n"
            f"RUN python -m pip install --no-index -q /tmp/{wheel.name}\n"
            "COPY train.py /opt/ml/code/train.py\n"
            "ENV SAGEMAKER_PROGRAM train.py\n"
        )
        made = f"{base}-train"
        docker("build", "-t", made, str(folder), env={**os.environ, "DOCKER_BUILDKIT": "0"})
        yield made
        docker("rmi", "-f", made, check=False)


class Container:
    """Runs the image on a base directory."""

    def __init__(self, image: str, base: Path) -> None:
        self.image = image
        self.tree = Tree(base)
        self.name = f"shunter-test-{uuid.uuid4().hex[:8]}"

    def words(self, *options: str) -> list[str]:
        mounts = [
            f"-v{self.tree.base}/{name}:/opt/ml/{name}"
            for name in ("input", "output", "model", "checkpoints")
        ]
        code = f"-v{self.tree.base}/code:/opt/ml/code"
        for name in ("output", "model", "checkpoints"):
            (self.tree.base / name).mkdir(exist_ok=True)
        own = [code] if any((self.tree.base / "code").iterdir()) else []
        return ["run", "--name", self.name, "--network", "none", *mounts, *own, *options, self.image, "train"]

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return docker(*self.words(*options), check=False)

    def start(self, *options: str, until: str = "ready") -> int:
        """Start detached, wait for a line of the script; the pid of ``train`` on this machine."""
        docker("run", "-d", *self.words(*options)[1:])
        with subprocess.Popen([DOCKER, "logs", "-f", self.name], stdout=subprocess.PIPE, text=True) as logs:
            assert logs.stdout is not None
            for line in logs.stdout:
                if until in line:
                    break
            logs.terminate()
        pid = int(docker("inspect", "-f", "{{.State.Pid}}", self.name).stdout)
        assert pid, docker("logs", self.name).stdout
        return pid

    def wait(self) -> int:
        return int(docker("wait", self.name).stdout)


@pytest.fixture
def container(image: str, tmp_path: Path) -> Iterator[Container]:
    made = Container(image, tmp_path / "ml")
    made.tree.configure("hyperparameters", {})
    yield made
    docker("rm", "-f", made.name, check=False)


@pytest.mark.slow
def test_the_seeds_readme(container: Container) -> None:
    tree = container.tree
    tree.configure(
        "hyperparameters", {"batch-size": "256", "learning-rate": "0.0001", "communicator": '"pure_nccl"'}
    )
    channel = {
        "RecordWrapperType": "None",
        "S3DistributionType": "FullyReplicated",
        "TrainingInputMode": "File",
    }
    tree.configure("inputdataconfig", {"training": channel, "testing": channel})
    done = container.run()
    assert done.returncode == 0, done.stderr
    model = json.loads((tree.base / "model/model.json").read_text())
    assert model["batch_size"] == 256
    assert model["learning_rate"] == 0.0001
    assert model["communicator"] == "pure_nccl"
    assert model["training"] == "/opt/ml/input/data/training"
    assert model["hosts"] == ["algo-1"]
    assert "parent 1\n" in done.stdout
    assert 'SM_CHANNELS=["testing","training"]' in done.stderr
    assert tree.succeeded


SAVING = """
import os, signal, sys, time

def save(number, frame):
    now = time.time()
    with open("/opt/ml/checkpoints/last", "w") as file:
        file.write(repr(now))
    sys.exit({code})

signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 143])
def test_docker_stop_reaches_the_script(container: Container, code: int) -> None:
    container.tree.script(SAVING.format(code=code))
    container.start()
    docker("stop", "-t", "20", container.name)
    assert container.wait() == code
    assert (container.tree.base / "checkpoints/last").exists()
    report = container.tree.report
    assert (report["outcome"], report["class"], report["signal"]) == ("stopped", "preempted", "SIGTERM")
    assert not (container.tree.base / "output/failure").exists()


@pytest.mark.slow
def test_shell_entry_point_passes_the_stop_to_its_python(container: Container) -> None:
    container.tree.script(SAVING.format(code=0))
    container.tree.script("python train.py\necho never\n", "run.sh")
    container.start("-e", "SAGEMAKER_PROGRAM=run.sh")
    docker("stop", "-t", "20", container.name)
    assert (container.tree.base / "checkpoints/last").exists()
    assert container.tree.report["outcome"] == "stopped"


@pytest.mark.slow
def test_a_script_that_ignores_the_stop_is_killed_after_the_grace(container: Container) -> None:
    container.tree.script(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('ready', flush=True); time.sleep(100)"
    )
    container.start("-e", "SHUNTER_GRACE_SECONDS=1")
    docker("stop", "-t", "20", container.name)
    assert container.wait() == 137
    assert container.tree.report["outcome"] == "stopped"


@pytest.mark.slow
def test_out_of_memory_is_distinguished_from_a_kill(container: Container) -> None:
    container.tree.script("data = []\nwhile True: data.append(bytearray(b'x' * 1000000))")
    done = container.run("-m", "64m", "--memory-swap", "64m")
    assert done.returncode == 137
    assert container.tree.report["class"] == "out_of_memory"
    assert container.tree.failure.startswith("Out of memory: the kernel killed train.py")


def test_orphans_are_collected(container: Container) -> None:
    container.tree.script(
        """
        import os, subprocess, time
        for _ in range(20):
            if os.fork() == 0:
                if os.fork() == 0:
                    time.sleep(0.05)
                os._exit(0)
            os.wait()
        deadline = time.monotonic() + 20
        def zombies():
            stats = []
            for name in os.listdir("/proc"):
                try:
                    stats.append(open(f"/proc/{int(name)}/stat").read().split()[2])
                except (ValueError, OSError):
                    pass
            return stats.count("Z"), len(stats)
        while zombies() != (0, 2) and time.monotonic() < deadline:
            time.sleep(0.02)
        print(zombies())
        """
    )
    assert container.run().stdout == "(0, 2)\n"


def test_cpu_count_honours_the_quota(container: Container) -> None:
    container.tree.script("import os; print(os.environ['SM_NUM_CPUS'])")
    assert container.run("--cpus", "0.5").stdout == "1\n"


@pytest.mark.slow
def test_one_file_in_an_image_without_the_package(container: Container, tmp_path: Path) -> None:
    builder = Path(__file__).parents[2] / "toolkit/build_zipapp.py"
    app = tmp_path / "train.pyz"
    subprocess.run([sys.executable, str(builder), str(app)], check=True)
    first = app.read_bytes()
    subprocess.run([sys.executable, str(builder), str(app)], check=True)
    assert app.read_bytes() == first
    container.tree.script("import shunter_toolkit; print(shunter_toolkit.__file__)")
    line = [
        *container.words(f"-v{app}:/toolkit/train.pyz", "--entrypoint", "python")[:-1],
        "-S",
        "/toolkit/train.pyz",
    ]
    done = docker(*line, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "/toolkit/train.pyz/shunter_toolkit/__init__.py\n"
    assert len(first) < 700_000
