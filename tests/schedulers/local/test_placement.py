"""Where replicas run and what they see: GPUs, PATH, directories, environment."""

import os
import sys

import pytest

from shunter.errors import BackendError, ConfigError
from shunter.schedulers.local_scheduler.request import without_enclosing_job
from shunter.specs import AppDef, AppState, BindMount, Resource, Role
from shunter.specs.app import NO_IMAGE

from .conftest import role, wait_until


@pytest.fixture
def four_gpus(tmp_path, monkeypatch):
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "GPU $i: NVIDIA H100 (UUID: GPU-$i)"; done\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("SHUNTER_SLOTS_DIR", str(tmp_path / "slots"))


def gpu_role(gpus: int, replicas: int, name: str = "r"):
    return role(
        'echo "[$CUDA_VISIBLE_DEVICES]"',
        name=name,
        num_replicas=replicas,
        resource=Resource(cpu=1, gpu=gpus, memMB=1),
    )


def test_each_replica_that_asks_for_gpus_gets_its_own(jobs, four_gpus):
    app_id, _ = jobs.run(gpu_role(1, 2), gpu_role(2, 1, "big"), gpu_role(0, 1, "none"))
    seen = [jobs.log(app_id, name, k)[0] for name, k in (("r", 0), ("r", 1), ("big", 0), ("none", 0))]
    assert seen == ["[0]\n", "[1]\n", "[2,3]\n", "[]\n"]


def test_jobs_that_run_at_the_same_time_have_different_gpus(jobs, four_gpus, tmp_path):
    wait = f'echo "[$CUDA_VISIBLE_DEVICES]"; while [ ! -e {tmp_path}/gate ]; do sleep 0.02; done'
    two = Resource(cpu=1, gpu=2, memMB=1)
    running = [jobs.submit(role(wait, resource=two)) for _ in range(2)]
    assert {jobs.wait_for_line(app_id) for app_id in running} == {"[0,1]\n", "[2,3]\n"}
    late = jobs.submit(role(wait, resource=two))
    wait_until(lambda: jobs.scheduler.describe(late).msg.startswith("waits for"), "the waiting")
    found = jobs.scheduler.describe(late)
    assert found.state == AppState.PENDING
    assert found.msg.startswith("waits for 2 of 4 GPUs (0 free); held by ")
    (tmp_path / "gate").touch()
    assert jobs.end_of(late).state == AppState.SUCCEEDED


def test_a_job_within_a_job_may_use_its_gpus(jobs, four_gpus, tmp_path):
    inner = (
        "from shunter.schedulers.local_scheduler.scheduler import create_scheduler\n"
        "from shunter.specs import AppDef, Resource, Role\n"
        "scheduler = create_scheduler('test')\n"
        "one = Role('r', '', entrypoint='sh', args=['-c', 'echo [$CUDA_VISIBLE_DEVICES]'],"
        " resource=Resource(1, 1, 1))\n"
        "app_id = scheduler.submit(AppDef('inner', [one]), {})\n"
        "scheduler.wait(app_id, 60)\n"
        "print(*scheduler.log_iter(app_id, 'r', 0))\n"
    )
    outer = Role("r", "", entrypoint=sys.executable, args=["-c", inner], resource=Resource(1, 1, 1))
    app_id, _ = jobs.run(outer)
    assert jobs.log(app_id)[0] == "[0]\n"


def test_gpus_are_left_alone_by_jobs_that_ask_for_none(jobs, four_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    app_id, _ = jobs.run(gpu_role(0, 1), gpu_role(-1, 1, "open"))
    assert [jobs.log(app_id, name) for name in ("r", "open")] == [["[7]\n"], ["[7]\n"]]
    app_id, _ = jobs.run(gpu_role(0, 1), gpu_role(-1, 1, "open"), auto_set_cuda_visible_devices=True)
    assert [jobs.log(app_id, name) for name in ("r", "open")] == [["[]\n"], ["[7]\n"]]


def test_more_gpus_than_there_are(jobs, four_gpus, monkeypatch):
    with pytest.raises(ConfigError, match="asks for 6 GPUs at a time, but this machine has 4"):
        jobs.submit(gpu_role(3, 2))
    jobs.scheduler.submit_dryrun(AppDef("each alone", [gpu_role(3, 2)]), {"array": True})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="asks for 1 GPU at a time, but this machine has 0"):
        jobs.submit(gpu_role(1, 1), auto_set_cuda_visible_devices=True)
    assert jobs.scheduler.list() == []


def test_job_runs_in_the_submitting_directory(jobs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app_id, _ = jobs.run(role("pwd"))
    assert jobs.log(app_id) == [f"{tmp_path}\n"]


def test_prepend_cwd(jobs, tmp_path, monkeypatch):
    program = tmp_path / "ls"
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    app_id, _ = jobs.run(role("ls -d ls"), prepend_cwd=True)
    assert jobs.log(app_id) == ["mine\n"]
    app_id, _ = jobs.run(role("ls -d ls"))
    assert jobs.log(app_id) == ["ls\n"]


def test_a_program_that_is_not_in_path_is_found_in_the_working_directory(jobs, tmp_path, monkeypatch):
    for name, text in {"ls": "mine", "train-it": "trained"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho {text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "notes").write_text("")
    monkeypatch.chdir(tmp_path)
    app_id, _ = jobs.run(Role("r", "", entrypoint="train-it"))
    assert jobs.log(app_id) == ["trained\n"]
    app_id, _ = jobs.run(Role("r", "", entrypoint="ls", args=["-d", "ls"]))
    assert jobs.log(app_id) == ["ls\n"]  # PATH comes first
    with pytest.raises(ConfigError, match=r"notes is not executable \(chmod \+x\?\)"):
        jobs.submit(Role("r", "", entrypoint="notes"))


def test_python_is_the_one_that_shunter_runs_in(jobs, monkeypatch):
    if sys.prefix == sys.base_prefix:
        pytest.skip("not in a virtual environment")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    app_id, _ = jobs.run(role("command -v python"))
    assert jobs.log(app_id) == [f"{sys.prefix}/bin/python\n"]


def test_torchrun_is_asked_to_wait_as_long_as_the_grace_period(jobs):
    for grace, wanted in ((45, "45"), (30, "")):
        app_id, _ = jobs.run(role('echo "$TORCH_ELASTIC_SHUTDOWN_TIMEOUT"'), grace_period=grace)
        assert jobs.log(app_id) == [f"{wanted}\n"]


def test_only_what_describes_an_enclosing_job_is_not_inherited():
    users = {"TORCHX_TRACKERS": "t", "PET_NNODES": "2", "TORCHELASTIC_MINE": "1", "TORCHX_IMAGE": "i"}
    assert without_enclosing_job({**users, "SHUNTER_LOCAL_JOB": "/j"}) == users
    kept = {"TORCHX_TRACKERS": "t", "PET_NNODES": "2"}
    assert without_enclosing_job({**users, "TORCHX_JOB_ID": "h", "PET_LOG_DIR": "/l"}) == kept
    assert without_enclosing_job({**users, "TORCHELASTIC_RUN_ID": "r"}) == {**kept, "TORCHX_IMAGE": "i"}


def test_ignored_fields_are_said(jobs):
    mounted = role("exit 0", mounts=[BindMount("/data", "/data")], port_map={"http": 80})
    imaged = Role("image", "python:3.12", entrypoint="true")
    plain = Role("plain", NO_IMAGE, entrypoint="true")
    info = jobs.scheduler.submit_dryrun(AppDef("a", [mounted, imaged, plain]), {})
    assert info.warnings == ["role 'r': local_cwd ignores mounts of type bind"]
    advice = "in which it runs with -s local_docker"
    assert info.request.warnings == [f"role 'image': local_cwd ignores the image python:3.12, {advice}"]
    with pytest.warns(RuntimeWarning, match="role 'r': local_cwd ignores mounts of type bind"):
        jobs.run(mounted)


@pytest.mark.parametrize(("log_dir", "error"), [("a/" * 3000, ConfigError), ("a" * 300, BackendError)])
def test_log_dir_that_is_too_long_says_so(jobs, log_dir, error):
    with pytest.raises(error, match="too long"):
        jobs.run(role("exit 0"), log_dir=log_dir)
    assert jobs.scheduler.list() == []
