"""Logs of pods: each line once, whatever breaks."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from shunter.errors import AccessError
from shunter.schedulers.api import LogQuery
from shunter.schedulers.kubernetes_scheduler.api_server import KubernetesError
from shunter.schedulers.kubernetes_scheduler.scheduler import KubernetesScheduler
from shunter.specs import AppState
from tests.cluster_hosts import wait_until
from tests.kubernetes.jobs import app, role
from tests.kubernetes.stub import Stub, failure


class Pods:
    """A job whose pods tests move by hand."""

    def __init__(self, stub: Stub, scheduler: KubernetesScheduler, replicas: int = 1) -> None:
        stub.runs_pods = False
        self.stub = stub
        self.scheduler = scheduler
        self.app_id = scheduler.submit(app(role(num_replicas=replicas)), {})
        self.job = self.app_id.partition(":")[2]

    def pods(self, k: int = 0) -> list[dict[str, Any]]:
        found = [pod for pod in self.stub.all("pods") if pod["spec"]["hostname"] == f"{self.job}-{k}"]
        return sorted(found, key=lambda pod: int(pod["metadata"]["resourceVersion"]))

    def state(self, pod: dict[str, Any], phase: str, restarts: int = 0, **state: Any) -> None:
        status = {"name": "trainer", "restartCount": restarts, "state": state}
        self.stub.change("pods", pod["metadata"]["name"], phase=phase, containerStatuses=[status])

    def run(self, k: int = 0) -> dict[str, Any]:
        pod = self.pods(k)[-1]
        self.state(pod, "Running", running={"startedAt": "2026-01-01T00:00:00Z"})
        return pod

    def end(self, pod: dict[str, Any], code: int = 0, **more: Any) -> None:
        self.stub.logs[pod["metadata"]["name"], 0].end()
        end = {
            "exitCode": code,
            "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:00:09Z",
            **more,
        }
        self.state(pod, "Failed" if code else "Succeeded", terminated=end)

    def finish(self, kind: str = "Complete", reason: str = "x") -> None:
        self.stub.change("jobs", self.job, conditions=[{"type": kind, "status": "True", "reason": reason}])

    def write(self, pod: dict[str, Any], *lines: str, at: str = "", restart: int = 0) -> None:
        for line in lines:
            self.stub.logs[pod["metadata"]["name"], restart].add(line.encode() + b"\n", at)

    def read(self, *replicas: int, **query: Any) -> list[str]:
        wanted = [("trainer", k) for k in replicas or (0,)]
        blocks = self.scheduler.log_blocks(self.app_id, wanted, LogQuery(**query))
        return [line for block in blocks for line in block.data.decode().splitlines()]


@pytest.fixture
def pods(stub: Stub, scheduler: KubernetesScheduler) -> Pods:
    return Pods(stub, scheduler)


def in_background(work: Any) -> Any:
    """Call something in a thread; returns a function that waits for its result."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(30)
        assert found, "it did not end"
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    return result


def reads(pods: Pods, count: int) -> Any:
    """Wait until this number of reads of logs have begun."""
    return pods.stub.wait_for(lambda: sum("/log?" in each for each in pods.stub.requests) >= count)


def test_followed_from_before_the_start_to_the_end(pods: Pods) -> None:
    lines = in_background(lambda: pods.read(should_tail=True))
    pod = pods.run()
    pods.write(pod, "one", "two")
    pods.end(pod)
    pods.finish()
    assert lines() == ["one", "two"]


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [[40], [1], [200, 3, 90, 41], [36, 37, 38]])
def test_connections_that_break_lose_and_double_nothing(pods: Pods, cuts: list[int]) -> None:
    pod = pods.run()
    pods.stub.cut_logs = list(cuts)
    lines = in_background(lambda: pods.read(should_tail=True))
    written = [f"line {number}" for number in range(20)]
    pods.write(pod, *written)
    reads(pods, len(cuts) + 1)
    pods.end(pod)
    pods.finish()
    assert lines() == written


@pytest.mark.slow
def test_an_api_server_that_is_away_for_a_while(pods: Pods) -> None:
    pod = pods.run()
    pods.stub.cut_logs = [40]
    pods.stub.cut_watches = [1, 1]
    lines = in_background(lambda: pods.read(should_tail=True))
    pods.write(pod, "one")
    reads(pods, 1)
    pods.stub.faults = lambda *request: "drop"
    pods.write(pod, "two")
    pods.end(pod)
    pods.finish()
    before = len(pods.stub.requests)
    pods.stub.wait_for(lambda: len(pods.stub.requests) > before + 8)
    pods.stub.faults = lambda *request: None
    assert lines() == ["one", "two"]


def test_lines_of_the_same_moment(pods: Pods) -> None:
    """A break between lines whose times are equal, some of which have equal texts too."""
    pod = pods.run()
    moment = "2026-01-01T00:00:01.000000001Z"
    pods.write(pod, "a", "a", "b", "a", at=moment)
    pods.stub.cut_logs = [3 * 33]
    pods.end(pod)
    pods.finish()
    assert pods.read() == ["a", "a", "b", "a"]
    assert pods.stub.cut_logs == []


def test_lines_out_of_order(pods: Pods) -> None:
    """The runtime stamps stdout and stderr apart, so times may go back a little."""
    pod = pods.run()
    stamps = ("05.000000001", "05.000000009", "05.000000004", "05.000000012")
    for number, second in enumerate(stamps):
        pods.write(pod, f"line {number}", at=f"2026-01-01T00:00:{second}Z")
    pods.stub.cut_logs = [3 * 38]
    pods.end(pod)
    pods.finish()
    assert pods.read() == [f"line {number}" for number in range(4)]


def test_a_last_line_without_an_end(pods: Pods) -> None:
    pod = pods.run()
    pods.write(pod, "one")
    pods.stub.logs[pod["metadata"]["name"], 0].add(b"no end")
    pods.end(pod)
    pods.finish()
    blocks = pods.scheduler.log_blocks(pods.app_id, [("trainer", 0)], LogQuery())
    assert b"".join(block.data for block in blocks) == b"one\nno end"


def test_attempts_follow_each_other(pods: Pods) -> None:
    first = pods.run()
    lines = in_background(lambda: pods.read(should_tail=True))
    pods.write(first, "first")
    pods.end(first, 1)
    pods.stub.start_pod(pods.stub.get("jobs", pods.job), 0)
    second = pods.run()
    pods.write(second, "second")
    pods.end(second)
    pods.finish()
    assert lines() == ["first", "second"]


def test_a_container_that_was_restarted_in_its_pod(pods: Pods) -> None:
    pod = pods.run()
    name = pod["metadata"]["name"]
    lines = in_background(lambda: pods.read(should_tail=True))
    pods.write(pod, "before")
    reads(pods, 1)
    pods.state(pod, "Running", restarts=1, running={"startedAt": "2026-01-01T00:00:05Z"})
    pods.stub.logs[name, 0].end()
    pods.write(pod, "after", restart=1)
    pods.stub.logs[name, 1].end()
    pods.state(pod, "Succeeded", restarts=1, terminated={"exitCode": 0})
    pods.finish()
    assert lines() == ["before", "after"]
    assert any("previous=true" in each for each in pods.stub.requests)


def test_replicas_are_read_at_the_same_time(stub: Stub, scheduler: KubernetesScheduler) -> None:
    pods = Pods(stub, scheduler, replicas=3)
    lines = in_background(lambda: pods.read(0, 1, 2, should_tail=True))
    running = [pods.run(k) for k in range(3)]
    for number, pod in enumerate(running):
        pods.write(pod, f"replica {number}")
    reads(pods, 3)
    for pod in running:
        pods.end(pod)
    pods.finish()
    assert sorted(lines()) == ["replica 0", "replica 1", "replica 2"]


def test_a_rotated_log_is_warned_of(pods: Pods, caplog: pytest.LogCaptureFixture) -> None:
    pod = pods.run()
    pods.write(pod, *(f"old {number}" for number in range(3)), at="2026-01-01T00:00:05.000000001Z")
    pods.stub.cut_logs = [39 * 3]
    name = pod["metadata"]["name"]

    def rotate(method: str, path: str, params: dict[str, str]) -> None:
        if "sinceTime" in params and len(pods.stub.logs[name, 0].lines) == 4:
            pods.stub.logs[name, 0].lines[:] = [("2026-01-01T00:01:00.000000001Z", b"new\n")]

    pods.write(pod, "lost", at="2026-01-01T00:00:06.000000001Z")
    pods.stub.faults = rotate
    pods.end(pod)
    pods.finish()
    with caplog.at_level(logging.WARNING):
        assert pods.read() == ["old 0", "old 1", "old 2", "new"]
    assert "was rotated" in caplog.text


def test_a_rotation_is_warned_of_though_the_next_read_breaks_too(
    pods: Pods, caplog: pytest.LogCaptureFixture
) -> None:
    pod = pods.run()
    log = pods.stub.logs[pod["metadata"]["name"], 0]
    pods.write(pod, "old 0", "old 1", at="2026-01-01T00:00:05.000000001Z")
    pods.stub.cut_logs = [39 + 20, 39 + 20]

    def rotate(method: str, path: str, params: dict[str, str]) -> None:
        if "sinceTime" in params and log.lines[0][1] == b"old 0\n":
            stamps = ("2026-01-01T00:01:00.000000001Z", "2026-01-01T00:01:00.000000002Z")
            log.lines[:] = [(stamp, b"new %d\n" % k) for k, stamp in enumerate(stamps)]

    pods.stub.faults = rotate
    pods.end(pod)
    pods.finish()
    with caplog.at_level(logging.WARNING):
        assert pods.read() == ["old 0", "new 0", "new 1"]
    assert "was rotated" in caplog.text
    assert pods.stub.cut_logs == []


@pytest.mark.parametrize(("late", "said"), [(0, False), (30, False), (90, True)])
def test_a_log_that_begins_late_may_have_been_rotated(
    pods: Pods, caplog: pytest.LogCaptureFixture, late: int, said: bool
) -> None:
    """The pod began at 00:00:00, and what is left of its log was written in the course of a minute."""
    pod = pods.run()
    for second in range(0, 61, 6):
        minute, rest = divmod(second + late, 60)
        pods.write(pod, "x" * 30_000, at=f"2026-01-01T00:{minute:02}:{rest:02}.000000000Z")
    pods.end(pod)
    pods.finish()
    with caplog.at_level(logging.WARNING):
        assert len(pods.read()) == 11
    assert ("begins 90 s after its program" in caplog.text) is said


@pytest.mark.slow
def test_a_log_that_goes_with_its_container_was_not_rotated(
    pods: Pods, caplog: pytest.LogCaptureFixture
) -> None:
    """A container that was stopped has been read to its end when its log is gone, before its pod says so."""
    pod = pods.run()
    name = pod["metadata"]["name"]
    pods.write(pod, "one", "two")
    with caplog.at_level(logging.WARNING):
        lines = in_background(lambda: pods.read(should_tail=True))
        reads(pods, 1)
        pods.stub.faults = lambda method, path, params: (
            pods.stub.logs[name, 0].lines.clear() if path.endswith("/log") else None
        )
        pods.stub.logs[name, 0].end()
        reads(pods, 2)
        pods.end(pod, 137)
        pods.finish("Failed")
        assert lines() == ["one", "two"]
    assert "rotated" not in caplog.text


@pytest.mark.parametrize("follow", [False, True])
def test_a_pod_that_is_gone_is_said_to_be(pods: Pods, caplog: pytest.LogCaptureFixture, follow: bool) -> None:
    pod = pods.run()
    pods.end(pod, 3)
    pods.stub.change("jobs", pods.job, failed=1)
    pods.finish("Failed", "DeadlineExceeded")
    pods.stub.remove("pods", pod["metadata"]["name"])
    with caplog.at_level(logging.WARNING):
        assert pods.read(should_tail=follow) == []
    assert "there is no pod of trainer/0, so there is no log of it" in caplog.text
    response = pods.scheduler.describe(pods.app_id)
    assert response is not None
    [replica] = response.roles_statuses[0].replicas
    assert replica.state == AppState.FAILED
    assert replica.reason == "stopped at its time limit; its pod is gone"
    assert response.msg == f"trainer/0: {replica.reason}"


def test_a_job_that_has_not_begun_has_no_log_yet(pods: Pods, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert pods.read() == []
    assert caplog.text == ""


def test_a_followed_job_says_what_it_waits_for(
    pods: Pods, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_NOTICE", "NEXT_NOTICE"):
        monkeypatch.setattr(f"shunter.schedulers.kubernetes_scheduler.logs.{name}", 0.05)
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    pods.stub.change("pods", pods.pods()[-1]["metadata"]["name"], phase="Pending", conditions=[condition])
    with caplog.at_level(logging.WARNING):
        lines = in_background(lambda: pods.read(should_tail=True))
        wait_until(lambda: caplog.text, "it says so")
        pod = pods.run()
        pods.write(pod, "one")
        pods.end(pod)
        pods.finish()
        assert lines() == ["one"]
    text = f"{pods.app_id} has not started yet: no node for it: 0/3 nodes are available"
    assert [record.message for record in caplog.records] == [text]


def test_the_log_of_an_init_container_that_failed(pods: Pods) -> None:
    """The overlay may have some; without them the program does not start."""
    [pod] = pods.pods()
    name = pod["metadata"]["name"]
    end = {"exitCode": 7, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:09Z"}
    init = {
        "name": "fetch",
        "restartCount": 0,
        "state": {"terminated": {**end, "message": "no such bucket\n"}},
    }
    waiting = {"name": "trainer", "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}
    pods.stub.change("pods", name, phase="Failed", initContainerStatuses=[init], containerStatuses=[waiting])
    pods.write(pod, "no such bucket")
    pods.stub.logs[name, 0].end()
    pods.finish("Failed")
    assert pods.read() == ["no such bucket"]
    assert any("container=fetch" in each for each in pods.stub.requests)
    response = pods.scheduler.describe(pods.app_id)
    assert response is not None
    [replica] = response.roles_statuses[0].replicas
    assert replica.exit_code == 7
    assert replica.reason == "its init container fetch failed: exit code 7: no such bucket"


def test_a_kubelet_that_does_not_answer_is_no_empty_log(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shunter.schedulers.kubernetes_scheduler.logs.LAST_ATTEMPTS", 2)
    pods.run()
    away = (500, failure(500, "InternalError", "dial tcp 10.0.0.1:10250: connect: refused"), {})
    pods.stub.faults = lambda method, path, params: away if path.endswith("/log") else None
    with pytest.raises(KubernetesError, match="10250: connect: refused"):
        pods.read()


def test_what_is_left_of_a_log_that_is_gone(pods: Pods) -> None:
    pod = pods.run()
    pods.end(pod, 1, message="the last line\n")
    pods.finish("Failed")
    gone = (404, failure(404, "NotFound", "the node is gone"), {})
    pods.stub.faults = lambda method, path, params: gone if path.endswith("/log") else None
    assert pods.read() == ["the last line"]


def test_without_the_permission(pods: Pods) -> None:
    pods.run()
    refusal = (403, failure(403, "Forbidden", 'cannot get resource "pods/log"'), {})
    pods.stub.faults = lambda method, path, params: refusal if path.endswith("/log") else None
    with pytest.raises(AccessError, match="pods/log"):
        pods.read()


def test_a_pod_that_is_deleted_while_it_is_followed(pods: Pods) -> None:
    pod = pods.run()
    lines = in_background(lambda: pods.read(should_tail=True))
    pods.write(pod, "one")
    reads(pods, 1)
    pods.stub.logs[pod["metadata"]["name"], 0].end()
    pods.stub.remove("pods", pod["metadata"]["name"])
    pods.finish("Failed")
    assert lines() == ["one"]


def test_following_ends_when_the_job_is_deleted(pods: Pods) -> None:
    lines = in_background(lambda: pods.read(should_tail=True))
    pods.stub.wait_for(lambda: sum("watch=true" in each for each in pods.stub.requests) >= 2)
    pods.stub.remove("jobs", pods.job)
    assert lines() == []


def test_since_is_asked_of_the_server_and_until_is_not(pods: Pods) -> None:
    pod = pods.run()
    for second in range(5):
        pods.write(pod, f"at {second}", at=f"2026-01-01T00:00:0{second}.5Z")
    pods.end(pod)
    pods.finish()
    found = pods.read(
        since=datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), until=datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)
    )
    assert found == ["at 1", "at 2"]
    assert any("sinceTime=2026-01-01T00%3A00%3A01Z" in each for each in pods.stub.requests)
    assert pods.read(last=2) == ["at 3", "at 4"]
