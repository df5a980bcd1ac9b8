"""Jobs on a real Grid Engine: several hosts, arrays, dependencies, time limits, faults, entering."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.grid_engine import GridEngine
from trainyard.errors import BackendError, UnreachableError
from trainyard.runner import Runner, get_runner
from trainyard.schedulers.base import Dependency, DescribeAppResponse
from trainyard.schedulers.sge.scheduler import SgeScheduler, create_scheduler
from trainyard.specs import AppDef, AppState, Resource, Role, is_terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
PATIENCE = 90


@pytest.fixture
def scheduler(request: pytest.FixtureRequest) -> Iterator[SgeScheduler]:
    if "own_engine" not in request.fixturenames:
        request.getfixturevalue("engine")
    with closing(create_scheduler("test")) as scheduler:
        yield scheduler


def role(script: str, **fields: Any) -> Role:
    resource = Resource(cpu=fields.pop("cpu", 1), gpu=fields.pop("gpu", 0), memMB=-1)
    return Role("worker", "", entrypoint="sh", args=["-c", script], resource=resource, **fields)


def submit(scheduler: SgeScheduler, *roles: Role, **cfg: Any) -> str:
    return scheduler.submit(AppDef("job", list(roles)), cfg)


def end_of(scheduler: SgeScheduler, app_id: str) -> DescribeAppResponse:
    response = scheduler.wait(app_id, PATIENCE)
    assert response is not None
    assert is_terminal(response.state), response
    return response


def seen(
    scheduler: SgeScheduler, app_id: str, wanted: Callable[[DescribeAppResponse], bool]
) -> DescribeAppResponse:
    deadline = time.monotonic() + PATIENCE
    while True:
        response = scheduler.describe(app_id)
        assert response is not None
        if wanted(response):
            return response
        assert time.monotonic() < deadline, response
        time.sleep(0.1)


def lines(scheduler: SgeScheduler, app_id: str, k: int = 0, **query: Any) -> list[str]:
    return [line.rstrip("\n") for line in scheduler.log_iter(app_id, "worker", k, **query)]


def after(scheduler: SgeScheduler, script: str, *dependencies: Dependency) -> str:
    info = scheduler.submit_dryrun(AppDef("next", [role(script)]), {})
    scheduler.depend_on(info, dependencies)
    scheduler.ship(info)
    return scheduler.schedule(info)


def test_replicas_on_two_hosts_know_each_other(scheduler: SgeScheduler) -> None:
    script = 'echo $(hostname) $TORCHX_RANK0_HOST "$WORDS"; getent hosts $TORCHX_RANK0_HOST | wc -l'
    app_id = submit(scheduler, role(script, num_replicas=2, env={"WORDS": "it's  $HOME"}), pe="spread")
    response = end_of(scheduler, app_id)
    assert response.state == AppState.SUCCEEDED, response
    said = [lines(scheduler, app_id, k) for k in (0, 1)]
    hosts = [replica.hostname for replica in response.to_status().replicas()]
    assert sorted(hosts) == ["n1", "n2"]
    assert said == [[f"{host} {hosts[0]} it's  $HOME", "1"] for host in hosts]


def test_a_failing_replica_stops_those_on_other_hosts(scheduler: SgeScheduler) -> None:
    script = 'trap "echo stopped; exit 0" TERM; test "$TRAINYARD_REPLICA" = 1 && exit 7; sleep 600 & wait'
    app_id = submit(scheduler, role(script, num_replicas=2), pe="spread")
    response = end_of(scheduler, app_id)
    assert response.state == AppState.FAILED
    assert response.msg == "worker/1: exit code 7"
    assert lines(scheduler, app_id) == ["stopped"]


def test_hosts_that_do_not_hold_the_replicas_are_named(scheduler: SgeScheduler, shared: str) -> None:
    app_id = submit(
        scheduler,
        role("true", num_replicas=2, cpu=2),
        pe="spread",
        omit=["-pe"],
        native=["-pe spread 2"],
        shared_dir=shared,
    )
    response = _in(scheduler, shared, app_id)
    assert response.state == AppState.FAILED
    said = Path(shared, "jobs", app_id, "logs/script.out").read_text()
    assert "have no 2 slots left for worker/0" in said


def _in(scheduler: SgeScheduler, shared: str, app_id: str) -> DescribeAppResponse:
    scheduler.configured = lambda: {"shared_dir": shared}
    return end_of(scheduler, app_id)


def test_an_array_is_throttled_and_each_task_tells_its_end(scheduler: SgeScheduler) -> None:
    script = "echo $TRAINYARD_REPLICA of $SGE_TASK_LAST; sleep 1; exit $((TRAINYARD_REPLICA % 2))"
    app_id = submit(scheduler, role(script, num_replicas=4), array=True, max_running=2)
    seen(scheduler, app_id, lambda r: r.state == AppState.RUNNING)
    (native,) = scheduler.query_all(scheduler.commands(""), None)[-1:]
    assert sum(r.state == AppState.RUNNING for r in native.replicas.values()) <= 2
    response = end_of(scheduler, app_id)
    assert response.state == AppState.FAILED
    replicas = response.to_status().replicas()
    assert [replica.exit_code for replica in replicas] == [0, 1, 0, 1]
    assert {replica.hostname for replica in replicas} <= {"n1", "n2"}
    assert [lines(scheduler, app_id, k) for k in range(4)] == [[f"{k} of 4"] for k in range(4)]


def test_jobs_wait_for_success_or_for_any_end(scheduler: SgeScheduler) -> None:
    failing = submit(scheduler, role("sleep 2; exit 3"))
    good = submit(scheduler, role("sleep 2"))
    wants_success = after(scheduler, "echo ran", Dependency(failing, False), Dependency(good, True))
    any_end = after(scheduler, "echo ran", Dependency(failing, True))
    then = after(scheduler, "echo ran", Dependency(good, False))
    assert "held" in seen(scheduler, then, lambda r: r.state == AppState.PENDING).msg
    given_up = end_of(scheduler, wants_success)
    assert given_up.state == AppState.CANCELLED
    assert f"{failing}, which it waits for, did not succeed" in given_up.msg
    assert lines(scheduler, any_end, should_tail=True) == lines(scheduler, then, should_tail=True) == ["ran"]
    assert end_of(scheduler, any_end).state == end_of(scheduler, then).state == AppState.SUCCEEDED


def test_a_chain_goes_on_after_the_time_limit(scheduler: SgeScheduler) -> None:
    script = (
        'n=$(cat "$TRAINYARD_JOB_DIR/work/n" 2>/dev/null || echo 0); echo run $n; '
        "trap 'echo $((n + 1)) >\"$TRAINYARD_JOB_DIR/work/n\"; exit 0' TERM; "
        "[ $n = 1 ] && exit 0; sleep 600 & wait"
    )
    app_id = submit(scheduler, role(script), chain=3, time="8", grace_period=5)
    response = end_of(scheduler, app_id)
    assert response.state == AppState.SUCCEEDED, response
    assert lines(scheduler, app_id) == ["run 0", "run 1"]


def test_the_time_limit_is_named(scheduler: SgeScheduler) -> None:
    app_id = submit(
        scheduler, role('trap "" TERM; sleep 600 & while :; do wait; done'), time="3", grace_period=0
    )
    response = end_of(scheduler, app_id)
    assert response.state == AppState.FAILED
    assert "limit" in response.msg


def test_why_a_job_waits(scheduler: SgeScheduler) -> None:
    impossible = submit(scheduler, role("true", gpu=9))
    broken = submit(scheduler, role("true"), omit=["-o"], native=["-o /no/such/folder/x"])
    try:
        waiting = seen(scheduler, impossible, lambda r: "gpu" in r.msg)
        assert waiting.state == AppState.PENDING
        assert "(-l gpu=9) cannot run because it offers only hc:gpu=2.000000 (2 times)" in waiting.msg
        failed = seen(scheduler, broken, lambda r: r.msg.startswith("Eqw"))
        assert failed.state == AppState.PENDING
        assert "can't open output file" in failed.msg
        assert "qmod -cj" in failed.msg
    finally:
        assert scheduler.cancel_many([impossible, broken]) == {impossible: None, broken: None}
    for app_id in (impossible, broken):
        assert end_of(scheduler, app_id).state == AppState.CANCELLED


def test_refusals_are_in_the_words_of_grid_engine(scheduler: SgeScheduler, shared: str) -> None:
    for cfg, words, hint in (
        ({"queue": "nope"}, 'unknown queue "nope"', "qconf -sql"),
        ({"smp_pe": "nope"}, 'parallel environment "nope" does not exist', "qconf -spl"),
        ({"gpu": "tesla"}, 'unknown resource "tesla"', "qconf -sc"),
    ):
        with pytest.raises(BackendError) as caught:
            submit(scheduler, role("true", cpu=2, gpu=1), shared_dir=shared, **cfg)
        assert words in caught.value.message
        assert hint in caught.value.hint
        assert not isinstance(caught.value, UnreachableError)
    assert list(Path(shared, "jobs").iterdir()) == []


def test_many_jobs_take_few_calls(scheduler: SgeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [submit(scheduler, role("sleep 600")) for _ in range(6)]
    commands = scheduler.commands("")
    calls = []
    run = type(commands).run
    monkeypatch.setattr(
        type(commands),
        "run",
        lambda self, command, **more: (calls.append(command[0]), run(self, command, **more))[1],
    )
    assert all(scheduler.describe_many(ids).values())
    assert set(ids) <= {row.app_id for row in scheduler.list()}
    assert calls.count("qstat") <= 4
    assert scheduler.cancel_many(ids) == dict.fromkeys(ids)
    assert calls.count("qdel") == 1
    assert {end_of(scheduler, app_id).state for app_id in ids} == {AppState.CANCELLED}


def test_a_job_outlives_the_absence_of_qmaster(own_engine: GridEngine, scheduler: SgeScheduler) -> None:
    app_id = submit(
        scheduler,
        role('echo first; while ! [ -e "$TRAINYARD_JOB_DIR/work/go" ]; do sleep 0.2; done; echo last'),
    )
    shared = Path(scheduler.default_place().shared)
    followed = iter(scheduler.log_iter(app_id, "worker", should_tail=True))
    assert next(followed) == "first\n"
    own_engine.stop_master()
    try:
        gone = seen(scheduler, app_id, lambda r: r.state != AppState.RUNNING)
        assert gone.state == AppState.UNREACHABLE
        assert "qmaster" in gone.msg
        with pytest.raises(UnreachableError):
            submit(scheduler, role("true"))
        assert isinstance(scheduler.cancel_many([app_id])[app_id], UnreachableError)
        (shared / "jobs" / app_id / "work/go").touch()
        ended = seen(scheduler, app_id, lambda r: is_terminal(r.state))
        assert ended.state == AppState.SUCCEEDED  # by the record that it left
    finally:
        own_engine.start_master()
    assert list(followed) == ["last\n"]
    assert end_of(scheduler, app_id).state == AppState.SUCCEEDED


def test_a_killed_job_is_known_by_the_accounting(scheduler: SgeScheduler) -> None:
    app_id = submit(scheduler, role("echo up; kill -9 $PPID; sleep 600"), omit=["-notify"])
    response = end_of(scheduler, app_id)
    assert response.state == AppState.FAILED


def test_a_command_runs_on_the_host_of_a_replica(
    scheduler: SgeScheduler, capfd: pytest.CaptureFixture[str]
) -> None:
    app_id = submit(scheduler, role("sleep 600"))
    try:
        response = seen(
            scheduler,
            app_id,
            lambda r: r.state == AppState.RUNNING and bool(r.roles_statuses[0].replicas[0].hostname),
        )
        (replica,) = response.to_status().replicas()
        code = scheduler.execute(
            app_id, "worker", 0, ["sh", "-c", 'echo "on $(hostname)"; exit 5'], tty=False
        )
        assert (code, capfd.readouterr().out.split()) == (5, ["on", replica.hostname])
    finally:
        scheduler.cancel(app_id)
    end_of(scheduler, app_id)


def test_a_training_script_resumes_and_keeps_its_results(
    engine: GridEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    data.mkdir()
    (data / "x.txt").write_text("hello")
    (project / "train.py").write_text(
        "import os\nprint(open(os.path.join(os.environ['SM_CHANNEL_TRAIN'], 'x.txt')).read())\n"
        "open(os.path.join(os.environ['SM_MODEL_DIR'], 'model'), 'w').write('weights')\n"
    )
    monkeypatch.chdir(project)
    runner: Runner
    with get_runner("test") as runner:
        handle = runner.run_component(
            "train.script",
            ["--script", "train.py", "--channel", f"train={data}"],
            "sge",
            cfg={"memory": "", "smp_pe": "smp"},
            workspace=str(project),
        )
        status = runner.wait(handle, timeout=PATIENCE)
        assert status is not None
        log = list(runner.log_lines(handle, "train"))
        assert status.state == AppState.SUCCEEDED, (status, log)
        assert any("hello" in line for line in log)


def test_doctor_reads_the_configuration(scheduler: SgeScheduler) -> None:
    found = {check.name: check for check in scheduler.doctor({"queue": "nope", "pe": "mpi", "memory": "mem"})}
    assert found["Grid Engine"].ok
    assert found["queue"].ok is False
    assert found["pe"].text == "mpi: fills hosts one after the other"
    assert found["smp_pe"].ok
    assert found["memory"].ok is None
    assert found["memory"].hint == "Set mem_per=slot."
    assert found["hosts"].text == "2 of 2 hosts answer"


def test_a_missing_qstat_is_a_clear_error(scheduler: SgeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    app_id = submit(scheduler, role("true"))
    end_of(scheduler, app_id)
    monkeypatch.setenv("SGE_QMASTER_PORT", "6499")
    fresh = create_scheduler("other")
    fresh.recall = {app_id: f"1 - {scheduler.default_place().shared}"}.get
    response = fresh.describe(app_id)
    assert response is not None
    assert response.state == AppState.SUCCEEDED  # its own record tells, though the queue does not answer
    assert subprocess.run(["qstat"], capture_output=True, check=False).returncode != 0
