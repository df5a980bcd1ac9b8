"""What `trainyard why` says of the same failures in containers and on Slurm, all submitted at once."""

from __future__ import annotations

import re
import uuid

import pytest

from tests import backends, slurm_cluster
from tests.diagnosis.ways_to_fail import WAYS, Way, command_of
from tests.schedulers.docker.host_image import host_env, host_mounts, make_host_image
from tests.toolkit.image import docker
from trainyard.runner import get_runner
from trainyard.runner.explanation import explain
from trainyard.specs import AppDef, Resource, Role
from trainyard.specs.mounts import parse_mounts
from trainyard.specs.status import AppState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_HOG = Way("out_of_memory", "x = bytearray(1 << 30)\nprint(len(x))")
_HANGS = Way("timeout", "import time\ntime.sleep(100)")


def explain_all(ways, make_role, scheduler, options):
    """Run a job for each way, all at once; returns the failures by name."""
    found = {}
    with get_runner() as runner:
        handles = {
            name: runner.run(AppDef("way", [make_role(name, way)]), scheduler, options(name))
            for name, way in ways.items()
        }
        for name, handle in handles.items():
            status = runner.wait(handle, timeout=200)
            assert status is not None
            assert status.state == AppState.FAILED, (name, status)
            found[name] = explain(runner, handle, status).failure
            runner.delete(handle)
    return found


def check(ways, found):
    wrong = {
        name: (way.cause, found[name].cause.name, found[name].evidence, found[name].reason)
        for name, way in ways.items()
        if found[name].cause.name != way.cause or way.evidence not in found[name].evidence
    }
    assert not wrong
    replicas = {name: found[name].replica and found[name].replica.id for name in ways}
    assert replicas == {name: way.replica for name, way in ways.items()}
    assert {name: found[name].rank for name in ways} == {name: way.rank for name, way in ways.items()}


def test_in_containers():
    backends.need("docker")
    image = f"trainyard-test-{uuid.uuid4().hex[:12]}:1"
    make_host_image(image)
    ways = {**WAYS, "memory limit": _HOG, "time limit": _HANGS}

    def role(name, way):
        command = command_of(way)
        return Role(
            "train", image, entrypoint=command[0], args=command[1:], num_replicas=way.replicas,
            env=host_env(), mounts=parse_mounts(",".join(host_mounts()).split(",")),
            resource=Resource(cpu=1, gpu=0, memMB=128 if name == "memory limit" else 1024),
        )  # fmt: skip

    try:
        found = explain_all(
            ways, role, "local_docker", lambda name: {"timeout": 2} if name == "time limit" else {}
        )
    finally:
        docker("rmi", "-f", image)
    check(ways, found)


def test_on_slurm(tmp_path_factory, monkeypatch):
    backends.need("slurm")
    cluster = slurm_cluster.shared_cluster(tmp_path_factory)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])

    def role(name, way):
        command = command_of(way)
        return Role(
            "train", "", entrypoint=command[0], args=command[1:], num_replicas=way.replicas,
            env={"PATH": host_env()["PATH"]}, resource=Resource(cpu=1, gpu=0, memMB=64),
        )  # fmt: skip

    check(WAYS, explain_all(WAYS, role, "slurm", lambda name: {"replicas_per_node": 2}))


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
