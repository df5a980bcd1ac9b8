"""A job that goes on from the checkpoints of another one, with each real backend."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shunter
from shunter.errors import ConfigError
from shunter.runner import Runner, get_runner
from shunter.specs.status import AppState
from shunter.specs.sweep_points import Point
from shunter.sweeps.planning import run_sweep
from tests import backends, grid_engine, ray_cluster
from tests.slurm_cluster import shared_cluster as shared_slurm

#: Writes three checkpoints after the last one that is there. Fails if there was none.
SCRIPT = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
start = max([int(path.name[2:]) for path in folder.glob("ck*")], default=0)
print("starts at", start, *sys.argv[1:], flush=True)
for number in range(start + 1, start + 4):
    (folder / f"ck{number}").write_text("x" * number)
latest = folder / "latest"
if latest.is_symlink():
    print("the latest has", len(latest.read_text()), flush=True)
latest.unlink(missing_ok=True)  # a store has a file in its place
latest.symlink_to(folder / f"ck{start + 3}")
sys.exit(0 if start else 3)
"""

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("local_docker", "slurm", "sge", "ray")]


@pytest.fixture
def runner(project: Path) -> Iterator[Runner]:
    (project / "train.py").write_text(SCRIPT)
    with get_runner() as runner:
        yield runner


@pytest.fixture(params=["local_cwd", *SLOW])
def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> tuple[str, list[str], dict[str, Any]]:
    """A scheduler whose backend runs; arguments of `train.script` and options for small jobs."""
    name: str = request.param
    small = ["--cpu", "1", "--memMB", "100"]
    if name == "local_docker":
        return name, ["--image", request.getfixturevalue("image")], {}
    if name == "slurm":
        backends.need("slurm")
        cluster = shared_slurm(tmp_path_factory)
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        return name, small, {}
    if name == "sge":
        backends.need("sge")
        for variable, value in grid_engine.shared_cluster(tmp_path_factory).environment.items():
            monkeypatch.setenv(variable, value)
        return name, [], {"shared_dir": str(tmp_path / "shared")}
    if name == "ray":
        backends.need("ray")
        monkeypatch.setenv("RAY_ADDRESS", ray_cluster.shared_cluster(tmp_path_factory).address)
        return name, [], {"job_dir": str(tmp_path / "jobs")}
    return name, [], {}


def ended(runner: Runner, handle: str) -> tuple[AppState, list[str]]:
    """Wait for a job; return its state and what its only replica printed."""
    status = runner.wait(handle)
    assert status is not None
    ((role, k),) = runner.replicas(handle)
    return status.state, [
        line.strip() for line in runner.log_lines(handle, role, k) if "start" in line or "latest" in line
    ]


def test_a_job_goes_on_from_the_checkpoints_of_another(
    runner: Runner, place: tuple[str, list[str], dict[str, Any]]
) -> None:
    name, words, cfg = place
    arguments = [*words, "--script", "train.py", "--", "--lr", "1"]
    first = runner.run_component("train.script", arguments, name, cfg, workspace=".")
    state, lines = ended(runner, first)
    assert (state, lines) == (AppState.FAILED, ["starts at 0 --lr 1"])
    second = runner.rerun(first, from_checkpoint=True, arguments=["--lr", "2"], name="second")
    state, lines = ended(runner, second)
    assert (state, lines) == (AppState.SUCCEEDED, ["starts at 3 --lr 2", "the latest has 3"])
    record = runner.history.find(second)
    assert record is not None
    assert (record.rerun_of, record.parent_run_id, record.name) == (first, first, "second")
    runner.delete(first)  # the second has its own copy
    third = shunter.job(second).resume().handle
    assert ended(runner, third) == (AppState.SUCCEEDED, ["starts at 6 --lr 2", "the latest has 6"])
    for handle in (second, third):
        runner.delete(handle)


@pytest.mark.slow
def test_sagemaker_local_goes_on_where_its_checkpoints_are_sent_to(
    runner: Runner, image: str, tmp_path: Path
) -> None:
    cfg = {"role": "arn:aws:iam::123456789012:role/Training", "instance_type": "ml.m5.large"}
    words = ["--image", image, "--script", "train.py"]
    without = runner.run_component("train.script", words, "sagemaker_local", cfg, workspace=".")
    runner.wait(without)
    with pytest.raises(ConfigError, match="no checkpoints to go on from") as caught:
        runner.rerun(without, from_checkpoint=True)
    assert "--checkpoints URI" in caught.value.hint
    words = ["--checkpoints", str(tmp_path / "checkpoints"), *words]
    first = runner.run_component("train.script", words, "sagemaker_local", cfg, workspace=".")
    assert ended(runner, first)[0] == AppState.FAILED
    second = runner.rerun(first, from_checkpoint=True)
    assert ended(runner, second)[0] == AppState.SUCCEEDED
    assert (tmp_path / "checkpoints" / "ck6").exists()


@pytest.mark.slow
def test_a_sweep_goes_on_from_its_places_in_s3(
    runner: Runner, moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "S3_ENDPOINT_URL": moto,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    boto3 = pytest.importorskip("boto3")
    bucket = f"b-{uuid.uuid4().hex}"
    client = boto3.client("s3", endpoint_url=moto)
    client.create_bucket(Bucket=bucket)
    words = ["--script", "train.py", "--checkpoints", f"s3://{bucket}/ck"]
    handle = run_sweep(
        runner, "train.script", [Point({"lr": str(k)}, [*words, "--", str(k)]) for k in range(2)], "local_cwd"
    )
    runner.wait(handle)
    keys = [
        item["Key"]
        for item in boto3.client("s3", endpoint_url=moto).list_objects_v2(Bucket=bucket)["Contents"]
    ]
    assert len([key for key in keys if key.endswith("ck3")]) == 2
    for folder in Path(runner.results(handle, "train", 0).checkpoints_at).parent.parent.glob("*"):
        shutil.rmtree(folder / "checkpoints")  # what is left is in the bucket
    second = runner.rerun(handle, from_checkpoint=True)
    status = runner.wait(second)
    assert status is not None
    assert status.state == AppState.SUCCEEDED
    lines = [line.strip() for k in range(2) for line in runner.log_lines(second, "train", k)]
    assert [line for line in lines if line.startswith("starts")] == ["starts at 3 0", "starts at 3 1"]
