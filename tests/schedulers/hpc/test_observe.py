"""What is said of replicas, from the queue's answer and the records in the job's folder."""

from __future__ import annotations

import pytest

from shunter.schedulers.hpc.observe import FORGOTTEN_SECONDS, describe
from shunter.schedulers.hpc.queries import NativeJob
from shunter.schedulers.hpc.shared_folder import AttemptRecord, SharedJob
from shunter.specs.status import AppState

NOW = 1_800_000_000.0


def shared_job(*records: AttemptRecord | None, **fields) -> SharedJob:
    document = {"layout": [["r", len(records)]], "created_at": NOW - FORGOTTEN_SECONDS - 1}
    replicas = {("r", k): record for k, record in enumerate(records) if record is not None}
    return SharedJob("job", document, replicas=replicas, **fields)


def ended(code: int, why: str = "ended") -> AttemptRecord:
    return AttemptRecord(0, "n1", 1.0, 2.0, code, why)


def states(state: AppState, job: SharedJob) -> list[AppState]:
    found = describe("job", [NativeJob("1", "job", state)], job, "", NOW)
    return [replica.state for replica in found.to_status().replicas()]


def test_replicas_that_were_stopped_or_never_started_did_not_fail():
    job = shared_job(ended(3), ended(143, "stopped"), AttemptRecord(0, "n1", 1.0), None)
    failed, cancelled = AppState.FAILED, AppState.CANCELLED
    assert states(failed, job) == [failed, cancelled, failed, cancelled]
    # the queue's signal may reach the program before the script that keeps the record
    job = shared_job(ended(143), ended(137), ended(3), cancelled_by="me")
    assert states(AppState.RUNNING, job) == states(cancelled, job) == [cancelled, cancelled, failed]
    assert states(failed, shared_job(ended(143), ended(137))) == [failed, failed]
    assert states(cancelled, shared_job(ended(143, "stopped"))) == [cancelled]
    # without one that failed by itself there is nothing else that the end of the job could come from
    assert states(failed, shared_job(ended(143, "stopped"), None)) == [failed, failed]


@pytest.mark.parametrize(
    ("record", "times"),
    [
        (AttemptRecord(0, "n1", 150.5, 160.5, 0, "ended"), (150.5, 160.5)),
        (AttemptRecord(0, "n1", 150.5), (150.5, 170.0)),  # it was killed
        (AttemptRecord(0, "n1", 170.5), (170.5, 170.5)),  # at once; a queue tells whole seconds
        (None, (140.0, 170.0)),
    ],
)
def test_the_queue_tells_what_a_replica_could_not_record(record, times):
    native = NativeJob("1", "job", AppState.FAILED, submitted_at=100.0, started_at=140.0, ended_at=170.0)
    status = describe("job", [native], shared_job(record), "", NOW).to_status()
    assert (status.started_at, status.ended_at) == times
    native.state = AppState.PENDING
    assert describe("job", [native], shared_job(None), "", NOW).to_status().ended_at is None


def test_a_submission_without_an_answer_is_forgotten_when_the_queue_answers_and_has_it_not():
    assert describe("job", [], shared_job(None), "", NOW) is None
    assert describe("job", [], shared_job(None), "the queue is away", NOW).state == AppState.UNREACHABLE
    assert describe("job", [], shared_job(None), "", NOW - 60).state == AppState.UNKNOWN
    for left in (shared_job(None, native_ids=["7"]), shared_job(AttemptRecord(0, "n1", 1.0))):
        assert describe("job", [], left, "", NOW).state == AppState.UNKNOWN
