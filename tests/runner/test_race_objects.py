"""Races of schedulers that share no folder: the lease is an object of S3."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shunter._toolkit import race_lease
from shunter.errors import BackendError, ConfigError
from shunter.runner import Runner, get_runner, races
from shunter.schedulers.aws import lease_objects
from shunter.schedulers.local_scheduler.scheduler import LocalScheduler
from shunter.schedulers.registry import get_scheduler_factories
from shunter.specs import AppDef, AppState, Resource, Role
from shunter.specs.submission import Submission
from tests import backends, ray_cluster
from tests.aws.moto_server import running_batch
from tests.aws_services import running_moto
from tests.kubernetes.pod_containers import PodContainers
from tests.kubernetes.stub import container_cluster
from tests.lease_store import LeaseStore, running_store
from tests.runner.test_races import end_of, job, start_at_once
from tests.sagemaker_endpoint import ROLE, running_endpoint
from tests.schedulers.hpc.conftest import queue, wait_until  # noqa: F401 - a fixture
from tests.schedulers.hpc.fake_cluster import FakeCluster
from tests.schedulers.slurm.conftest import slurm  # noqa: F401 - a fixture
from tests.toolkit.image import docker


@pytest.fixture(autouse=True)
def needs_aws() -> None:
    backends.need("botocore")


@contextmanager
def store_on(host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseStore]:
    """A store on an address of this machine, to which AWS's clients are led."""
    with running_store(host) as running:
        for name, value in running.environ().items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseStore]:
    with store_on("127.0.0.1", monkeypatch) as running:
        yield running


@pytest.fixture
def runner():
    with get_runner() as made:
        yield made


def lease_in(store: LeaseStore) -> str:
    return lease_objects.sign(f"{store.location}/race-1")[0]


# ---- the lease


@pytest.mark.slow
def test_one_of_thirty_processes_gets_a_lease(store):
    urls = lease_in(store)
    store.conflicts = 5
    processes = [
        subprocess.Popen(
            [sys.executable, "-I", race_lease.__file__],
            env={**os.environ, race_lease.VARIABLE: urls, race_lease.HANDLE: f"local_cwd://s/{number}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(30)
    ]
    holders = {process.communicate()[0].strip() for process in processes}
    assert len(holders) == 1
    (winner,) = holders
    assert winner.startswith("local_cwd://s/")
    assert lease_objects.holder(f"{store.location}/race-1") == winner
    assert race_lease.take(urls, winner) == race_lease.holder(urls) == winner


def test_a_lease_that_cannot_be_taken(store, monkeypatch):
    monkeypatch.setattr(lease_objects, "LONGEST_SECONDS", 0)
    with pytest.raises(OSError, match=r"403 \(Request has expired\): its URL is valid for 7 days at most"):
        race_lease.take(lease_in(store), "me")
    nowhere = json.dumps({"put": "http://127.0.0.1:9/x", "get": "http://127.0.0.1:9/x"})
    with pytest.raises(OSError, match=r"it cannot be reached: .*refused"):
        race_lease.take(nowhere, "me", (0, 0))


def test_a_store_that_ignores_conditions_is_refused(store, runner, tmp_path):
    store.ignores_conditions = True
    with pytest.raises(ConfigError, match="ignores the condition If-None-Match"):
        lease_objects.check(store.location)
    store.ignores_conditions = False
    lease_objects.check(store.location)
    with pytest.raises(ConfigError, match=r"must be s3://BUCKET/PREFIX, not 'bucket'"):
        races.plan_race(runner, [job("exit 0")] * 2, "bucket")


# ---- jobs


@pytest.fixture
def apart(queue, tmp_path):  # noqa: F811
    """A runner, and jobs on this machine and on two clusters that share no folder."""
    ran = tmp_path / "ran"
    script = f'echo "$TORCHX_JOB_ID" >>{ran}; [ "$(wc -l <{ran})" -ge 2 ]'
    role = Role("r", "", entrypoint="sh", args=["-c", script], max_retries=2)
    jobs = [
        Submission(app=AppDef("job", [role]), scheduler=scheduler, options=options)
        for scheduler, options in [
            ("local_cwd", {}),
            ("fake", {"shared_dir": str(tmp_path / "a")}),
            ("fake", {"shared_dir": str(tmp_path / "b")}),
        ]
    ]
    with Runner("sess", {"fake": FakeCluster, "local_cwd": LocalScheduler}) as made:
        yield made, jobs, ran


def test_jobs_without_a_common_folder(store, apart):
    made, jobs, ran = apart
    with pytest.raises(ConfigError, match="share no folder") as refused:
        races.plan_race(made, jobs)
    assert races.EXAMPLE in refused.value.hint
    race = races.plan_race(made, jobs, store.location)
    assert race.id == race.lease == f"{store.location}/{race.id.rpartition('/')[2]}"
    handles = [made.schedule(info) for info in race.jobs]
    ends = {handle: end_of(made, handle) for handle in handles}
    (winner,) = set(ran.read_text().split())
    assert len(ran.read_text().split()) == 2  # its retry has found its own lease
    assert races.winner(made, race.id, handles) == winner
    assert ends.pop(winner)[0] == AppState.SUCCEEDED
    assert set(ends.values()) == {(AppState.CANCELLED, f"race lost to {winner}")}


def test_a_job_that_starts_too_late_does_not_run(store, apart, monkeypatch):
    made, jobs, ran = apart
    monkeypatch.setattr(lease_objects, "LONGEST_SECONDS", 0)
    race = races.plan_race(made, jobs, store.location)
    with pytest.raises(BackendError, match=r"no job could take a lease in s3://.*Request has expired"):
        races.submit_race(made, race, pytest.fail)
    state, reason = end_of(made, made.schedule(race.jobs[0]))
    assert state == AppState.FAILED
    assert "never started: the lease of its race cannot be taken: S3 answers 403 (Request has exp" in reason
    assert end_of(made, made.schedule(race.jobs[1]))[0] == AppState.FAILED
    assert not ran.exists()


def on(scheduler: str, script: str, image: str = "", **options: object) -> Submission:
    small = Resource(cpu=1, gpu=0, memMB=64)
    role = Role("r", image, entrypoint="sh", args=["-c", script], resource=small, max_retries=1)
    return Submission(app=AppDef("job", [role]), scheduler=scheduler, options=options)


def test_requests_do_not_retry_what_has_lost(store, runner):
    batch = on("aws_batch", "exit 0", "busybox", queue="q")
    cluster = on("kubernetes", "exit 0", "busybox")
    first, second = races.plan_race(runner, [batch, cluster], store.location).jobs
    rules = first.request.job_def["retryStrategy"]["evaluateOnExit"]
    assert {"onExitCode": "117", "action": "EXIT"} in rules
    assert "X-Amz-Signature" not in f"{first}{second}"
    variables = [each["name"] for each in first.request.job_def["containerProperties"]["environment"]]
    assert race_lease.PROGRAM in variables
    assert race_lease.VARIABLE not in variables  # or else each race would make another definition
    (policy,) = [each for each in second.request.manifests if each["kind"] == "Job"]
    exits = [each.get("onExitCodes", {}) for each in policy["spec"]["podFailurePolicy"]["rules"]]
    assert [117] in [each.get("values") for each in exits]


def test_which_schedulers_can_race_by_an_object(runner):
    able = {name for name in get_scheduler_factories() if runner.scheduler(name).capabilities.races}
    assert able == {"kubernetes", "aws_batch", "aws_sagemaker", "sagemaker_local", "ray"}


# ---- real ones

SAYS = 'echo "ran $TORCHX_JOB_ID"; sleep 1'


def check_race(runner: Runner, race: races.Race, role: str = "r") -> str:
    """Start all jobs of a race at once; returns the winner. The losers have run nothing, and say so."""
    handles = start_at_once(race)
    assert len(handles) == len(race.jobs)
    ends = {handle: end_of(runner, handle) for handle in handles}
    winner = races.winner(runner, race.id, handles)
    assert ends.pop(winner)[0] == AppState.SUCCEEDED
    assert set(ends.values()) == {(AppState.CANCELLED, f"race lost to {winner}")}
    for handle in sorted(handles):
        log = "".join(runner.log_lines(handle, role)) if handle.split(":")[0] in ("kubernetes", "ray") else ""
        assert (f"ran {handle}" in log) <= (handle == winner)
    return winner


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_slurm_kubernetes_and_this_machine(runner, slurm, image, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(PodContainers, "network", "bridge")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    network = re.search(r"SlurmctldHost=ctl\((.*)\.10\)", Path(slurm.environment["SLURM_CONF"]).read_text())
    assert network is not None
    with (
        container_cluster(tmp_path / "kubeconfig"),
        store_on(f"{network[1]}.1", monkeypatch) as store,  # which nodes and containers reach too
    ):
        for _ in range(2):
            jobs = [
                on("kubernetes", SAYS, image),
                on("local_cwd", SAYS),
                on("slurm", SAYS, shared_dir=str(tmp_path / "shared"), partition="cpu"),
                on("kubernetes", SAYS, image),
            ]
            check_race(runner, races.plan_race(runner, jobs, store.location))
        twice = [on("kubernetes", SAYS, image)] * 2
        check_race(runner, races.plan_race(runner, twice, store.location))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_batch_and_docker(runner, image, monkeypatch):
    with running_batch() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        jobs = [
            on("aws_batch", SAYS, server.image, queue=server.queue),
            on("local_docker", SAYS, image),
            on("aws_batch", SAYS, server.image, queue=server.queue),
        ]
        check_race(runner, races.plan_race(runner, jobs, f"s3://{server.bucket}/races"))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ray_and_this_machine(runner, tmp_path_factory, monkeypatch):
    backends.need("ray")
    address = ray_cluster.shared_cluster(tmp_path_factory).address
    monkeypatch.setenv("RAY_ADDRESS", address)
    network = (urlsplit(address).hostname or "").rpartition(".")[0]
    with store_on(f"{network}.1", monkeypatch) as store:
        jobs = [on("ray", SAYS), on("ray", SAYS), on("local_cwd", SAYS)]
        check_race(runner, races.plan_race(runner, jobs, store.location))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sagemaker_here_and_there(runner, image, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("import os\nprint('ran', os.environ['TORCHX_JOB_ID'])\n")
    monkeypatch.chdir(tmp_path)
    subnet = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}").stdout
    # the gateway, which Docker does not always show
    here = next(ip_network(subnet.strip()).hosts())
    with running_moto(str(here)) as moto, running_endpoint(moto) as (variables, options):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SHUNTER_SAGEMAKER_DOCKER", "always")
        remote = {**options, "instance_type": "ml.m5.large"}
        local = {"role": ROLE, "instance_type": "ml.m5.large"}
        jobs = [
            Submission(
                component="train.script",
                arguments=["--script", "train.py", "--image", image],
                scheduler=scheduler,
                options=chosen,
                workspace=".",
            )
            for scheduler, chosen in [("aws_sagemaker", remote), ("sagemaker_local", local)]
        ]
        location = options["output_path"].replace("results", "races")
        check_race(runner, races.plan_race(runner, jobs, location), role="script")
