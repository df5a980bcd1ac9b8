"""Jobs on a stand-in for LSF that really runs them: hosts, arrays, dependencies, time limits, faults."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import BackendError, ConfigError, UnreachableError
from trainyard.schedulers.base import Dependency, DescribeAppResponse
from trainyard.schedulers.lsf.scheduler import LsfScheduler
from trainyard.specs import AppDef, AppState, Resource, Role, is_terminal

PATIENCE = 60


def role(script: str, **fields: Any) -> Role:
    resource = Resource(cpu=fields.pop("cpu", 1), gpu=0, memMB=100)
    return Role("worker", "", entrypoint="sh", args=["-c", script], resource=resource, **fields)


def submit(scheduler: LsfScheduler, *roles: Role, **cfg: Any) -> str:
    return scheduler.submit(AppDef("job", list(roles)), cfg)


def end_of(scheduler: LsfScheduler, app_id: str) -> DescribeAppResponse:
    response = scheduler.wait(app_id, PATIENCE)
    assert response is not None
    assert is_terminal(response.state), response
    return response


def seen(
    scheduler: LsfScheduler, app_id: str, wanted: Callable[[DescribeAppResponse], bool]
) -> DescribeAppResponse:
    deadline = time.monotonic() + PATIENCE
    while True:
        response = scheduler.describe(app_id)
        assert response is not None
        if wanted(response):
            return response
        assert time.monotonic() < deadline, response
        time.sleep(0.05)


def lines(scheduler: LsfScheduler, app_id: str, k: int = 0, **query: Any) -> list[str]:
    return [line.rstrip("\n") for line in scheduler.log_iter(app_id, "worker", k, **query)]


def after(scheduler: LsfScheduler, script: str, *dependencies: Dependency) -> tuple[str, list[str]]:
    info = scheduler.submit_dryrun(AppDef("next", [role(script)]), {})
    scheduler.depend_on(info, dependencies)
    scheduler.ship(info)
    return scheduler.schedule(info), info.request.dependencies


@pytest.mark.slow
def test_replicas_are_placed_by_the_hosts_of_the_job(scheduler: LsfScheduler) -> None:
    app_id = submit(scheduler, role("echo $TRAINYARD_REPLICA $TORCHX_RANK0_HOST", num_replicas=3, cpu=2))
    assert end_of(scheduler, app_id).state == AppState.SUCCEEDED
    assert [lines(scheduler, app_id, k) for k in range(3)] == [[f"{k} host0"] for k in range(3)]


@pytest.mark.slow
def test_an_array_is_throttled(scheduler: LsfScheduler) -> None:
    script = "echo $TRAINYARD_REPLICA; sleep 0.3; exit $((TRAINYARD_REPLICA % 2))"
    app_id = submit(scheduler, role(script, num_replicas=4), array=True, max_running=1)
    waiting = seen(scheduler, app_id, lambda r: r.state == AppState.RUNNING)
    assert AppState.PENDING in {replica.state for replica in waiting.to_status().replicas()}
    response = end_of(scheduler, app_id)
    assert response.state == AppState.FAILED
    assert [replica.exit_code for replica in response.to_status().replicas()] == [0, 1, 0, 1]


@pytest.mark.slow
def test_jobs_wait_for_success_or_for_any_end(scheduler: LsfScheduler) -> None:
    failing = submit(scheduler, role("sleep 1; exit 3"))
    good = submit(scheduler, role("sleep 1"))
    both, options = after(scheduler, "echo ran", Dependency(good, False), Dependency(failing, True))
    never, _ = after(scheduler, "echo ran", Dependency(failing, False))
    assert options == ["-w", "done(1002) && ended(1001)"]
    assert (
        "dependency condition not satisfied"
        in seen(scheduler, both, lambda r: r.state == AppState.PENDING).msg
    )
    assert lines(scheduler, both, should_tail=True) == ["ran"]
    kept = seen(scheduler, never, lambda r: "never satisfied" in r.msg)
    assert kept.state == AppState.PENDING
    scheduler.cancel(never)
    assert end_of(scheduler, never).state == AppState.CANCELLED


@pytest.mark.slow
def test_a_chain_goes_on_after_the_time_limit(
    scheduler: LsfScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LSF_MINUTE", "1.5")
    script = (
        'n=$(cat "$TRAINYARD_JOB_DIR/work/n" 2>/dev/null || echo 0); echo run $n; '
        "trap 'echo $((n + 1)) >\"$TRAINYARD_JOB_DIR/work/n\"; exit 0' TERM; "
        "[ $n = 1 ] && exit 0; sleep 600 & wait"
    )
    app_id = submit(scheduler, role(script), chain=3, time="2", grace_period=60)
    assert end_of(scheduler, app_id).state == AppState.SUCCEEDED
    assert lines(scheduler, app_id) == ["run 0", "run 1"]


@pytest.mark.slow
def test_the_time_limit_is_named(scheduler: LsfScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LSF_MINUTE", "1")
    app_id = submit(scheduler, role('trap "" TERM INT; while :; do sleep 1; done'), time="1")
    response = end_of(scheduler, app_id)
    assert response.state == AppState.FAILED
    assert response.msg.startswith("stopped at its time limit: TERM_RUNLIMIT")


def test_a_job_outlives_the_absence_of_lsf(scheduler: LsfScheduler, lsf: Path) -> None:
    app_id = submit(
        scheduler, role('while ! [ -e "$TRAINYARD_JOB_DIR/work/go" ]; do sleep 0.1; done; echo last')
    )
    shared = Path(scheduler.default_place().shared)
    seen(scheduler, app_id, lambda r: r.state == AppState.RUNNING)
    (lsf / "down").touch()
    assert seen(scheduler, app_id, lambda r: r.state != AppState.RUNNING).state == AppState.UNREACHABLE
    with pytest.raises(UnreachableError):
        submit(scheduler, role("true"))
    (shared / "jobs" / app_id / "work/go").touch()
    assert seen(scheduler, app_id, lambda r: is_terminal(r.state)).state == AppState.SUCCEEDED
    (lsf / "down").unlink()
    assert end_of(scheduler, app_id).state == AppState.SUCCEEDED


def test_what_bjobs_has_forgotten_is_known_by_its_records(scheduler: LsfScheduler, lsf: Path) -> None:
    app_id = submit(scheduler, role("exit 4"))
    end_of(scheduler, app_id)
    (record,) = lsf.glob("*.0.json")
    record.unlink()
    scheduler._query("").forget([app_id])
    response = scheduler.describe(app_id)
    assert response is not None
    assert (response.state, response.msg) == (AppState.FAILED, "worker/0: exit code 4")


def test_refusals_are_in_the_words_of_lsf(scheduler: LsfScheduler, tmp_path: Path) -> None:
    with pytest.raises(BackendError) as caught:
        submit(scheduler, role("true"), queue="nope", shared_dir=str(tmp_path / "shared"))
    assert "nope: No such queue" in caught.value.message
    assert "bqueues" in caught.value.hint
    assert not isinstance(caught.value, UnreachableError)
    assert list((tmp_path / "shared/jobs").iterdir()) == []


def test_a_missing_bsub_is_a_clear_error(scheduler: LsfScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if "lsf-bin" not in part)
    monkeypatch.setenv("PATH", path)
    with pytest.raises(ConfigError, match="no program 'bsub' here"):
        submit(scheduler, role("true"))


def test_many_jobs_take_few_calls(scheduler: LsfScheduler, lsf: Path) -> None:
    (lsf / "hold").touch()
    ids = [submit(scheduler, role("true")) for _ in range(4)]
    (lsf / "calls").touch()
    found = scheduler.describe_many(ids)
    assert {response.state for response in found.values() if response} == {AppState.PENDING}
    assert {row.app_id for row in scheduler.list()} == set(ids)
    assert scheduler.cancel_many(ids) == dict.fromkeys(ids)
    calls = (lsf / "calls").read_text().split()
    assert calls.count("bkill") == 1
    assert calls.count("bjobs") <= 3
    assert {end_of(scheduler, app_id).state for app_id in ids} == {AppState.CANCELLED}


def test_a_command_goes_to_the_host_of_the_replica(scheduler: LsfScheduler) -> None:
    from trainyard.schedulers.hpc.queries import NativeJob

    native = NativeJob("1", state=AppState.RUNNING, hosts=["a", "b"])
    assert scheduler.enter_command(native, 1, ["ls", "a b"], tty=False)[-3:] == ["--", "b", "ls 'a b'"]
    with pytest.raises(ConfigError, match="does not say on which host"):
        scheduler.enter_command(native, 5, [], tty=True)


def test_doctor(scheduler: LsfScheduler) -> None:
    found = [(check.name, check.ok) for check in scheduler.doctor({})]
    assert found == [("LSF", True), ("queues", True)]
    (_, queue) = scheduler.doctor({"queue": "gpu"})
    assert (queue.ok, queue.text) == (False, "the queue gpu is Closed:Active")
