"""What is Grid Engine's own of jobs, on a real one: several hosts, lost hosts, accounting, entering.

What it shares with other queues: `tests/schedulers/test_queues`.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import BackendError, UnreachableError
from shunter.runner import Runner, get_runner
from shunter.schedulers.api import LogQuery
from shunter.schedulers.sge_scheduler.scheduler import SgeScheduler, create_scheduler
from shunter.specs import AppDef, AppState, is_terminal
from tests.dev_sessions import check_on_a_cluster
from tests.grid_engine import GridEngine
from tests.schedulers.hpc.conftest import wait_until
from tests.schedulers.known_context import KnownContext
from tests.schedulers.shell_jobs import PATIENCE, WAITS, ShellJobs, role
from tests.web_server_job import PROGRAM, Forwarding

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def jobs(request: pytest.FixtureRequest) -> Iterator[ShellJobs]:
    if "own_engine" not in request.fixturenames:
        request.getfixturevalue("engine")
    with closing(create_scheduler("test")) as scheduler:
        jobs = ShellJobs(scheduler)
        yield jobs
        jobs.end_all()


def test_replicas_on_two_hosts_know_each_other(jobs: ShellJobs) -> None:
    script = 'echo $(hostname) $TORCHX_RANK0_HOST "$WORDS"; getent hosts $TORCHX_RANK0_HOST | wc -l'
    app_id = jobs.submit(role(script, num_replicas=2, env={"WORDS": "it's  $HOME"}), pe="spread")
    response = jobs.end_of(app_id)
    assert response.state == AppState.SUCCEEDED, response
    said = [jobs.lines(app_id, k) for k in (0, 1)]
    hosts = [replica.hostname for replica in response.to_status().replicas()]
    assert sorted(hosts) == ["n1", "n2"]
    assert said == [[f"{host} {hosts[0]} it's  $HOME", "1"] for host in hosts]


def test_a_failing_replica_stops_those_on_other_hosts(jobs: ShellJobs) -> None:
    script = 'trap "echo stopped; exit 0" TERM; test "$SHUNTER_REPLICA" = 1 && exit 7; sleep 600 & wait'
    app_id = jobs.submit(role(script, num_replicas=2), pe="spread")
    response = jobs.end_of(app_id)
    assert response.state == AppState.FAILED
    assert response.msg == "worker/1: exit code 7"
    assert jobs.lines(app_id) == ["stopped"]


def test_hosts_that_do_not_hold_the_replicas_are_named(jobs: ShellJobs) -> None:
    app_id = jobs.submit(
        role("true", num_replicas=2, cpu=2), pe="spread", omit=["-pe"], native=["-pe spread 2"]
    )
    assert jobs.end_of(app_id).state == AppState.FAILED
    folder = Path(jobs.scheduler.default_place().shared, "jobs", app_id)
    assert "have no 2 slots left for worker/0" in (folder / "logs/script.out").read_text()


@pytest.mark.timeout(600)
def test_an_array_of_200_tasks_is_followed_without_loss(jobs: ShellJobs) -> None:
    script = "for i in 1 2 3 4 5; do echo $SHUNTER_REPLICA.$i; done"
    app_id = jobs.submit(role(script, num_replicas=200), array=True)
    lines: dict[int, list[str]] = {k: [] for k in range(200)}
    everything = LogQuery(should_tail=True)
    for block in jobs.scheduler.log_blocks(app_id, [("worker", k) for k in range(200)], everything):
        lines[block.replica] += block.data.decode().splitlines()
    assert lines == {k: [f"{k}.{i}" for i in range(1, 6)] for k in range(200)}
    response = jobs.end_of(app_id)
    assert response.state == AppState.SUCCEEDED
    assert {replica.state for replica in response.to_status().replicas()} == {AppState.SUCCEEDED}


def test_why_a_job_waits(jobs: ShellJobs) -> None:
    impossible = jobs.submit(role("true", gpu=9))
    broken = jobs.submit("true", omit=["-o"], native=["-o /no/such/folder/x"])
    waiting = jobs.seen(impossible, lambda r: "gpu" in r.msg)
    assert waiting.state == AppState.PENDING
    assert "(-l gpu=9) cannot run because it offers only hc:gpu=2.000000" in waiting.msg
    failed = jobs.seen(broken, lambda r: r.msg.startswith("Eqw"))
    assert failed.state == AppState.PENDING
    assert "can't open output file" in failed.msg
    assert "qmod -cj" in failed.msg
    assert jobs.scheduler.cancel_many([impossible, broken]) == {impossible: None, broken: None}
    for app_id in (impossible, broken):
        assert jobs.end_of(app_id).state == AppState.CANCELLED


def test_refusals_are_in_the_words_of_grid_engine(jobs: ShellJobs) -> None:
    for cfg, words, hint in (
        ({"smp_pe": "nope"}, 'parallel environment "nope" does not exist', "qconf -spl"),
        ({"gpu": "tesla"}, 'unknown resource "tesla"', "qconf -sc"),
    ):
        with pytest.raises(BackendError) as caught:
            jobs.submit(role("true", cpu=2, gpu=1), **cfg)
        assert words in caught.value.message
        assert hint in caught.value.hint
        assert not isinstance(caught.value, UnreachableError)


def test_a_job_goes_on_after_the_loss_of_its_host(own_engine: GridEngine, jobs: ShellJobs) -> None:
    script = (
        'n=$(cat "$SHUNTER_JOB_DIR/work/n" 2>/dev/null || echo 0); echo run $n on $(hostname); '
        '[ $n = 1 ] || { echo 1 >"$SHUNTER_JOB_DIR/work/n"; echo saved; sleep 600; }'
    )
    app_id = jobs.submit(role(script, max_retries=1))
    followed = iter(jobs.scheduler.log_iter(app_id, "worker", should_tail=True))
    first = [next(followed), next(followed)]
    assert first[1] == "saved\n"
    running = jobs.seen(app_id, lambda r: r.to_status().replicas()[0].hostname)
    host = running.to_status().replicas()[0].hostname
    own_engine.kill_node(host)
    fresh = create_scheduler("other")
    lost = fresh.describe(app_id)
    assert lost is not None
    assert not is_terminal(lost.state), lost
    own_engine.start_node(host)  # it reports that the job is gone, and qmaster starts it again (-r y)
    states = []

    def has_ended(response: object) -> bool:
        states.append(response.state)  # type: ignore[attr-defined]
        return is_terminal(states[-1])

    ended = jobs.seen(app_id, has_ended)
    assert set(states) <= {AppState.RUNNING, AppState.PENDING, AppState.SUCCEEDED}, states
    assert (ended.state, ended.num_restarts) == (AppState.SUCCEEDED, 1)
    (again,) = list(followed)
    assert (first[0], again[:9]) == (f"run 0 on {host}\n", "run 1 on ")
    described = fresh.describe(app_id)
    assert described is not None
    assert described.state == AppState.SUCCEEDED  # whatever the accounting has of the lost run


@pytest.mark.timeout(600)
def test_a_job_of_two_hosts_goes_on_after_the_loss_of_one(own_engine: GridEngine, jobs: ShellJobs) -> None:
    script = (
        'again="$SHUNTER_JOB_DIR/work/again"; echo up; [ ! -e "$again" ] || exit 0; '
        'trap "echo stopped; exit 9" TERM; sleep 600 & wait'
    )
    app_id = jobs.submit(role(script, num_replicas=2, max_retries=1), pe="spread")
    running = jobs.seen(
        app_id, lambda r: [x.state for x in r.to_status().replicas()] == [AppState.RUNNING] * 2
    )
    for k in (0, 1):
        assert next(iter(jobs.scheduler.log_iter(app_id, "worker", k, should_tail=True))) == "up\n"
    Path(jobs.scheduler.default_place().shared, "jobs", app_id, "work/again").touch()
    host = running.to_status().replicas()[1].hostname
    own_engine.kill_node(host)
    lost = jobs.seen(app_id, lambda r: "was lost" in r.to_status().replicas()[1].reason)
    assert not is_terminal(lost.state)
    # The attempt in the same slots fails, after a minute and a half. A host that was back by then might be
    # confused: Grid Engine 8.1.9 may kill what has just started there, or wait forever for its clean-up.
    jobs.seen(app_id, lambda r: r.state == AppState.PENDING, patience=4 * PATIENCE)
    own_engine.start_node(host)
    ended = jobs.end_of(app_id)
    assert (ended.state, ended.num_restarts) == (AppState.SUCCEEDED, 2), ended
    assert [jobs.lines(app_id, k) for k in (0, 1)] == [["up", "stopped", "up", "up"], ["up", "up"]]


def test_without_accounting_jobs_are_known_by_their_records(own_engine: GridEngine, jobs: ShellJobs) -> None:
    accounting = own_engine.root / "sge/default/common/accounting"
    accounting.mkdir()  # nobody can write or read it
    ids = [jobs.submit(script) for script in ("true", "exit 5", "echo up; sleep 600")]
    # the queue says "running" before the job's script runs, and what is deleted before that leaves no record
    assert next(iter(jobs.scheduler.log_iter(ids[2], "worker", should_tail=True))) == "up\n"
    running = jobs.seen(ids[2], lambda r: r.state == AppState.RUNNING)
    own_engine.run("/usr/lib/gridengine/qdel", running.metadata["native_id"])
    found = [jobs.end_of(app_id) for app_id in ids]
    assert [response.state for response in found[:2]] == [AppState.SUCCEEDED, AppState.FAILED]
    assert found[1].msg == "worker/0: exit code 5"
    assert found[2].state == AppState.CANCELLED
    assert "the queue no longer lists it" in found[2].msg
    assert {row.app_id for row in jobs.scheduler.list()} == set(ids)


def test_a_job_outlives_the_absence_of_qmaster(own_engine: GridEngine, jobs: ShellJobs) -> None:
    app_id = jobs.submit(WAITS)
    followed = iter(jobs.scheduler.log_iter(app_id, "worker", should_tail=True))
    assert next(followed) == "first\n"
    jobs.seen(app_id, lambda r: r.state == AppState.RUNNING)
    own_engine.stop_master()
    gone = jobs.seen(app_id, lambda r: r.state != AppState.RUNNING)
    assert gone.state == AppState.UNREACHABLE
    assert "qmaster" in gone.msg
    with pytest.raises(UnreachableError):
        jobs.submit("true")
    assert isinstance(jobs.scheduler.cancel_many([app_id])[app_id], UnreachableError)
    Path(jobs.scheduler.default_place().shared, "jobs", app_id, "work/go").touch()
    ended = jobs.seen(app_id, lambda r: is_terminal(r.state))
    assert ended.state == AppState.SUCCEEDED  # by the record that it left
    own_engine.start_master()
    assert list(followed) == ["last\n"]
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED


def test_a_killed_job_is_known_by_the_accounting(jobs: ShellJobs) -> None:
    app_id = jobs.submit("echo up; kill -9 $PPID; sleep 600", omit=["-notify"])
    assert jobs.end_of(app_id).state == AppState.FAILED


def test_nothing_runs_on_after_the_hard_limit(jobs: ShellJobs) -> None:
    """The queue kills the process group of its script, and the program has one of its own."""
    token = f"unending-{uuid.uuid4().hex}"
    script = f"trap '' USR1 TERM; echo up; while : {token}; do sleep 1; done"
    app_id = jobs.submit(script, time="20", omit=["-notify", "-l s_rt"])
    assert next(iter(jobs.scheduler.log_iter(app_id, "worker", should_tail=True))) == "up\n"
    assert runs(token)
    assert jobs.end_of(app_id).state == AppState.FAILED
    wait_until(lambda: not runs(token), "the end of the program")


def runs(token: str) -> bool:
    """Return whether a command line has a word; hosts have process ids of their own."""
    return subprocess.run(["pgrep", "-f", token], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_command_runs_on_the_host_of_a_replica(jobs: ShellJobs, capfd: pytest.CaptureFixture[str]) -> None:
    app_id = jobs.submit("sleep 600")
    response = jobs.seen(
        app_id, lambda r: r.state == AppState.RUNNING and r.roles_statuses[0].replicas[0].hostname
    )
    (replica,) = response.to_status().replicas()
    command = ["sh", "-c", 'echo "on $(hostname)"; exit 5']
    code = jobs.scheduler.execute(app_id, "worker", 0, command, tty=False)
    assert (code, capfd.readouterr().out.split()) == (5, ["on", replica.hostname])


def test_a_port_of_a_host_is_forwarded(jobs: ShellJobs) -> None:
    app_id = jobs.submit(f"exec python3 -c '{PROGRAM}'")
    line = next(iter(jobs.scheduler.log_iter(app_id, "worker", should_tail=True)))
    with Forwarding(f"sge://test/{app_id}", int(line.split()[1]), os.environ) as forwarding:
        assert forwarding.get("/a") == b"/a" * 100_000  # one after the other: each takes a slot
        assert forwarding.post(b"\x00\xff\n" * 1000) == b"\x00\xff\n" * 1000
        jobs.scheduler.cancel(app_id)
        assert "has ended: CANCELLED" in forwarding.said()


@pytest.mark.slow
def test_an_interactive_job_is_entered_and_ends_when_idle(engine: GridEngine, tmp_path: Path) -> None:
    check_on_a_cluster("sge", tmp_path / "project", "-cfg", "memory=,smp_pe=smp")


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


def test_doctor_reads_the_configuration(jobs: ShellJobs) -> None:
    cfg = {"queue": "nope", "pe": "mpi", "memory": "mem"}
    found = {check.name: check for check in jobs.scheduler.doctor(cfg)}
    assert found["Grid Engine"].ok
    assert found["queue"].ok is False
    assert found["pe"].text == "mpi: fills hosts one after the other"
    assert found["smp_pe"].ok
    assert found["memory"].ok is None
    assert found["memory"].hint == "Set mem_per=slot."
    assert found["hosts"].text == "2 of 2 hosts answer"


@pytest.mark.parametrize(
    ("fields", "cfg", "ok", "text"),
    [
        ({"cpu": 8, "memory": 1000}, {}, True, "queues could run it, if empty"),
        ({"cpu": 9, "memory": 1000}, {}, False, 'PE "smp" because it only offers 0 slots'),
        ({"gpu": 2, "memory": 1000}, {}, True, "queues could run it, if empty"),
        ({"gpu": 3}, {}, False, 'at host "n1" because it offers only hc:gpu=2'),
        ({"memory": 99_000_000}, {}, False, "it offers only hl:mem_total="),
        ({"memory": 5000}, {"memory": "mem", "mem_per": "slot"}, False, "it offers only hc:mem=4.000G"),
        ({"num_replicas": 2, "memory": 1000}, {"pe": "spread"}, True, "queues could run it, if empty"),
        ({"num_replicas": 3, "memory": 1000}, {"pe": "spread"}, False, "it only offers 2 slots"),
        ({"num_replicas": 3}, {"array": True}, True, "queues could run it, if empty"),
        ({"num_replicas": 2}, {"pe": "nope"}, False, 'environment "nope" does not exist'),
        ({}, {"queue": "all.q@n9"}, False, 'unknown queue "all.q@n9"'),
        ({}, {"native": ["-l 'mf=1G,gpu=2'"]}, True, "queues could run it, if empty"),
        ({}, {"native": ["-l gpu=3,mf=1G"]}, False, "it offers only hc:gpu=2"),
        ({"memory": 100}, {"memory": "cpu"}, None, "is not known whether a queue could run it"),
        ({"memory": 100, "gpu": 3}, {"memory": "cpu"}, False, "it offers only hc:gpu=2"),
    ],
)  # fmt: skip
def test_grid_engine_says_whether_queues_could_run_a_job(
    jobs: ShellJobs, fields: dict[str, Any], cfg: dict[str, Any], ok: bool | None, text: str
) -> None:
    info = jobs.scheduler.submit_dryrun(AppDef("job", [role("true", **fields)]), cfg)
    (check,) = jobs.scheduler.examine_job(info)
    assert (check.name, check.ok) == ("the job", ok), check
    assert text in check.text
    assert info.request.app_id not in {row.app_id for row in jobs.scheduler.list()}  # nothing was submitted


def test_whether_a_job_fits_is_not_known_while_qmaster_does_not_answer(
    jobs: ShellJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = jobs.scheduler.submit_dryrun(AppDef("job", [role("true")]), {})
    monkeypatch.setenv("SGE_QMASTER_PORT", "6499")
    (check,) = jobs.scheduler.examine_job(info)
    assert check.ok is None
    assert "it was not compared with the queues: cannot verify the job here" in check.text


def test_a_qmaster_that_is_somewhere_else_does_not_answer(
    jobs: ShellJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_id = jobs.submit("true")
    jobs.end_of(app_id)
    monkeypatch.setenv("SGE_QMASTER_PORT", "6499")
    fresh: SgeScheduler = create_scheduler("other")
    fresh.context = KnownContext(ids={app_id: f"1 - {jobs.scheduler.default_place().shared}"})
    response = fresh.describe(app_id)
    assert response is not None
    assert response.state == AppState.SUCCEEDED  # its own record tells, though the queue does not answer
    with pytest.raises(UnreachableError):
        fresh.list()
