"""Jobs whose containers work together, submitted with their code: torchrun, and MPI under the toolkit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.docker import images
from shunter.docker.command import DockerCommand
from shunter.runner import Runner, get_runner
from shunter.specs import AppState, parse_app_handle
from tests.backends import need
from tests.schedulers.docker.host_image import host_env, host_mounts, make_host_image
from tests.toolkit.image import temporary_image

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("docker")]

SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
line = f"rank {dist.get_rank()} of {dist.get_world_size()} on {os.uname().nodename} sum {total.item():.0f}\\n"
os.write(1, line.encode())
dist.destroy_process_group()
"""

RANKS = """
import os, sys
rank, size = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]
host, data = os.environ["SM_CURRENT_HOST"], os.listdir(os.environ["SM_CHANNEL_DATA"])
line = f"rank {rank} of {size} on {host} {sys.argv[1:]} {data}\\n"
os.write(1, line.encode())
if rank == "0":
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w") as file:
        file.write("trained")
"""


@pytest.fixture(scope="module")
def host_image() -> Iterator[str]:
    with temporary_image(make_host_image) as made:
        yield made


class Submitter:
    """Submits components with a directory's code, and removes what they leave."""

    def __init__(self, runner: Runner, workspace: Path) -> None:
        self.runner = runner
        self.workspace = workspace
        self.handles: list[str] = []

    def run(self, component: str, *words: str) -> str:
        """Run a job to its end; it must succeed."""
        environment = ",".join(f"{name}={value}" for name, value in host_env().items())
        mounts = [word for mount in host_mounts() for word in ("--mounts", mount)]
        arguments = [*words[: words.index("--")], *mounts, "--env", environment, *words[words.index("--") :]]
        handle = self.runner.run_component(component, arguments, "local_docker", {}, str(self.workspace))
        self.handles.append(handle)
        status = self.runner.wait(handle, timeout=200)
        assert status is not None
        text = "".join(line for k in (0, 1) for line in self.log(handle, k))
        assert status.state == AppState.SUCCEEDED, f"{status.msg}\n{text}"
        return handle

    def log(self, handle: str, k: int) -> list[str]:
        """Return the log of a replica of the only role."""
        (role, _), *_ = self.runner.replicas(handle)
        return list(self.runner.log_lines(handle, role, k))


@pytest.fixture
def submitter(tmp_path: Path) -> Iterator[Submitter]:
    workspace = tmp_path / "project"
    workspace.mkdir()
    with get_runner() as runner:
        made = Submitter(runner, workspace)
        yield made
        for handle in made.handles:
            record = runner.history.find(handle)
            runner.delete(handle)
            for image in set(record.images.values()) if record and record.images else ():
                images.remove(DockerCommand(), image)


@pytest.mark.slow
def test_torchrun_in_two_containers(submitter: Submitter, host_image: str) -> None:
    need("torch")
    (submitter.workspace / "train.py").write_text(SUM)
    handle = submitter.run(
        "dist.ddp", "--script", "train.py", "-j", "2x1", "--memMB", "2048", "--image", host_image, "--"
    )
    lines = [line for k in (0, 1) for line in submitter.log(handle, k) if " sum 3" in line]
    assert len(lines) == 2
    assert len({line.split(" on ")[1] for line in lines}) == 2, "both ranks ran in the same container"


@pytest.mark.slow
def test_mpi_in_two_containers_under_the_toolkit(
    submitter: Submitter, host_image: str, tmp_path: Path
) -> None:
    need("mpi")
    (submitter.workspace / "train.py").write_text(RANKS)
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    (data / "part-0").write_text("x")
    words = ["--script", "train.py", "--image", host_image, "--num_replicas", "2", "--distribution", "mpi"]
    words += ["--nproc", "2", "--channel", f"data={data}", "--output", str(out), "--", "--lr", "0.1"]
    handle = submitter.run("train.script", *words)
    text = "".join(submitter.log(handle, 0))
    for rank, host in enumerate(["algo-1", "algo-1", "algo-2", "algo-2"]):
        assert f"rank {rank} of 4 on {host} ['--lr', '0.1'] ['part-0']" in text
    app_id = parse_app_handle(handle).app_id
    listing = subprocess.run(
        ["tar", "-tzf", out / app_id / "output" / "model.tar.gz"], capture_output=True, text=True, check=True
    )
    assert "weights" in listing.stdout
