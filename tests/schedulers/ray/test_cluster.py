"""Jobs on a real Ray of two nodes: places, waiting, tokens, nodes that are lost, what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import AccessError, BackendError, ConfigError, UnreachableError
from shunter.schedulers.api import Dependency, DescribeAppResponse, LogQuery
from shunter.schedulers.ray_scheduler import remote_command
from shunter.schedulers.ray_scheduler.scheduler import RayScheduler
from shunter.specs import AppDef, AppState, Resource, RetryPolicy, Role
from tests import backends
from tests.cluster_hosts import wait_until
from tests.ray_cluster import HEAD, WORKER, RayCluster, private_cluster, shared_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SMALL = Resource(cpu=0, gpu=0, memMB=32)


@pytest.fixture
def scheduler() -> Iterator[RayScheduler]:
    with closing(RayScheduler("test")) as scheduler:
        yield scheduler


def role(script: str, **fields: Any) -> Role:
    return Role("worker", "", **{"entrypoint": "sh", "args": ["-c", script], "resource": SMALL, **fields})


def submit(scheduler: RayScheduler, script: str, cfg: dict[str, Any] | None = None, **fields: Any) -> str:
    return scheduler.submit(AppDef("job", [role(script, **fields)]), cfg or {})


def end_of(scheduler: RayScheduler, app_id: str) -> DescribeAppResponse:
    response = scheduler.wait(app_id, 120)
    assert response is not None
    assert response.to_status().is_terminal(), response
    return response


def log_of(scheduler: RayScheduler, app_id: str, k: int = 0, **query: Any) -> str:
    blocks = scheduler.log_blocks(app_id, [("worker", k)], LogQuery(**query))
    return b"".join(block.data for block in blocks).decode()


def described(scheduler: RayScheduler, app_id: str) -> DescribeAppResponse:
    response = scheduler.describe(app_id)
    assert response is not None
    return response


def test_replicas_are_spread_and_know_the_first(cluster: RayCluster, scheduler: RayScheduler) -> None:
    script = 'echo "$(hostname) ${replica_id} $TORCHX_RANK0_HOST"; exit ${replica_id}'
    app_id = submit(scheduler, script, {"placement": "STRICT_SPREAD"}, num_replicas=2)
    response = end_of(scheduler, app_id)
    assert response.state is AppState.FAILED
    assert response.msg == "worker/1: exit code 1"
    replicas = response.to_status().replicas()
    assert {replica.hostname for replica in replicas} == {HEAD, WORKER}
    assert [replica.exit_code for replica in replicas] == [0, 1]
    address = {HEAD: f"{cluster.net}.11", WORKER: f"{cluster.net}.12"}[replicas[0].hostname]
    assert log_of(scheduler, app_id) == f"{replicas[0].hostname} 0 localhost\n"
    assert log_of(scheduler, app_id, 1) == f"{replicas[1].hostname} 1 {address}\n"


def test_a_job_without_room_waits_and_says_for_what(cluster: RayCluster, scheduler: RayScheduler) -> None:
    app_id = submit(scheduler, "exit 0", resource=Resource(64, 0, 32))
    wait_until(lambda: "64" in described(scheduler, app_id).msg, "it says what it waits for")
    response = described(scheduler, app_id)
    assert response.state is AppState.PENDING
    assert "waits for room for 1 x {CPU 64, memory" in response.msg
    after = AppDef("later", [role("echo later")])
    info = scheduler.submit_dryrun(after, {})
    scheduler._depend_on(info, [Dependency(app_id, any_end=True)])
    scheduler.ship(info)
    later = scheduler.schedule(info)
    info = scheduler.submit_dryrun(after, {})
    scheduler._depend_on(info, [Dependency(app_id)])
    never = scheduler.schedule(info)
    wait_until(lambda: f"waits for {app_id}" in described(scheduler, later).msg, "the next waits for it")
    assert described(scheduler, later).state is AppState.PENDING
    assert scheduler.cancel_many([app_id]) == {app_id: None}
    assert end_of(scheduler, app_id).state is AppState.CANCELLED
    assert end_of(scheduler, later).state is AppState.SUCCEEDED
    response = end_of(scheduler, never)
    assert response.state is AppState.CANCELLED
    assert response.msg == f"not started: {app_id} is STOPPED"


def test_an_elastic_job_runs_with_the_room_that_there_is(
    cluster: RayCluster, scheduler: RayScheduler, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    fields = {"num_replicas": 3, "min_replicas": 1, "resource": Resource(2, 0, 32)}
    app_id = submit(scheduler, f"echo started; while [ ! -e {go} ]; do sleep 0.1; done", **fields)

    def running() -> int:
        response = scheduler.describe(app_id)
        assert response is not None
        return sum(each.state is AppState.RUNNING for each in response.to_status().replicas())

    wait_until(lambda: running() >= 2, "a second replica has found room")
    go.touch()
    response = end_of(scheduler, app_id)
    assert response.state is AppState.SUCCEEDED
    logs = [log_of(scheduler, app_id, k) for k in range(3)]
    assert logs[0] == "started\n"
    states = [replica.state for replica in response.to_status().replicas()]
    assert states[0] is AppState.SUCCEEDED
    assert [text == "started\n" for text in logs] == [state is AppState.SUCCEEDED for state in states]
    assert sum(text != "" for text in logs) >= 2


def test_nothing_outlives_a_driver_that_was_killed(
    cluster: RayCluster, scheduler: RayScheduler, tmp_path: Path
) -> None:
    mark = f"600.{time.time_ns() % 1_000_000}"
    app_id = submit(scheduler, f"setsid sleep {mark} & echo up; sleep {mark}")
    lines = scheduler.log_iter(app_id, "worker", should_tail=True)
    assert next(iter(lines)) == "up\n"
    drivers = [pid for pid in processes("ray_driver.py") if app_id in environment_of(pid)]
    assert drivers
    assert len(processes(mark)) >= 2
    for pid in drivers:
        os.kill(pid, signal.SIGKILL)
    assert end_of(scheduler, app_id).state is AppState.FAILED
    wait_until(lambda: not processes(mark), "its programs are gone")


def test_the_grace_period_is_the_programs(cluster: RayCluster, scheduler: RayScheduler) -> None:
    script = "trap 'echo saving; sleep 4; echo saved; exit 0' TERM; echo up; sleep 600 & wait"
    app_id = submit(scheduler, script, {"grace_period": 30.0})
    lines = iter(scheduler.log_iter(app_id, "worker", should_tail=True))
    assert next(lines) == "up\n"
    scheduler.cancel(app_id)
    assert list(lines) == ["saving\n", "saved\n"]
    response = end_of(scheduler, app_id)
    assert (response.state, response.msg) == (AppState.CANCELLED, "cancelled")


def test_a_command_runs_inside_a_replica(
    cluster: RayCluster, scheduler: RayScheduler, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    app_id = submit(scheduler, "echo secret >here.txt; echo up; sleep 600", env={"MINE": "yes"})
    lines = iter(scheduler.log_iter(app_id, "worker", should_tail=True))
    assert next(lines) == "up\n"
    wait_until(lambda: place_of(scheduler, app_id), "its pid is known")
    script = "cat here.txt; echo $MINE; echo oops >&2; exit 7"
    assert scheduler.execute(app_id, "worker", 0, ["sh", "-c", script], tty=False) == 7
    captured = capfdbinary.readouterr()
    assert (captured.out, captured.err) == (b"secret\nyes\n", b"oops\n")
    assert [row.app_id for row in scheduler.list() if row.name.startswith("exec")] == []
    scheduler.cancel(app_id)
    end_of(scheduler, app_id)
    with pytest.raises(ConfigError, match="is not running"):
        scheduler.execute(app_id, "worker", 0, ["true"], tty=False)


def place_of(scheduler: RayScheduler, app_id: str) -> bool:
    try:
        remote_command.place_of(scheduler, app_id, "worker", 0)
    except ConfigError:
        return False
    return True


def test_a_time_limit_ends_the_job(cluster: RayCluster, scheduler: RayScheduler, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    cfg = {"timeout": 20.0, "grace_period": 1.0, "job_dir": str(shared)}
    app_id = submit(scheduler, "echo on; sleep 600", cfg)
    response = end_of(scheduler, app_id)
    assert (response.state, response.msg) == (AppState.FAILED, "stopped at its time limit of 20 s")
    assert (shared / app_id / "logs" / "worker-0" / "0.out").read_text() == "on\n"


def test_a_job_that_hangs_is_stopped(cluster: RayCluster, scheduler: RayScheduler) -> None:
    app_id = submit(scheduler, "echo on; sleep 600", {"hang_timeout": 2.0, "on_hang": "stop"})
    response = end_of(scheduler, app_id)
    hung = "stopped because it hung: no output for 2 s"
    assert (response.state, response.msg) == (AppState.FAILED, f"worker/0 was {hung}")
    assert response.roles_statuses[0].replicas[0].reason == hung
    assert "the stacks of its 2 processes" in log_of(scheduler, app_id)


def test_without_the_token_nobody_gets_in(
    tmp_path_factory: pytest.TempPathFactory,
    scheduler: RayScheduler,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    backends.need("ray")
    cluster = shared_cluster(tmp_path_factory, token=True)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    with pytest.raises(AccessError, match="401"):
        submit(scheduler, "exit 0")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    with pytest.raises(AccessError, match="403"):
        submit(scheduler, "exit 0")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    (tmp_path / "token").write_text(cluster.token)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    app_id = submit(scheduler, "echo in", num_replicas=2)
    assert log_of(scheduler, app_id, 1, should_tail=True) == "in\n"
    assert end_of(scheduler, app_id).state is AppState.SUCCEEDED
    assert all(check.ok is not False for check in scheduler.doctor({}))


def test_the_oldest_release(
    scheduler: RayScheduler,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """It knows no tokens, and ignores one."""
    backends.need("ray_oldest")
    with private_cluster(oldest=True) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        told = tmp_path / "told"
        script = 'echo "${replica_id} $TORCHX_RANK0_HOST"; printf "\\377\\r\\n"; exit ${replica_id}'
        cfg = {"notify": [f"cp /dev/stdin {told}"], "retry": {"other": "1"}}
        jobs: list[str] = []

        def takes_jobs() -> bool:
            fields = {"num_replicas": 2, "retry_policy": RetryPolicy.REPLICA}
            with contextlib.suppress(BackendError):  # its dashboard is up before the agent of its node
                jobs.append(submit(scheduler, script, cfg, **fields))
            return bool(jobs)

        wait_until(takes_jobs, "it takes jobs", cluster.logs)
        failing = jobs[0]
        monkeypatch.setenv("RAY_AUTH_TOKEN", "unknown-there")
        lasting = submit(scheduler, "echo secret >here.txt; echo up; sleep 600")
        lines = iter(scheduler.log_iter(lasting, "worker", should_tail=True))
        assert next(lines) == "up\n"
        wait_until(lambda: place_of(scheduler, lasting), "its pid is known")
        assert scheduler.execute(lasting, "worker", 0, ["sh", "-c", "cat here.txt; exit 7"], tty=False) == 7
        assert capfdbinary.readouterr().out == b"secret\n"
        scheduler.cancel(lasting)
        assert list(lines) == []
        assert end_of(scheduler, lasting).state is AppState.CANCELLED
        response = end_of(scheduler, failing)
        assert (response.state, response.msg) == (AppState.FAILED, "worker/1: exit code 1")
        assert [each.restarts for each in response.to_status().replicas()] == [0, 1]
        blocks = scheduler.log_blocks(failing, [("worker", 0)], LogQuery())
        assert b"".join(block.data for block in blocks) == b"0 localhost\n\377\r\n"
        wait_until(lambda: told.exists() and told.read_text().endswith("}"), "the notification")
        message = json.loads(told.read_text())
        assert (message["handle"], message["state"]) == (f"ray://test/{failing}", "FAILED")
        assert (message["cause"]["replica"], message["cause"]["exit_code"]) == ("worker/1", 1)
        assert room(scheduler)[0] is not False
        assert {row.app_id for row in scheduler.list()} == {failing, lasting}
        scheduler.delete(failing)
        assert [row.app_id for row in scheduler.list()] == [lasting]


def room(
    scheduler: RayScheduler, cfg: dict[str, Any] | None = None, **fields: Any
) -> tuple[bool | None, str]:
    """Return what is said of whether the nodes could hold a job, and the hint."""
    amounts = {"cpu": 1, "gpu": 0, "memMB": 32, **fields.pop("resource", {})}
    replica = role("true", resource=Resource(**amounts), **fields)
    *_, check = scheduler.doctor({}, scheduler.submit_dryrun(AppDef("job", [replica]), cfg or {}))
    assert check.name == "the job"
    return check.ok, f"{check.text}. {check.hint}"


def test_nodes_are_compared_with_the_job(cluster: RayCluster, scheduler: RayScheduler) -> None:
    fits = (True, "the nodes that are up could hold it, if empty. ")
    assert room(scheduler) == fits
    assert room(scheduler, num_replicas=2, resource={"cpu": 2}) == fits
    assert room(scheduler, num_replicas=3, min_replicas=2, resource={"cpu": 2}) == fits
    assert room(scheduler, {"placement": "STRICT_PACK"}, num_replicas=2) == fits
    assert room(scheduler, {"label_selector": {"ray.io/node-id": "!none"}}) == fits
    assert room(scheduler, {"label_selector": {"zone": "!in(a,b)"}}) == fits
    for cfg, fields, said in (
        (
            {},
            {"resource": {"cpu": 3}},
            "none of 2 could hold a replica of worker with 3 CPU, 32 MiB of memory (",
        ),
        ({}, {"resource": {"gpu": 1}}, ": it has 0 GPU"),
        ({}, {"resource": {"memMB": 99 << 20}}, "of worker with 1 CPU, 101376 GiB of memory ("),
        ({}, {"resource": {"devices": {"board": 1}}}, ": it has 0 board"),
        ({}, {"num_replicas": 5}, "the replicas ask for 5 CPU, and all nodes have 4 CPU"),
        (
            {"placement": "STRICT_PACK"},
            {"num_replicas": 3},
            "hold all replicas (placement=STRICT_PACK) with 3 CPU",
        ),
        (
            {"placement": "STRICT_SPREAD"},
            {"num_replicas": 3},
            "STRICT_SPREAD needs 3 nodes, a replica on each; 2",
        ),
        ({"label_selector": {"zone": "a"}}, {}, ": its label zone is not a"),
        ({"label_selector": {"zone": "in(a, b)"}}, {}, ": its label zone is not in(a, b)"),
        ({"entrypoint_num_cpus": 3.0}, {}, "none of 2 could hold the driver with 3 CPU"),
    ):
        ok, text = room(scheduler, cfg, **fields)
        assert (ok, said in text) == (False, True), text


def test_what_an_autoscaler_may_add_is_not_known(
    scheduler: RayScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends.need("ray")
    with private_cluster(grows=True) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        large = {"resource": {"cpu": 8}}
        wait_until(
            lambda: "autoscaler" in room(scheduler, **large)[1], "the autoscaler reports", cluster.logs
        )
        ok, text = room(scheduler, **large)
        assert (ok, "none of 1 could hold a replica of worker with 8 CPU" in text) == (None, True), text
        assert text.endswith("Ray's autoscaler may add nodes that can.")
        assert room(scheduler)[0] is True


def test_a_lost_node_and_then_a_lost_head(scheduler: RayScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that is lost with its node goes on elsewhere. When the head is gone, jobs are unreachable."""
    backends.need("ray")
    with private_cluster() as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        wait = "echo at $(hostname); if [ $(hostname) = worker ]; then sleep 600; fi; sleep 20"
        fields = {"num_replicas": 2, "max_retries": 1, "retry_policy": RetryPolicy.REPLICA}
        app_id = submit(scheduler, wait, **fields)
        (lost,) = [k for k in range(2) if "at worker" in first_lines(scheduler, app_id, k)]
        cluster.kill_node(WORKER)
        response = end_of(scheduler, app_id)
        assert response.state is AppState.SUCCEEDED, response
        assert log_of(scheduler, app_id, lost) == f"at {WORKER}\nat {HEAD}\n"
        replica = response.to_status().replicas()[lost]
        assert (replica.restarts, replica.hostname) == (1, HEAD)
        cluster.kill_node(HEAD)
        with pytest.raises(UnreachableError):
            scheduler.describe(app_id)
        ok, text = room(scheduler)
        assert (ok, text.partition(": ")[0]) == (None, "it was not compared with the nodes")
        assert log_of(scheduler, app_id, lost) == f"at {WORKER}\nat {HEAD}\n"  # what was kept here


def first_lines(scheduler: RayScheduler, app_id: str, k: int) -> str:
    wait_until(lambda: log_of(scheduler, app_id, k), f"worker/{k} has started")
    return log_of(scheduler, app_id, k)


def processes(word: str) -> list[int]:
    """Return the processes that have a word in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                command = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in command:
                found.append(int(name))
    return found


def environment_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""
