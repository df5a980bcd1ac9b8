"""Scripts for Slurm, compared with golden files; what is refused before anything is submitted."""

import os
import subprocess
from pathlib import Path

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.slurm_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, BindMount, Resource, RetryPolicy, Role

GOLDEN = Path(__file__).parent / "golden"


def role(name="worker", cpu=4, gpu=0, mem=8000, **fields) -> Role:
    resource = Resource(cpu=cpu, gpu=gpu, memMB=mem)
    return Role(
        name, **{"image": "", "entrypoint": "python", "args": ["-m", "train"], **fields}, resource=resource
    )


def dryrun(*roles: Role, **cfg):
    scheduler = create_scheduler("test")
    return scheduler.submit_dryrun(AppDef("train", list(roles)), {"shared_dir": "/shared", **cfg})


def script(*roles: Role, **cfg) -> str:
    info = dryrun(*roles, **cfg)
    return info.request.script.replace(info.app_id, "APP")


def directives(*roles: Role, **cfg) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script(*roles, **cfg).splitlines() if "#SBATCH" in line]


JOBS = {
    "one": lambda: script(role()),
    "gang": lambda: script(role(num_replicas=2, gpu=4, max_retries=3), time="2:00:00", partition="gpu"),
    "roles": lambda: script(role("trainer", num_replicas=2), role("reader")),
    "heterogeneous": lambda: script(
        role("trainer", num_replicas=2, gpu=8), role("reader", cpu=1), qos="high"
    ),
    "array": lambda: script(
        role(num_replicas=50, max_retries=1), array=True, max_running=8, grace_period=120
    ),
    "packed": lambda: script(role(num_replicas=8, gpu=1, mem=1000), replicas_per_node=4, gpu_type="h100"),
    "everything": lambda: script(
        role(gpu=2),
        partition="a,b",
        time="1-00:00:00",
        account="team",
        qos="low",
        reservation="r1",
        constraint="h100&ib",
        nodelist="n[1-4]",
        exclude="n3",
        exclusive=True,
        comment='say "hi"',
        switches="1@60",
        segment=2,
        gpu_flag="gres",
        requeue=False,
        chain=3,
        sbatch_args=["--nice=100", "--mem=0"],
        srun_args=["--mpi=pmix"],
        omit=["cpus-per-task"],
        **{"mail-user": "me@example.org", "mail-type": "END,FAIL"},
    ),
    "pyxis": lambda: script(
        role(image="nvcr.io/nvidia/pytorch:26.01", mounts=[BindMount("/data", "/mnt", read_only=True)]),
        container="pyxis",
        workdir="/home/me",
    ),
    "apptainer": lambda: script(role(image="team/train:1", gpu=1), container="apptainer", workdir="/home/me"),
    "oci": lambda: script(role(image="/images/bundle"), container="oci"),
}


@pytest.mark.parametrize("name", JOBS)
def test_scripts_are_the_golden_ones(name):
    """With WRITE_GOLDEN=1 in the environment the files are written: for changes that are meant."""
    path = GOLDEN / f"{name}.sh"
    found = JOBS[name]()
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize("name", JOBS)
def test_scripts_are_valid_for_bash(name):

    subprocess.run(["bash", "-n"], input=JOBS[name]().encode(), check=True)


def test_no_secret_is_in_the_script_or_shown():
    worker = role(env={"WANDB_API_KEY": "s3cr3t-value-1234567890"}, args=["--x", "1"])
    info = dryrun(worker, env={"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx"})
    assert "s3cr3t" not in info.request.script
    assert "hf_abc" not in info.request.script
    assert "s3cr3t" not in str(info)
    assert "hf_abc" not in str(info)
    assert "s3cr3t" in info.request.roles["worker"]  # a file that only the user can read


def test_the_time_limit_is_the_partitions_unless_it_is_given():
    assert not [line for line in directives(role()) if line.startswith("--time")]
    assert "--time=90" in directives(role(), time="90")
    for text in ("UNLIMITED", "infinite", "0", "soon"):
        with pytest.raises(ConfigError, match="Leave it out to have the partition's"):
            script(role(), time=text)


def test_the_warning_comes_before_a_short_limit_is_half_over():
    assert "--signal=B:USR1@60" in directives(role())
    assert "--signal=B:USR1@300" in directives(role(), grace_period=300.0, time="1:00:00")
    assert "--signal=B:USR1@90" in directives(role(), grace_period=300.0, time="3")
    for job in ([role()], [role(), role("b")], [role(num_replicas=2)]):  # Slurm's signal would come at once
        text = script(*job, time="0:40", array=len(job) == 1 and job[0].num_replicas > 1)
        assert "--signal" not in text
        assert text.splitlines()[-2] == "(sleep 30 && kill -USR1 $$) &"
    assert "sleep" not in script(role(), time="1", grace_period=0.0)
    assert "sleep" not in script(role(), time="1", omit=["signal"])
    assert not [line for line in directives(role(), grace_period=0.0) if "signal" in line]


def test_gpus_are_asked_for_in_one_way():
    assert "--gpus-per-node=2" in directives(role(gpu=2))
    assert "--gres=gpu:a100:2" in directives(role(gpu=2), gpu_flag="gres", gpu_type="a100")
    for cfg in (
        {"gres": "gpu:a100:4"},
        {"sbatch_args": ["--gres=gpu:4"]},
        {"sbatch_args": ["--gpus-per-node=4"]},
    ):
        lines = [line for line in directives(role(gpu=2), **cfg) if "gres" in line or "gpus" in line]
        assert len(lines) == 1


def test_any_line_of_ours_can_be_left_out():
    for name in ("mem", "cpus-per-task", "signal", "requeue", "export", "ntasks-per-node"):
        assert not [line for line in directives(role(), omit=[name]) if line.startswith(f"--{name}")], name
    with pytest.raises(ConfigError, match="no option of ours is named 'memm'"):
        script(role(), omit=["memm"])
    with pytest.raises(ConfigError, match="needs --job-name to follow the job"):
        script(role(), omit=["job-name"])


@pytest.mark.parametrize(
    ("roles", "cfg", "words"),
    [
        ([role(), role("b")], {"array": True}, "takes one role"),
        ([role(num_replicas=2, max_retries=1, retry_policy=RetryPolicy.REPLICA)], {}, "array=True"),
        ([role(max_retries=1, retry_policy=RetryPolicy.ROLE), role("b")], {}, "use APPLICATION"),
        ([role(mounts=[BindMount("/a", "/b")])], {}, "mounts need container"),
        ([role()], {"container": "podman"}, "one of pyxis"),
        ([role()], {"sbatch_args": ["nice"]}, "not an option"),
        ([role()], {"sbatch_args": ["--job-name=x"]}, "shunter sets '--job-name=x' itself"),
        ([role()], {"max_running": 3}, "set array=True"),
        ([role()], {"gpu_flag": "gpus"}, "gpus-per-node or gres"),
        ([role()], {"replicas_per_node": 0}, "at least 1"),
        ([role()], {"comment": "a\nb"}, "line break"),
        ([role()], {"switches": "1\n#SBATCH --exclusive"}, "switches has a line break"),
        ([role("-")], {}, "cannot be named '-'"),
        ([role("a\nb")], {}, "cannot be named"),
        ([role(f"r{i}", cpu=1 + i % 2) for i in range(129)], {}, "at most 128 components"),
    ],
)
def test_what_cannot_run_is_refused_before(roles, cfg, words):
    with pytest.raises(ConfigError, match=words):
        script(*roles, **cfg)


def test_what_has_no_effect_is_said():
    worker = role(image="team/train:1")
    worker.resource.devices["vpc.amazonaws.com/efa"] = 4
    shown = str(dryrun(worker, role("b", max_retries=2)))
    assert "ignores the image team/train:1" in shown
    assert "ignores resource.devices (vpc.amazonaws.com/efa)" in shown
    assert "the lowest max_retries of its roles" in shown


def test_the_predecessors_options_keep_their_names():
    names = {name for name, _ in create_scheduler("test").run_opts()}
    assert names >= {
        "partition",
        "time",
        "comment",
        "constraint",
        "mail-user",
        "mail-type",
        "job_dir",
        "qos",
        "account",
    }
    assert dryrun(role(), shared_dir=None, job_dir="/old").request.shared_dir == "/old"
    with pytest.raises(ConfigError, match="name two folders"):
        dryrun(role(), job_dir="/other")
