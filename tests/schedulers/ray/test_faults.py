"""Faults between us and Ray: no line is lost or doubled, no job is submitted twice, none counts as failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shunter.backoff import Clock
from shunter.errors import BackendError, UnreachableError
from shunter.schedulers.api import LogQuery
from shunter.schedulers.ray_scheduler import logs
from shunter.schedulers.ray_scheduler.scheduler import RayScheduler
from shunter.specs import AppDef, AppState, Role
from tests.schedulers.ray.stub import StubDashboard, stub_dashboard

APP = AppDef("job", [Role("worker", "", entrypoint="true", num_replicas=2)])
METADATA = {"shunter.version": "1", "shunter.name": "job", "shunter.roles": '[["worker", 2]]'}


def job(status: str, **more: Any) -> dict[str, Any]:
    return {"type": "SUBMISSION", "submission_id": "job-1", "status": status, "metadata": METADATA, **more}


def line(text: str, replica: int = 0, second: int = 0) -> str:
    return f"2026-11-22T10:00:{second:02d}.000000Z worker/{replica} out| {text}\n"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubDashboard]:
    monkeypatch.setattr(Clock, "sleep", lambda self, seconds: None)
    with stub_dashboard() as stub:
        monkeypatch.setenv("RAY_ADDRESS", stub.address)
        yield stub


@pytest.fixture
def scheduler() -> Iterator[RayScheduler]:
    scheduler = RayScheduler("s")
    yield scheduler
    scheduler.close()


def followed(scheduler: RayScheduler, replica: int = 0, **query: Any) -> bytes:
    blocks = scheduler.log_blocks("job-1", [("worker", replica)], LogQuery(should_tail=True, **query))
    return b"".join(block.data for block in blocks)


def test_a_log_that_is_followed_is_complete(stub: StubDashboard, scheduler: RayScheduler) -> None:
    whole = line("a") + line("b") + line("c")
    pages = ["", line("a"), line("a"), line("a") + line("b")[:30], whole]
    stub.answer("GET", "/api/jobs/job-1", *[(200, job("RUNNING"))] * 5, (200, job("SUCCEEDED")))
    stub.answer("GET", "/api/jobs/job-1/logs", *[(200, {"logs": page}) for page in pages])
    assert followed(scheduler) == b"a\nb\nc\n"
    assert logs.kept_log("job-1") == whole


def test_a_dashboard_that_is_away_for_a_while_loses_nothing(
    stub: StubDashboard, scheduler: RayScheduler
) -> None:
    running, away = (200, job("RUNNING")), (503, "")
    stub.answer("GET", "/api/jobs/job-1", running, away, away, away, running, (200, job("SUCCEEDED")))
    pages = [(200, {"logs": line("a")}), (0, ""), (200, {"logs": line("a") + line("b")})]
    stub.answer("GET", "/api/jobs/job-1/logs", *pages)
    with pytest.warns(RuntimeWarning, match="still following job-1"):
        assert followed(scheduler) == b"a\nb\n"


def test_only_the_last_lines_then_what_comes(stub: StubDashboard, scheduler: RayScheduler) -> None:
    before = "".join(line(str(i)) for i in range(5))
    stub.answer("GET", "/api/jobs/job-1", *[(200, job("RUNNING"))], (200, job("SUCCEEDED")))
    stub.answer("GET", "/api/jobs/job-1/logs", (200, {"logs": before}), (200, {"logs": before + line("new")}))
    assert followed(scheduler, last=2) == b"3\n4\nnew\n"


def test_a_head_that_was_replaced_ends_the_following_and_not_the_job(
    stub: StubDashboard, scheduler: RayScheduler
) -> None:
    stub.answer("GET", "/api/jobs/job-1", (200, job("RUNNING")), (404, "Job job-1 does not exist"))
    stub.answer("GET", "/api/jobs/job-1/logs", (200, {"logs": line("a")}))
    with pytest.raises(BackendError, match="no longer knows"):
        followed(scheduler)
    assert logs.kept_log("job-1") == line("a")
    assert scheduler.describe("job-1") is None
    blocks = scheduler.log_blocks("job-1", [("worker", 0)], LogQuery())
    assert b"".join(block.data for block in blocks) == b"a\n"


def test_the_end_is_known_when_the_head_is_gone(stub: StubDashboard, scheduler: RayScheduler) -> None:
    state = '{"state": "FAILED", "msg": "worker/0: exit code 3", "phase": "ended", "roles": []}'
    text = f"{line('a')}shunter-state {state}\n"
    stub.answer("GET", "/api/jobs/job-1", (200, job("FAILED")))
    stub.answer("GET", "/api/jobs/job-1/logs", (200, {"logs": text}))
    assert scheduler.describe("job-1") is not None
    stub.answer("GET", "/api/jobs/job-1", (404, "Job job-1 does not exist"))
    response = scheduler.describe("job-1")
    assert response is not None
    assert response.state is AppState.FAILED
    assert response.msg == "worker/0: exit code 3 (as kept here; Ray has forgotten the job)"


def test_a_head_that_is_gone_is_unreachable(stub: StubDashboard, scheduler: RayScheduler) -> None:
    stub.answer("GET", "/api/jobs/", (0, ""))
    for ask in (scheduler.describe, scheduler.exists, scheduler.cancel, scheduler.delete):
        with pytest.raises(UnreachableError):
            ask("job-1")
    with pytest.raises(UnreachableError):
        scheduler.describe_many(["a", "b"])


# ---- submitting


def submitted(scheduler: RayScheduler) -> str:
    info = scheduler.submit_dryrun(APP, {})
    info.client_token = "token-1"
    scheduler.ship(info)
    return scheduler.schedule(info)


def accept_packages(stub: StubDashboard) -> None:
    stub.answer("GET", "/api/packages/", (404, ""))
    stub.answer("PUT", "/api/packages/", (200, ""))


def test_a_submission_whose_answer_is_lost_is_found(stub: StubDashboard, scheduler: RayScheduler) -> None:
    accept_packages(stub)
    stub.answer("POST", "/api/jobs/", (0, ""))
    ours = job("PENDING", metadata={**METADATA, "shunter.token": "token-1"})
    stub.answer("GET", "/api/jobs/", (200, ours))
    assert submitted(scheduler).startswith("job-")


def test_a_job_of_somebody_else_with_our_id_is_not_ours(stub: StubDashboard, scheduler: RayScheduler) -> None:
    accept_packages(stub)
    stub.answer("POST", "/api/jobs/", (400, "ValueError: Job with submission_id job-1 already exists."))
    stub.answer("GET", "/api/jobs/", (200, job("PENDING")))
    with pytest.raises(BackendError, match="already exists"):
        submitted(scheduler)


def test_code_that_the_cluster_has_is_not_sent_again(stub: StubDashboard, scheduler: RayScheduler) -> None:
    accept_packages(stub)
    stub.answer("GET", "/api/packages/", (200, ""))
    stub.answer("POST", "/api/jobs/", (200, {"submission_id": "x"}))
    submitted(scheduler)
    assert sum(method == "PUT" for method, _ in stub.requests) == 1  # the plan


def test_no_jobs_api_is_reported(stub: StubDashboard, scheduler: RayScheduler) -> None:
    accept_packages(stub)
    stub.answer("POST", "/api/jobs/", (404, ""))
    with pytest.raises(BackendError, match="has no Jobs API"):
        submitted(scheduler)


def test_a_cancellation_that_ray_does_not_take_is_an_error(
    stub: StubDashboard, scheduler: RayScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shunter.schedulers.ray_scheduler.scheduler.STOP_PATIENCE", 0.0)
    stub.answer("GET", "/api/jobs/job-1", (200, job("PENDING")))
    stub.answer("POST", "/api/jobs/job-1/stop", (200, {"stopped": False}))
    with pytest.raises(BackendError, match="did not accept the request to stop"):
        scheduler.cancel("job-1")


def test_many_are_cancelled_and_each_failure_is_its_own(stub: StubDashboard, scheduler: RayScheduler) -> None:
    for name in ("a", "b"):
        stub.answer("GET", f"/api/jobs/{name}", (200, job("RUNNING")))
    stub.answer("POST", "/api/jobs/a/stop", (200, {"stopped": True}))
    stub.answer("POST", "/api/jobs/b/stop", (500, "agent is gone"))
    found = scheduler.cancel_many(["a", "b", "none"])
    assert found["a"] is found["none"] is None
    assert "agent is gone" in str(found["b"])
