"""What `shunter why` says of the same failures on this machine, in containers and on Slurm.

The jobs of a scheduler are submitted at once, and fail for real. With ``-rP``, pytest prints the answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from shunter.errors import ShunterError
from shunter.runner import get_runner
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs import AppDef, Resource, Role
from shunter.specs.mounts import parse_mounts
from shunter.specs.status import AppState
from shunter.why.explanation import explain
from tests import backends, slurm_cluster
from tests.cluster_hosts import wait_until
from tests.diagnosis.ways_to_fail import COMMAND, SHELL, WAYS, Way, command_of
from tests.schedulers.docker.host_image import host_env, host_mounts, make_host_image
from tests.toolkit.image import docker, temporary_image

SLEEPS = "echo up; exec sleep 300"
#: Stopped once it has shown no activity for so long.
HANGS = {"hang_timeout": 20.0, "on_hang": "stop"}
#: A program for a processor that no machine here has: an ELF header that names S/390.
FOREIGN = (
    rb"\177ELF\002\002\001".decode("unicode_escape").encode("latin-1") + bytes(9) + b"\0\2\0\x16" + bytes(44)
)
_HOG = "x = bytearray(b'x') * (700 << 20)\nimport time\ntime.sleep(30)"


def fail_all(ways, make_role, scheduler, options):
    """Run a job for each way, all at once; returns the explanations by name."""
    found = {}
    with get_runner() as runner:
        handles = {
            name: runner.run(
                AppDef("way", [make_role(name, way)]), scheduler, {**options, **way.options}, workspace=None
            )
            for name, way in ways.items()
        }
        for name, way in ways.items():
            if way.happens:
                running = lambda: runner.status(handles[name]).state == AppState.RUNNING  # noqa: B023, E731
                wait_until(running, f"the job runs: {name}")
                way.happens(handles[name])
        for name, handle in handles.items():
            status = runner.wait(handle, timeout=250)
            assert status is not None
            assert status.state == AppState.FAILED, (name, status)
            found[name] = explain(runner, handle, status)
            with contextlib.suppress(ShunterError):  # of a node that is gone nobody can ask for its end
                runner.delete(handle)
    return found


def check(scheduler, ways, found):
    """Check the causes, the replicas and the lines that show them; print them all."""
    wrong = {}
    print(f"{scheduler}: {len(ways)} ways to fail")
    for name, way in ways.items():
        failure = found[name].failure
        replica = failure.replica and failure.replica.id
        is_right = (failure.cause.name, replica, failure.rank) == (way.cause, way.replica, way.rank)
        is_right = is_right and way.evidence in failure.evidence
        print(f"{'ok' if is_right else 'WRONG':6}{name:40} {found[name].headline}")
        if not is_right:
            wrong[name] = (way.cause, way.replica, failure)
    assert not wrong


@pytest.mark.slow
def test_as_processes_of_this_machine():
    def kill(handle):
        state = json.loads(Path(JobDirectory.of(handle.rpartition("/")[2]).file("state.json")).read_text())
        os.kill(state["supervisor"][0], signal.SIGKILL)

    # a command that cannot be run is refused before the job is submitted
    ways = {name: way for name, way in WAYS.items() if way.kind != COMMAND}
    ways["time limit"] = Way("timeout", "sleep 300", SHELL, options={"timeout": 20.0})
    ways["hangs"] = Way("hung", "sleep 300", SHELL, options=HANGS)
    ways["supervisor killed"] = Way("supervisor", "sleep 300", COMMAND, happens=kill)

    def role(name, way):
        command = command_of(way)
        return Role("train", "", entrypoint=command[0], args=command[1:], num_replicas=way.replicas)

    check("local_cwd", ways, fail_all(ways, role, "local_cwd", {}))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_in_containers(tmp_path):
    def end(handle, *command):
        label = f"label=shunter.app-id={handle.rpartition('/')[2]}"
        words = ("ps", "--format", "{{.Names}}", "--filter", label, "--filter", "name=-1$")
        wait_until(lambda: docker(*words).stdout, "the second replica runs")
        docker(*command, docker(*words).stdout.strip())

    foreign = tmp_path / "trainer"
    foreign.write_bytes(FOREIGN)
    foreign.chmod(0o755)
    ways = {
        **WAYS,
        "memory limit": Way("out_of_memory", _HOG, memory=64),
        "time limit": Way("timeout", "sleep 300", SHELL, options={"timeout": 20.0}),
        "hangs": Way("hung", "sleep 300", SHELL, options=HANGS),
        "killed from outside": Way("killed", "sleep 300", SHELL, happens=lambda it: end(it, "kill")),
        "container removed": Way("removed", "sleep 300", SHELL, happens=lambda it: end(it, "rm", "-f")),
        "image of another processor": Way("architecture", str(foreign), COMMAND),
    }
    mounts = [*host_mounts(), f"type=bind,src={tmp_path},dst={tmp_path},readonly"]

    def role(name, way):
        command = command_of(way)
        return Role(
            "train", image, entrypoint=command[0], args=command[1:], num_replicas=way.replicas,
            env=host_env(), mounts=parse_mounts(",".join(mounts).split(",")),
            resource=Resource(cpu=1, gpu=0, memMB=way.memory or 1024),
        )  # fmt: skip

    with temporary_image(make_host_image) as image:
        found = fail_all(ways, role, "local_docker", {})
    check("local_docker", ways, found)


SLURM_CONF = """\
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=low Nodes=n3 PriorityTier=1 MaxTime=60
PartitionName=high Nodes=n3 PriorityTier=9 MaxTime=60
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_on_slurm(monkeypatch, tmp_path):
    backends.need("slurm")
    foreign = tmp_path / "trainer"
    foreign.write_bytes(FOREIGN)
    foreign.chmod(0o755)
    with slurm_cluster.private_cluster(more=SLURM_CONF) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])

        def lose_node(handle):
            cluster.kill_node("n4")
            cluster.declare_down("n4")

        def need_its_node(handle):
            cluster.run("sbatch", "-p", "high", "--exclusive", "--output=/dev/null", "--wrap=true")

        lost = {"partition": "cpu", "nodelist": "n4", "requeue": False}
        preempted = {"partition": "low", "requeue": False}
        ways = {
            **WAYS,
            "memory limit": Way("out_of_memory", _HOG, memory=128),
            "time limit": Way("timeout", "sleep 300", SHELL, options={"time": "1"}),
            "hangs": Way("hung", "sleep 300", SHELL, options=HANGS),
            "node killed": Way("node_lost", "sleep 300", COMMAND, options=lost, happens=lose_node),
            "preempted": Way("preempted", "sleep 300", COMMAND, options=preempted, happens=need_its_node),
            "program of another processor": Way("architecture", str(foreign), COMMAND),
            "no container runtime": Way(
                "missing_program", "true", COMMAND, image="/no/such.sif", options={"container": "apptainer"}
            ),
        }

        def role(name, way):
            command = command_of(way)
            return Role(
                "train", way.image, entrypoint=command[0], args=command[1:], num_replicas=way.replicas,
                env={"PATH": host_env()["PATH"]}, resource=Resource(cpu=1, gpu=0, memMB=way.memory or 128),
            )  # fmt: skip

        ways["broken GPU"] = Way("bad_gpu", "raise RuntimeError('CUDA error: uncorrectable ECC error')")
        found = fail_all(ways, role, "slurm", {"replicas_per_node": 2, "partition": "gpu"})
        assert re.fullmatch(r"shunter rerun \S+ -cfg exclude=n\d", found["broken GPU"].try_command)
        assert advice(cluster) == "1 of the nodes that fit are idle: with 1 instead of 2 it could start now."
    check("slurm", ways, found)


def advice(cluster):
    """Return what `why` advises for a job of two nodes, of which one is in use."""
    cluster.wait_for_nodes(nodes=("n1", "n2"))
    words = ("--parsable", "-p", "gpu", "-w", "n1", "--exclusive", "--output=/dev/null", "--wrap=sleep 99")
    held = cluster.run("sbatch", *words).strip()
    cluster.wait_for_nodes("allocated", nodes=("n1",))
    role = Role("r", "", entrypoint="true", num_replicas=2, resource=Resource(cpu=5, gpu=0, memMB=64))
    with get_runner() as runner:
        handle = runner.run(AppDef("waits", [role]), "slurm", {"partition": "gpu"}, workspace=None)
        wait_until(lambda: "Resources" in runner.status(handle).msg, "Slurm has looked at the job")
        cluster.wait_for_nodes("planned", nodes=("n2",))
        waiting = explain(runner, handle, runner.status(handle)).waiting
        runner.cancel(handle)
    cluster.run("scancel", held)
    assert waiting.kind == "no_capacity"
    return waiting.advice


def test_an_image_that_does_not_exist_is_refused_before_the_job_is_there():
    backends.need("docker")
    role = Role("train", "no-such-image-of-shunter:1", entrypoint="true")
    with get_runner() as runner, pytest.raises(ShunterError, match="cannot be pulled"):
        runner.run(AppDef("way", [role]), "local_docker", {}, workspace=None)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_that_waits_on_slurm_has_its_place_and_its_start(tmp_path_factory, monkeypatch):
    backends.need("slurm")
    cluster = slurm_cluster.shared_cluster(tmp_path_factory)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    role = Role("r", "", entrypoint="true", resource=Resource(cpu=1, gpu=0, memMB=64))
    with get_runner() as runner:
        handle = runner.run(AppDef("later", [role]), "slurm", {"sbatch_args": ["--begin=now+1hour"]})
        try:
            waiting = explain(runner, handle, runner.status(handle)).waiting
        finally:
            runner.cancel(handle)
    assert waiting.kind == "later"
    assert re.fullmatch(
        r"number \d+ of \d+ waiting jobs in its partition; start: (\d{4}-\S+|not planned yet)",
        waiting.position,
    )
