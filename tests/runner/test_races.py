"""Races: of one job on several schedulers exactly one runs."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from shunter.errors import BackendError, ConfigError
from shunter.paths import state_dir
from shunter.runner import Runner, get_runner, races
from shunter.schedulers.local_scheduler.scheduler import LocalScheduler
from shunter.schedulers.registry import get_scheduler_factories
from shunter.schedulers.supervisor import lease
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs import AppDef, AppState, Role
from shunter.specs.submission import Submission
from tests.race_tries import run_race
from tests.schedulers.hpc.conftest import queue, wait_until  # noqa: F401 - a fixture
from tests.schedulers.hpc.fake_cluster import FakeCluster
from tests.schedulers.sge.conftest import engine  # noqa: F401 - a fixture
from tests.schedulers.slurm.conftest import slurm  # noqa: F401 - a fixture

PATIENCE = 50


def job(script: str, scheduler: str = "local_cwd", after: str = "", **options: object) -> Submission:
    app = AppDef("job", [Role("r", "", entrypoint="sh", args=["-c", script])])
    return Submission(app=app, scheduler=scheduler, options=options, after=[after] if after else [])


def end_of(runner: Runner, handle: str) -> tuple[AppState, str]:
    status = runner.wait(handle, timeout=PATIENCE)
    assert status is not None
    return status.state, status.reason


@pytest.fixture
def runner():
    with get_runner() as made:
        yield made


@pytest.fixture
def queued(queue):  # noqa: F811
    """A runner with a cluster whose jobs wait, and this machine."""
    with Runner("sess", {"fake": FakeCluster, "local_cwd": LocalScheduler}) as made:
        yield made


@pytest.fixture
def blocker(queued, shared):
    """A job of the cluster; what comes after it waits."""
    handle = queued.submit(job("exec sleep 300", "fake", shared_dir=shared))
    yield handle
    queued.cancel(handle)


@pytest.fixture
def shared(tmp_path):
    return str(tmp_path / "shared")


def start_at_once(race: races.Race) -> list[str]:
    """Submit all jobs of a race in threads, without looking at the lease."""
    handles = []

    def submit(info):
        with get_runner() as own:
            handles.append(own.schedule(info))

    threads = [threading.Thread(target=submit, args=(info,)) for info in race.jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return handles


# ---- the lease


def test_one_of_many_gets_a_lease_and_keeps_it(tmp_path):
    path = str(tmp_path / "races" / "lease")
    os.mkdir(tmp_path / "races")
    assert lease.holder(path) == ""
    results: list[tuple[str, str]] = []
    barrier = threading.Barrier(16)

    def take(name: str) -> None:
        barrier.wait()
        results.append((name, lease.take(path, name)))

    threads = [threading.Thread(target=take, args=(f"local_cwd://s/{number}",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = {holder for _, holder in results}
    assert [name for name, holder in results if name == holder] == [winner]
    assert lease.take(path, winner) == lease.holder(path) == winner
    assert os.listdir(tmp_path / "races") == ["lease"]


# ---- jobs


def test_jobs_that_start_at_once(runner, tmp_path):
    ran = tmp_path / "ran"
    race = races.plan_race(runner, [job(f'echo "$TORCHX_JOB_ID" >>{ran}; sleep 0.2')] * 5)
    handles = start_at_once(race)
    ends = {handle: end_of(runner, handle) for handle in handles}
    (winner,) = ran.read_text().split()
    assert ends.pop(winner) == (AppState.SUCCEEDED, "")
    assert set(ends.values()) == {(AppState.CANCELLED, f"race lost to {winner}")}
    assert len(ends) == 4
    records = runner.history.of_race(race.id)
    assert {record.handle for record in records} == set(handles)


def test_nothing_is_submitted_once_one_has_started(runner, tmp_path):
    race = races.plan_race(runner, [job("exit 0"), job("exit 0")])
    said: list[str] = []
    holder = lease.take(_folder_made(race.lease), f"local_cwd://shunter/{race.jobs[0].app_id}")
    handles = races.submit_race(runner, race, said.append)
    assert handles == [holder]
    assert said == [f"{holder} has started, so nothing was submitted to local_cwd"]


def _folder_made(path: str) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def test_retries_and_replicas_of_the_winner_share_its_lease(runner, tmp_path):
    ran = tmp_path / "ran"
    script = f'echo "$TORCHX_JOB_ID" >>{ran}; [ "$(wc -l <{ran})" -ge 5 ]'
    both = [
        Submission(app=AppDef("job", [role]), scheduler="local_cwd")
        for role in [Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=2, max_retries=4)] * 2
    ]
    handles = start_at_once(races.plan_race(runner, both))
    ends = sorted(end_of(runner, handle)[0].name for handle in handles)
    assert ends == ["CANCELLED", "SUCCEEDED"]
    assert len(set(ran.read_text().split())) == 1


def test_a_race_is_over_when_its_winner_fails_or_is_killed(runner, tmp_path):
    ran = tmp_path / "ran"
    race = races.plan_race(runner, [job(f"echo >>{ran}; exec sleep 300")] * 2)
    first = runner.schedule(race.jobs[0])
    assert races.await_winner(runner, race.id, [first]) == first
    wait_until(ran.exists, "the start of the program")
    state = JobDirectory.of(first.rpartition("/")[2]).read_state()
    assert state is not None
    os.kill(state["supervisor"][0], signal.SIGKILL)
    assert end_of(runner, first)[0] == AppState.FAILED
    assert end_of(runner, runner.schedule(race.jobs[1])) == (AppState.CANCELLED, f"race lost to {first}")
    assert len(ran.read_text().splitlines()) == 1


def test_a_job_without_the_folder_of_the_lease_does_not_run(runner, tmp_path):
    ran = tmp_path / "ran"
    race = races.plan_race(runner, [job(f"echo >>{ran}")] * 2)
    Path(_folder_made(race.lease)).mkdir()
    state, reason = end_of(runner, runner.schedule(race.jobs[0]))
    assert state == AppState.FAILED
    assert "the lease of its race cannot be taken" in reason
    assert not ran.exists()


def test_nobody_is_notified_of_a_lost_race(runner, tmp_path):
    told = tmp_path / "told"
    race = races.plan_race(runner, [job("exit 0", notify=[f"cat >>{told}; echo >>{told}"])] * 3)
    handles = start_at_once(race)
    for handle in handles:
        end_of(runner, handle)
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"), "the notification")
    assert told.read_text().count('"SUCCEEDED"') == 1
    assert "CANCELLED" not in told.read_text()
    boxes = [JobDirectory.of(handle.rpartition("/")[2]).path for handle in handles]
    assert sum(os.path.exists(f"{box}/notify.waiting.json") for box in boxes) <= 1


def test_a_refusal_leaves_the_others(runner, monkeypatch):
    race = races.plan_race(runner, [job("exit 0"), job("exit 0")])
    schedule, said = runner.schedule, []

    def refuse_the_first(info):
        if info is race.jobs[0]:
            raise BackendError("the queue is closed")
        return schedule(info)

    monkeypatch.setattr(runner, "schedule", refuse_the_first)
    (handle,) = races.submit_race(runner, race, said.append)
    assert said == ["local_cwd does not take part: the queue is closed"]
    assert end_of(runner, handle)[0] == AppState.SUCCEEDED
    assert races.await_winner(runner, race.id, [handle]) == handle


def test_a_race_whose_jobs_are_all_cancelled_has_no_winner(queued, blocker, shared):
    race = races.plan_race(queued, [job("exit 0", "fake", blocker, shared_dir=shared)] * 2)
    handles = races.submit_race(queued, race, pytest.fail)
    queued.cancel_many(handles)
    assert races.await_winner(queued, race.id, handles) == ""


# ---- looking


def test_who_looks_cancels_what_still_waits(queued, blocker, shared):
    race = races.plan_race(queued, [job("exit 0", "fake", blocker, shared_dir=shared), job("exit 0")])
    assert race.lease == f"{shared}/races/{race.id}"
    waiting, local = races.submit_race(queued, race, pytest.fail)
    assert queued.wait(local, timeout=PATIENCE).state == AppState.SUCCEEDED
    rows = {record.handle: record for record in queued.jobs()}
    assert (rows[waiting].state, rows[waiting].msg) == (AppState.CANCELLED, f"race lost to {local}")
    assert end_of(queued, waiting) == (AppState.CANCELLED, f"race lost to {local}")


# ---- what cannot be guaranteed is refused


def test_schedulers_that_share_nothing_are_refused(runner, queued, tmp_path):
    with pytest.raises(ConfigError, match="kubernetes: jobs there share no folder with others") as refused:
        races.plan_race(runner, [job("exit 0"), job("exit 0", "kubernetes")])
    assert races.EXAMPLE in refused.value.hint
    one, other = (job("exit 0", "fake", shared_dir=str(tmp_path / name)) for name in "ab")
    with pytest.raises(ConfigError, match="share no folder for the lease"):
        races.plan_race(queued, [one, other])
    away = job("exit 0", "fake", host="login", shared_dir="/shared")
    with pytest.raises(ConfigError, match="they share no folder") as refused:
        races.plan_race(queued, [job("exit 0"), away])
    assert "Run shunter on login" in refused.value.hint
    assert races.EXAMPLE in refused.value.hint
    race = races.plan_race(queued, [away, away])
    assert race.lease == f"/shared/races/{race.id}"
    assert not os.path.exists(os.path.join(state_dir(), races.FOLDER))


def test_which_schedulers_can_race(runner):
    able = [
        name for name in get_scheduler_factories() if isinstance(runner.scheduler(name), races.TakesLeases)
    ]
    assert sorted(able) == ["local_cwd", "local_docker", "lsf", "sge", "slurm"]


# ---- real ones


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_races_of_slurm_docker_and_this_machine(slurm, image, tmp_path):  # noqa: F811
    for number in range(10):
        run_race(tmp_path / str(number), image, random.Random(number), looks=number % 2 == 0)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_winner_takes_its_rival_out_of_the_queue(slurm, runner, shared):  # noqa: F811
    def on_slurm(*words: str) -> Submission:
        app = AppDef("job", [Role("r", "", entrypoint="true", num_replicas=2)])
        options = {"shared_dir": shared, "sbatch_args": [*words], "partition": "cpu"}
        return Submission(app=app, scheduler="slurm", options=options)

    race = races.plan_race(runner, [on_slurm("--begin=now+1hour"), on_slurm()])
    waiting, first = (runner.schedule(info) for info in race.jobs)
    assert end_of(runner, first) == (AppState.SUCCEEDED, "")
    native = runner.history.find(waiting).native_id.split()[0]
    wait_until(lambda: "PENDING" not in slurm.run("squeue", "-h", "-j", native, check=False), "scancel")
    assert end_of(runner, waiting) == (AppState.CANCELLED, f"race lost to {first}")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_races_on_grid_engine(engine, runner, shared, tmp_path):  # noqa: F811
    script = f'echo "$TORCHX_JOB_ID" >>{tmp_path}/ran'
    race = races.plan_race(runner, [job(script, "sge", shared_dir=shared) for _ in range(3)])
    ends = {handle: end_of(runner, handle) for handle in start_at_once(race)}
    (winner,) = (tmp_path / "ran").read_text().split()
    assert ends.pop(winner) == (AppState.SUCCEEDED, "")
    assert set(ends.values()) == {(AppState.CANCELLED, f"race lost to {winner}")}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_follow_up_of_a_lost_race_neither_retries_nor_notifies(slurm, runner, shared, tmp_path):  # noqa: F811
    told, ran = tmp_path / "told", tmp_path / "ran"
    options = {"notify": [f"cat >>{told}"], "retry": {"other": "2"}, "shared_dir": shared}
    script = f'echo "$TORCHX_JOB_ID" >>{ran}; [ "$(wc -l <{ran})" = 2 ]'
    handles = start_at_once(races.plan_race(runner, [job(script, "slurm", **options)] * 2))
    ends = sorted(end_of(runner, handle)[0].name for handle in handles)
    assert ends == ["CANCELLED", "SUCCEEDED"]
    assert len(set(ran.read_text().split())) == 1
    wait_until(lambda: not slurm.run("squeue", "-h").strip(), "the end of the follow-ups")
    assert told.read_text().count('"SUCCEEDED"') == 1
    assert "CANCELLED" not in told.read_text()
