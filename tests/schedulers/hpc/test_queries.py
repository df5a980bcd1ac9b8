"""Asking the queue: one query for all who ask at the same time."""

from __future__ import annotations

import threading

import pytest

from shunter.errors import UnreachableError
from shunter.schedulers.hpc import queries
from shunter.schedulers.hpc.queries import JobIds, JobQuery, NativeJob
from tests.schedulers.hpc.conftest import wait_until


def test_callers_share_queries_and_answers():
    calls: list[list[str]] = []
    go, begun = threading.Event(), threading.Event()

    def fetch(refs):
        calls.append([ref.app_id for ref in refs])
        begun.set()
        assert go.wait(50)
        return {ref.app_id: [NativeJob(ref.app_id)] for ref in refs}

    query = JobQuery(fetch)
    found: dict[str, object] = {}

    def ask(app_id: str) -> None:
        found.update(query.ask([JobIds(app_id)]))

    threads = [threading.Thread(target=ask, args=(f"job-{number}",)) for number in range(20)]
    threads[0].start()
    assert begun.wait(50)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(query._waiting) == 19, "all wait for an answer")
    go.set()
    for thread in threads:
        thread.join(50)
    assert sorted(found) == sorted(f"job-{number}" for number in range(20))
    assert [len(call) for call in calls] == [1, 19]
    query.ask([JobIds("job-3")])
    assert len(calls) == 2  # an answer is kept for a moment
    query.ask([JobIds("job-3", ["7"])])  # unless it was submitted again
    query.forget(["job-4"])
    query.ask([JobIds("job-4")])
    assert calls[2:] == [["job-3"], ["job-4"]]


def test_a_queue_that_does_not_answer_is_not_asked_for_each_chunk():
    calls = []

    def fetch(refs):
        calls.append(len(refs))
        raise UnreachableError("away")

    query = JobQuery(fetch, chunk=2)
    with pytest.raises(UnreachableError, match="away"):
        query.ask([JobIds(str(number)) for number in range(5)])
    assert calls == [2]


def test_jobs_that_the_queue_does_not_list_are_missing():
    query = JobQuery(lambda refs: {})
    assert query.ask([JobIds("a")]) == {}
    assert queries.by_job([JobIds("a")], {}, []) == {}
