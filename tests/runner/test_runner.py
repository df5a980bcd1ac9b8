from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import (
    BackendError,
    ConfigError,
    InvalidRunConfigException,
    MalformedAppHandleException,
    StateStoreError,
    UnknownAppException,
    UnknownSchedulerException,
    UsageError,
)
from shunter.runner import Runner, get_runner, submit
from shunter.runner.records import JobRecord
from shunter.schedulers.api import DescribeAppResponse, LogQuery, Scheduler
from shunter.specs import AppDef, AppState, BindMount, Role, parse_app_handle
from shunter.specs.handles import LatestOfSeveral
from tests.runner.fake_scheduler import FakeOpts, FakeScheduler, UnreachableScheduler
from tests.trusting import trust_project


def app_id(handle: str) -> str:
    return parse_app_handle(handle).app_id


# ---- submitting


def test_run_gives_a_handle_that_works(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    handle = runner.run(app, "fake", {"queue": "gpu"})
    assert handle.startswith("fake://sess/digits-")
    status = runner.status(handle)
    assert status is not None
    assert status.state is AppState.RUNNING
    fake.set(app_id(handle), state="SUCCEEDED")
    ended = runner.wait(handle)
    assert ended is not None
    ended.raise_for_status()


def test_the_job_knows_itself_by_a_handle_that_works(
    runner: Runner, fake: FakeScheduler, app: AppDef
) -> None:
    handle = runner.run(app, "fake", parent_run_id="parent/7")
    envs = [role["env"] for role in fake.job(app_id(handle))["roles"]]
    assert [env["TORCHX_JOB_ID"] for env in envs] == [handle, handle]
    assert [env["TORCHX_ROLE_IDX"] for env in envs] == ["0", "1"]
    assert [env["TORCHX_ROLE_NAME"] for env in envs] == ["trainer", "reader"]
    assert [env["TORCHX_REPLICA_IDX"] for env in envs] == ["0", "0"]
    assert [env["TORCHX_PARENT_RUN_ID"] for env in envs] == ["parent/7"] * 2
    assert envs[0]["TORCHX_INTERNAL_SESSION_ID"] == envs[1]["TORCHX_INTERNAL_SESSION_ID"] != ""
    assert "TORCHX_TRACKERS" not in envs[0]


def test_trackers_of_the_configuration_reach_the_job(
    runner: Runner, fake: FakeScheduler, app: AppDef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".torchxconfig").write_text(
        "[torchx:tracker]\nruns =\nbare=\n\n[tracker:runs]\nconfig = /r.conf\n"
    )
    monkeypatch.chdir(tmp_path)
    trust_project()
    app.roles[1].env["TORCHX_TRACKER_RUNS_CONFIG"] = "/own"
    env, own = (role["env"] for role in fake.job(app_id(runner.run(app, "fake")))["roles"])
    assert env["TORCHX_TRACKERS"] == "runs,bare"
    assert env["TORCHX_TRACKER_RUNS_CONFIG"] == "/r.conf"
    assert "TORCHX_TRACKER_BARE_CONFIG" not in env
    assert own["TORCHX_TRACKER_RUNS_CONFIG"] == "/own"


def test_dryrun_changes_nothing_and_repeats_equal(
    runner: Runner, fake: FakeScheduler, app: AppDef, home: Path
) -> None:
    app.roles[0].mounts.append(BindMount("/a", "/b"))
    before = copy.deepcopy(app)
    first = runner.dryrun(app, "fake")
    second = runner.dryrun(app, "fake")
    assert app == before
    assert first.app == second.app
    assert first.app is not app
    assert not home.exists()
    assert fake.describe_calls == []


def test_options_dataclass_and_texts_are_taken(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    by_class = runner.run(app, "fake", FakeOpts(queue="q", tags=["a"]))  # type: ignore[arg-type]
    cfg = runner.cfg_from_str("fake", "queue=q", "tags=a,priority=3")
    assert cfg == {"queue": "q", "tags": ["a"], "priority": 3}
    by_text = runner.run(app, "fake", cfg)
    assert fake.job(app_id(by_class))["cfg"]["tags"] == fake.job(app_id(by_text))["cfg"]["tags"] == ["a"]


@pytest.mark.parametrize(
    ("cfg", "text"),
    [({"prioritty": 3}, "Did you mean priority?"), ({"priority": "high"}, "'high' is not an integer")],
)
def test_bad_options_are_refused_before_anything_is_written(
    runner: Runner, app: AppDef, home: Path, cfg: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidRunConfigException, match="option") as caught:
        runner.run(app, "fake", cfg)
    assert text.rstrip("?") in str(caught.value)
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("utils.echo", "text"), "arguments='text': expected a list of words"),
        (("utils.echo", ["--msg", 3]), r"arguments=\['--msg', 3\]: expected a list of words"),
        (("utils.echo", 3), "arguments=3"),
        ((3, []), "component=3"),
        (("utils.echo", [], 3), "scheduler=3"),
        (("utils.echo", [], "fake", "a=1"), "options='a=1'"),
        (("utils.echo", [], "fake", {}, 3), "the workspace 3"),
    ],
)
def test_values_of_other_types_are_refused(runner: Runner, arguments: Any, text: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=text):
        runner.run_component(*arguments)
    with pytest.raises(UsageError, match="expected an AppDef"):
        runner.run("utils.echo", "fake")  # type: ignore[arg-type]


def test_a_job_that_is_not_complete_is_refused(runner: Runner) -> None:
    with pytest.raises(ConfigError, match="has no entrypoint"):
        runner.run(AppDef("x", [Role("a", "img")]), "fake")


def test_scheduler_goes_by_the_name_of_its_factory(app: AppDef) -> None:
    with Runner("sess", {"acme": FakeScheduler}) as runner:
        handle = runner.run(app, "acme")
        assert handle.startswith("acme://sess/")
        status = runner.status(handle)
        assert status is not None
        assert runner.describe(handle) is not None
        assert [row.handle for row in runner.jobs()] == [handle]
        assert runner.list("acme")[0].app_handle == handle


def test_unknown_scheduler(runner: Runner, app: AppDef) -> None:
    with pytest.raises(UnknownSchedulerException, match="fake"):
        runner.run(app, "fkae")
    with pytest.raises(UnknownSchedulerException):
        runner.status("fkae://s/x")


def test_environment_never_becomes_a_constructor_argument(
    monkeypatch: pytest.MonkeyPatch, app: AppDef
) -> None:
    monkeypatch.setenv("TORCHX_CACHE_SIZE", "5")
    monkeypatch.setenv("SHUNTER_CACHE_SIZE", "5")
    with Runner("s", {"fake": FakeScheduler}, scheduler_params={"given": 1}) as runner:
        fake = runner.scheduler("fake")
        assert isinstance(fake, FakeScheduler)
        assert fake.params == {"given": 1}
    with get_runner() as real:
        assert real.dryrun(app, "local_cwd").app_id


def test_get_runner_knows_the_builtin_schedulers() -> None:
    with get_runner() as runner:
        assert runner.name() == "shunter"
        assert runner.scheduler_backends()[0] == "local_cwd"
        assert runner.scheduler("local_cwd") is runner.scheduler("local_cwd")
    with get_runner("mine") as runner:
        assert runner.scheduler("local_cwd").session_name == "mine"


def test_close_closes_schedulers_and_can_be_repeated(app: AppDef) -> None:
    runner = Runner("s", {"fake": FakeScheduler})
    fake = runner.scheduler("fake")
    assert isinstance(fake, FakeScheduler)
    runner.run(app, "fake")
    runner.close()
    runner.close()
    assert fake.closed == 1


class PlainScheduler(FakeScheduler):
    """One that ships no code."""

    _plan_shipment = Scheduler._plan_shipment


def test_a_workspace_that_would_be_left_behind_is_refused(app: AppDef, tmp_path: Path) -> None:
    with Runner("s", {"plain": PlainScheduler}) as runner:
        with pytest.raises(ConfigError, match="cannot ship a workspace"):
            runner.dryrun(app, "plain", workspace=str(tmp_path))
        assert runner.dryrun(app, "plain", workspace="").travels is None


def test_code_is_shipped_between_intent_and_request(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    info = runner.dryrun(app, "fake", workspace="sub")
    assert fake.shipped == []
    assert info.request["roles"][0]["image"] == "planned:code"
    handle = runner.schedule(info)
    assert fake.shipped == ["sub"]
    job = fake.job(handle.rpartition("/")[2])
    assert [role["image"] for role in job["roles"]] == ["exact@sha256:1234"] * 2
    record = runner.history.find(handle)
    assert record is not None
    assert (record.workspace, record.fingerprint) == ("sub", "f" * 64)
    assert record.images == {role["name"]: "exact@sha256:1234" for role in job["roles"]}


@pytest.mark.parametrize(
    ("error", "reason"),
    [(BackendError("the registry said no"), "the registry said no"), (KeyboardInterrupt(), "interrupted")],
)
def test_code_that_does_not_arrive_starts_no_job(
    runner: Runner, fake: FakeScheduler, app: AppDef, error: BaseException, reason: str
) -> None:
    fake.fail_ship = error
    with pytest.raises(type(error)):
        runner.run(app, "fake", workspace=".")
    assert fake.list() == []
    (row,) = runner.history.rows()
    assert row.phase == "refused"
    assert reason in row.msg


def test_run_component_records_component_and_arguments(
    runner: Runner, app: AppDef, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    class Stub:
        config_name = "jobs.train"

        def parse(self, args: Any, defaults: Any) -> AppDef:
            calls.append((args, defaults))
            return app

    monkeypatch.setattr("shunter.components.finder.get_component", lambda name: Stub())
    runner.component_defaults = {
        "jobs.train": {"lr": "0.1", "n": "1"},
        "jobs.py:train": {"n": "2"},
        "other": {"lr": "5"},
    }
    handle = runner.run_component("jobs.py:train", ["--api-key", "k-123", "--lr", "1"], "fake")
    assert calls == [(["--api-key", "k-123", "--lr", "1"], {"lr": "0.1", "n": "2"})]
    record = runner.history.find(handle)
    assert record is not None
    assert record.component == "jobs.py:train"
    assert record.component_args == ["--api-key", "<redacted:api-key>", "--lr", "1"]


# ---- what the scheduler says no to


def test_a_refused_submission_is_recorded_with_its_reason(
    runner: Runner, fake: FakeScheduler, app: AppDef
) -> None:
    fake.fail_schedule = BackendError("quota exceeded for token=abcdef123")
    with pytest.raises(BackendError, match="quota"):
        runner.run(app, "fake")
    (record,) = runner.jobs()
    assert (record.phase, record.state) == ("refused", AppState.UNSUBMITTED)
    assert record.msg == "quota exceeded for token=<redacted:token>"
    assert runner.history.latest() is None


def test_a_job_that_exists_although_its_submission_failed_is_recorded(
    runner: Runner, fake: FakeScheduler, app: AppDef
) -> None:
    fake.fail_after_schedule = BackendError("the answer was lost")
    with pytest.raises(BackendError, match="lost"):
        runner.run(app, "fake")
    (record,) = runner.jobs()
    assert (record.phase, record.state) == ("submitted", AppState.RUNNING)
    assert runner.status(record.handle) is not None


def test_nothing_is_sent_when_the_intent_cannot_be_recorded(
    runner: Runner, fake: FakeScheduler, app: AppDef, home: Path
) -> None:
    home.mkdir()
    (home / "state").write_text("in the way")
    with pytest.raises(StateStoreError, match="state"):
        runner.run(app, "fake")
    assert not fake.directory.exists()


def test_a_job_is_not_lost_when_its_row_cannot_be_completed(
    runner: Runner, fake: FakeScheduler, app: AppDef, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **columns: object) -> None:
        raise StateStoreError("the disk is full")

    monkeypatch.setattr(runner.history, "submitted", fail)
    with pytest.warns(RuntimeWarning, match="disk is full"):
        handle = runner.run(app, "fake")
    assert runner.status(handle) is not None


def test_the_request_carries_the_client_token(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    handle = runner.run(app, "fake")
    record = runner.history.find(handle)
    assert record is not None
    assert fake.job(app_id(handle))["token"] == record.key


# ---- observing


def test_status_of_what_does_not_exist(runner: Runner) -> None:
    assert runner.status("fake://sess/nope") is None
    assert runner.wait("fake://sess/nope") is None
    assert runner.describe("fake://sess/nope") is None
    with pytest.raises(MalformedAppHandleException):
        runner.status("nope")
    runner.cancel("fake://sess/nope")
    runner.stop("fake://sess/nope")
    for call in (runner.delete, runner.replicas):
        with pytest.raises(UnknownAppException, match="nope"):
            call("fake://sess/nope")
    with pytest.raises(UnknownAppException):
        runner.log_lines("fake://sess/nope", "r")
    with pytest.raises(UnknownAppException):
        runner.log_blocks("fake://sess/nope", [("r", 0)], LogQuery())


def test_not_seeing_a_job_is_not_its_failure(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    handle = runner.run(app, "fake")
    runner.status(handle)
    fake.fail_describe = BackendError("no route, password=hunter22")
    status = runner.status(handle)
    assert status is not None
    assert status.state is AppState.UNREACHABLE
    assert status.msg == "no route, password=<redacted:password>"
    assert runner.statuses([handle])[handle] == status
    assert runner.jobs()[0].state is AppState.UNREACHABLE
    record = runner.history.find(handle)
    assert record is not None
    assert record.state is AppState.RUNNING


def test_statuses_asks_each_scheduler_once(app: AppDef) -> None:
    factories = {
        "fake": FakeScheduler,
        "other": lambda session, **kw: FakeScheduler(session, "other"),
        "dead": lambda session, **kw: UnreachableScheduler(session, "dead"),
    }
    with Runner("s", factories) as runner:
        handles = [runner.run(app, name) for name in ("fake", "fake", "other", "dead")]
        fakes: dict[str, Any] = {name: runner.scheduler(name) for name in ("fake", "other")}
        statuses = runner.statuses([*handles, "fake://s/nope", "gone://s/x", handles[0]])
        assert list(statuses) == [*handles, "fake://s/nope", "gone://s/x"]
        states = [status.state.name if status else None for status in statuses.values()]
        assert states == ["RUNNING"] * 3 + ["UNREACHABLE", None, "UNREACHABLE"]
        assert [len(call) for call in fakes["fake"].describe_calls] == [3]
        assert [len(call) for call in fakes["other"].describe_calls] == [1]
        assert "hunter22" not in str(statuses)


def test_jobs_asks_only_for_what_has_not_ended(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    handles = [runner.run(app, "fake") for _ in range(3)]
    fake.set(app_id(handles[0]), state="FAILED", msg="it broke", ended_at=5.0)
    assert [job.state.name for job in runner.jobs()] == ["RUNNING", "RUNNING", "FAILED"]
    fake.describe_calls.clear()
    jobs = runner.jobs()
    assert [job.handle for job in jobs] == handles[::-1]
    assert (jobs[2].msg, jobs[2].ended_at) == ("it broke", 5.0)
    assert [sorted(call) for call in fake.describe_calls] == [sorted(map(app_id, handles[1:]))]
    fake.describe_calls.clear()
    assert [job.handle for job in runner.jobs(limit=1, refresh=False)] == [handles[2]]
    assert fake.describe_calls == []


def test_times_are_what_the_scheduler_tells_whenever_it_is_asked(
    runner: Runner, fake: FakeScheduler, app: AppDef
) -> None:
    told, silent, late = (runner.run(app, "fake") for _ in range(3))
    runner.jobs()
    fake.set(app_id(told), state="SUCCEEDED", started_at=100.0, ended_at=110.0)
    for handle in (silent, late):
        fake.set(app_id(handle), state="SUCCEEDED")
    runner.jobs()
    fake.set(app_id(late), started_at=200.0, ended_at=220.0)
    fake.set(app_id(told), started_at=1.0, ended_at=2.0)
    runner.statuses([told, late])
    found = {job.handle: (job.started_at, job.ended_at) for job in runner.jobs(refresh=False)}
    assert found == {told: (100.0, 110.0), silent: (None, None), late: (200.0, 220.0)}
    fake.forget(app_id(told))
    status = runner.status(told)
    assert status is not None
    assert (status.started_at, status.ended_at) == (100.0, 110.0)


def test_what_has_started_is_asked_for_alone_where_the_many_lack_replicas(
    runner: Runner, fake: FakeScheduler, app: AppDef, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [runner.run(app, "fake") for _ in range(2)]
    alone: list[str] = []

    def describe(app_id: str) -> DescribeAppResponse | None:
        alone.append(app_id)
        return fake._look(app_id)

    def describe_many(app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        found = {app_id: fake._look(app_id) for app_id in app_ids}
        for response in filter(None, found.values()):
            response.roles_statuses, response.started_at = [], None
        return found

    monkeypatch.setattr(fake, "describe", describe)
    monkeypatch.setattr(fake, "describe_many", describe_many)
    for handle in handles:
        fake.set(app_id(handle), started_at=100.0)
    assert [job.started_at for job in runner.jobs()] == [100.0, 100.0]
    assert [job.started_at for job in runner.jobs()] == [100.0, 100.0]
    assert sorted(alone) == sorted(map(app_id, handles)), "each only once"
    alone.clear()
    runner.statuses(handles)
    assert alone == [], "a job that runs costs no separate call"
    fake.set(app_id(handles[0]), state="SUCCEEDED", ended_at=110.0)
    runner.statuses(handles)
    first = runner.jobs(refresh=False)[1]
    assert (first.state, first.started_at, first.ended_at) == (AppState.SUCCEEDED, 100.0, 110.0)


def test_rows_of_an_id_that_was_used_again_are_both_brought_up_to_date(
    runner: Runner, fake: FakeScheduler, app: AppDef
) -> None:
    handle = runner.run(app, "fake")
    record = runner.history.find(handle)
    assert record is not None
    key = runner.history.add_intent(replace(record, key="again", phase="intent", handle=""))
    runner.history.submitted(key, handle, record.app_id)
    fake.set(record.app_id, state="SUCCEEDED")
    assert [job.state.name for job in runner.jobs()] == ["SUCCEEDED", "SUCCEEDED"]


def test_what_the_scheduler_forgot_is_still_known(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    ended, running = runner.run(app, "fake"), runner.run(app, "fake")
    fake.set(app_id(ended), state="SUCCEEDED")
    runner.jobs()
    for handle in (ended, running):
        fake.forget(app_id(handle))
    status, lost = runner.status(ended), runner.status(running)
    assert status is not None
    assert lost is not None
    assert (status.state, lost.state) == (AppState.SUCCEEDED, AppState.UNKNOWN)
    assert "last seen RUNNING" in lost.msg
    described = runner.describe(ended)
    assert described == app
    assert runner.replicas(ended) == [("trainer", 0), ("trainer", 1), ("reader", 0)]


def test_a_job_that_was_just_accepted_may_not_show_at_once(
    runner: Runner, fake: FakeScheduler, app: AppDef
) -> None:
    handle = runner.run(app, "fake")
    fake.forget(app_id(handle))
    assert runner.jobs()[0].state is AppState.SUBMITTED
    status = runner.status(handle)
    assert status is not None
    assert status.state is AppState.SUBMITTED
    record = runner.jobs()[0]
    runner.history.amend(record.key, submitted_at=record.created_at - 3600)
    assert runner.jobs()[0].state is AppState.UNKNOWN
    fake.describe_calls.clear()
    runner.jobs()
    assert fake.describe_calls == []


def test_an_end_that_was_seen_stays(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    handle = runner.run(app, "fake")
    fake.set(app_id(handle), state="SUCCEEDED")
    runner.status(handle)
    fake.set(app_id(handle), state="RUNNING")
    runner.status(handle)
    record = runner.history.find(handle)
    assert record is not None
    assert record.state is AppState.SUCCEEDED


def test_observing_works_where_the_history_cannot_be_written(
    runner: Runner, fake: FakeScheduler, app: AppDef, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = runner.run(app, "fake")
    dead = runner.dryrun(app, "fake")
    fake.schedule(dead)
    runner.history.add_intent(replace(submit.intent_of(fake, dead), submitter="1:1:another-boot"))
    fake.set(app_id(handle), state="SUCCEEDED")

    def fail(statements: object) -> None:
        raise StateStoreError("attempt to write a readonly database")

    monkeypatch.setattr(runner.history, "_write", fail)
    intent, ended = runner.jobs()
    assert (intent.phase, ended.state) == ("intent", AppState.SUCCEEDED)
    for status in (runner.status(handle), runner.wait(handle), runner.statuses([handle])[handle]):
        assert status is not None
        assert status.state is AppState.SUCCEEDED
    assert runner.resolve_handle("-") == handle


def test_wait_goes_on_through_outages(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    handle = runner.run(app, "fake")
    fake.set(app_id(handle), state="SUCCEEDED")
    outages = [BackendError("down"), OSError("down too")]

    def wait(app_id: str, timeout: float | None = None) -> DescribeAppResponse | None:
        if outages:
            raise outages.pop(0)
        return fake.describe(app_id)

    fake.wait = wait  # type: ignore[method-assign]
    with pytest.warns(RuntimeWarning, match="cannot be reached") as caught:
        status = runner.wait(handle, wait_interval=0)
    assert status is not None
    assert status.state is AppState.SUCCEEDED
    assert len(caught) == 1


def test_wait_ends_with_its_time(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    handle = runner.run(app, "fake")
    status = runner.wait(handle, timeout=0)
    assert status is not None
    assert status.state is AppState.RUNNING
    fake.fail_describe = BackendError("down")
    status = runner.wait(handle, timeout=0)
    assert status is not None
    assert status.state is AppState.UNREACHABLE
    fake.fail_describe = StateStoreError("no permission")
    with pytest.raises(StateStoreError):
        runner.wait(handle)


def test_list_fills_in_handles(runner: Runner, app: AppDef) -> None:
    handles = {runner.run(app, "fake") for _ in range(3)}
    assert {job.app_handle for job in runner.list("fake")} == handles


def test_cancel_and_delete(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    handle = runner.run(app, "fake")
    runner.cancel(handle)
    runner.cancel(handle)
    runner.stop(handle)
    status = runner.status(handle)
    assert status is not None
    assert status.state is AppState.CANCELLED
    runner.delete(handle)
    assert runner.status(handle) is None
    assert runner.jobs() == []
    assert [job.handle for job in runner.history.rows(deleted=True)] == [handle]
    with pytest.raises(UnknownAppException):
        runner.delete(handle)


def test_logs(runner: Runner, app: AppDef) -> None:
    handle = runner.run(app, "fake")
    assert runner.replicas(handle) == [("trainer", 0), ("trainer", 1), ("reader", 0)]
    assert list(runner.log_lines(handle, "trainer", 1)) == ["trainer/1 says hello\n"]
    blocks = runner.log_blocks(handle, runner.replicas(handle), LogQuery())
    assert sorted(block.data for block in blocks) == [
        b"reader/0 says hello\n",
        b"trainer/0 says hello\n",
        b"trainer/1 says hello\n",
    ]


# ---- handles


def test_resolve_handle(runner: Runner, app: AppDef) -> None:
    with pytest.raises(UnknownAppException, match="history is empty"):
        runner.resolve_handle("-")
    first = runner.run(app, "fake")
    app.name = "other"
    second = runner.run(app, "fake")
    for text in ("-", None, "oth", app_id(second), "fake://sess/oth", "fake://oth", second):
        assert runner.resolve_handle(text) == second
    assert runner.resolve_handle("digits") == first
    assert runner.resolve_handle("far://away/job7") == "far://away/job7"
    for text in ("nope", "fake://nope"):
        with pytest.raises(UnknownAppException, match="nope"):
            runner.resolve_handle(text)
    for text in ("", " ", "fake://", "fake://sess/"):  # a variable of a script that is not set
        with pytest.raises(UsageError, match="names no job"):
            runner.resolve_handle(text)


def test_an_ambiguous_prefix_lists_the_candidates(runner: Runner, app: AppDef) -> None:
    handles = [runner.run(app, "fake") for _ in range(2)]
    for text in ("dig", "d", "fake://sess/d", "fake://dig"):
        with pytest.raises(UsageError) as caught:
            runner.resolve_handle(text)
        assert all(handle in str(caught.value) for handle in handles)


def test_a_name_means_the_latest_job_of_that_name(runner: Runner, app: AppDef) -> None:
    handles = [runner.run(app, "fake") for _ in range(2)]
    for text in (app.name, f"fake://{app.name}"):
        with pytest.warns(LatestOfSeveral, match="the latest of 2"):
            assert runner.resolve_handle(text) == handles[-1]
        with pytest.raises(UsageError, match="matches 2 jobs"):
            runner.resolve_handles([text], latest=False)


def test_an_exact_id_wins_over_a_prefix(runner: Runner, fake: FakeScheduler) -> None:
    for number in ("12", "123"):
        key = runner.history.add_intent(
            JobRecord(
                scheduler="fake",
                session="s",
                name="n",
                cfg={},
                app={},
                cwd="/",
                argv=[],
                user="u",
                host="h",
                submitter="",
            )
        )
        runner.history.submitted(key, f"fake://s/{number}", number)
    assert runner.resolve_handle("12") == "fake://s/12"
    assert runner.resolve_handle("fake://s/12") == "fake://s/12"
    assert runner.resolve_handle("123") == "fake://s/123"


def test_wildcards_in_a_prefix_mean_nothing(runner: Runner, app: AppDef) -> None:
    runner.run(app, "fake")
    for text in ("%", "_igits", "digit_", "*"):
        with pytest.raises(UnknownAppException):
            runner.resolve_handle(text)


def test_a_whole_handle_is_not_looked_up(runner: Runner, home: Path) -> None:
    handle = "local_cwd://shunter/x-bcdfghjkmn"
    assert runner.resolve_handle(handle) == handle
    assert runner._history is None
