"""What has become of a job, and what remains to be done: derived from what the daemon knows, alone.

The same judgement serves whoever looks (``status``, ``list``, ``wait``) and the watcher, which acts on it.
So it does not matter whether a watcher was killed in the middle of something: the next one finds what is left
to do.

Four kinds of markers say what the containers cannot:

- ``cancelled`` (by, at): somebody asked for the job's end.
- ``stopped`` (reason, detail, at): the job was ended by its time limit, fail_fast, or a failed submission.
- ``retry-N`` (scope, culprit, was, at): a role (or, with an empty scope, everything) is started again.
  ``was`` holds the containers and their last starts, so that those started since can be told.
- ``waiting`` (reason, at): its containers are made, and are started when there is a network for them.
"""

from __future__ import annotations

import time

from trainyard.schedulers.exec.container import reasons
from trainyard.schedulers.exec.container.inventory import CANCELLED, RETRY, STOPPED, WAITING
from trainyard.schedulers.exec.container.times import in_seconds
from trainyard.specs.status import AppState, ReplicaStatus, RoleStatus, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainyard.schedulers.exec.container.inventory import Container, Job, Marker

#: A submission from another machine, which cannot be looked at, is taken to be under way for so long.
LONGEST_REMOTE_SUBMISSION = 3600.0

STOP = "stop"
START = "start"
MARK = "mark"
LAUNCH = "launch"


class Step:
    """Something to be done: ``stop`` or ``start`` containers, ``launch`` them once there is a network for
    them, or ``mark`` the job (name, kind, facts)."""

    __slots__ = ("containers", "facts", "kind", "name")

    def __init__(
        self,
        kind: str,
        containers: list[Container] | None = None,
        name: str = "",
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.kind = kind
        self.containers = containers or []
        self.name = name
        self.facts = facts or {}


class Verdict:
    """A judgement.

    Attributes:
        state: of the job.
        msg: why, in words; "" while there is nothing to say.
        roles: states of the replicas.
        restarts: how often some of it was started again.
        steps: what has to be done now.
        is_over: nothing of it runs and nothing will.
        deadline: when its time is up, seconds since the epoch.
    """

    def __init__(self) -> None:
        self.state = AppState.UNKNOWN
        self.msg = ""
        self.roles: list[RoleStatus] = []
        self.restarts = 0
        self.steps: list[Step] = []
        self.is_over = False
        self.deadline: float | None = None

    @property
    def ended_at(self) -> float | None:
        """When the last replica ended; None if that is not known."""
        ends = [replica.ended_at for role in self.roles for replica in role.replicas if replica.ended_at]
        return max(ends) if self.is_over and ends else None


def judge(job: Job, submitter_is_alive: Callable[[Job], bool], now: float | None = None) -> Verdict:
    """Judge a job.

    Args:
        job: its containers, inspected, and its markers.
        submitter_is_alive: tells whether its submission may still be under way.
        now: seconds since the epoch.
    """
    return _Judge(job, submitter_is_alive, time.time() if now is None else now).verdict()


class _Judge:
    def __init__(self, job: Job, submitter_is_alive: Callable[[Job], bool], now: float) -> None:
        self.job = job
        self.now = now
        self.containers = job.containers
        self.active = [container for container in job.containers if container.is_active]
        self.new = [container for container in job.containers if container.is_new]
        total = sum(count for _, count in job.layout)
        # While it is being submitted containers are missing or new; afterwards none is ever new again.
        is_incomplete = bool(self.new) or (
            len(job.containers) < total and all(c.is_new for c in job.containers)
        )
        self.waiting = next((marker for marker in job.markers if marker.kind == WAITING), None)
        self.is_waiting = self.waiting is not None and bool(self.new)
        self.is_submitting = is_incomplete and not self.is_waiting and submitter_is_alive(job)
        self.is_interrupted = is_incomplete and not (self.is_submitting or self.is_waiting)
        self.end = self._end_marker()
        self.retries = sorted((m for m in job.markers if m.kind == RETRY), key=lambda m: (m.at, m.name))
        self.pending = [] if self.end else self._pending()

    def verdict(self) -> Verdict:
        verdict = Verdict()
        if self.job.is_our_own or self.end is not None:
            verdict.steps = self._steps()
        if self.job.timeout is not None and self.active:
            verdict.deadline = self._begun() + self.job.timeout
        by_replica = self.job.by_replica()
        verdict.roles = [
            RoleStatus(role, [self._replica(role, k, by_replica.get((role, k))) for k in range(count)])
            for role, count in self.job.layout
        ]
        own = max((container.restarts for container in self.containers), default=0)
        verdict.restarts = max([own, *self._retry_counts().values()])
        verdict.is_over = not (self.active or self.pending or self.is_submitting or verdict.steps)
        replicas = [replica for role in verdict.roles for replica in role.replicas]
        verdict.state = self._state(replicas, verdict.is_over)
        if verdict.is_over:
            verdict.msg = self._message(replicas)
        elif self.is_waiting and not self.active:
            verdict.msg = self._waiting_words()
        return verdict

    # ---- what has happened

    def _begun(self) -> float:
        """Return when the job's time began to run: a wait for a network does not count."""
        starts = [container.started for container in self.containers if container.started]
        return min(starts) / 1e9 if self.waiting is not None and starts else self.job.submitted_at

    def _end_marker(self) -> Marker | None:
        """Return what ended the job, unless it had ended already when that was asked for."""
        ends = [marker for marker in self.job.markers if marker.kind in (CANCELLED, STOPPED)]
        if not ends:
            return None
        first = min(ends, key=lambda marker: marker.at)
        had_ended = not (self.active or self.new) and all(c.finished < first.at for c in self.containers)
        return None if had_ended and not self._is_waiting_for_retry(first) else first

    def _is_waiting_for_retry(self, end: Marker) -> bool:
        """Tell whether at an end's time some replicas had failed and were to be started again."""
        return any(
            marker.kind == RETRY
            and any(marker.facts["was"].get(c.name) == c.started for c in self.containers)
            for marker in self.job.markers
        )

    def _pending(self) -> list[Container]:
        """Return the containers that the last retries are still to start again."""
        return [
            container
            for container in self.containers
            if any(marker.facts["was"].get(container.name) == container.started for marker in self.retries)
        ]

    def _retry_counts(self) -> dict[str, int]:
        """Return how often each role, and everything (""), was started again."""
        counts = {"": 0}
        for marker in self.retries:
            counts[marker.facts["scope"]] = counts.get(marker.facts["scope"], 0) + 1
        return counts

    # ---- what is to be done

    def _steps(self) -> list[Step]:
        if self.end is not None:
            return [Step(STOP, self.active)] if self.active else []
        if self.is_interrupted:
            return [self._stopped(reasons.INTERRUPTED, "")] if self.active else []
        if self.is_submitting:
            return []
        if self.is_waiting:
            return [Step(LAUNCH, self.new)]
        limit = self.job.timeout
        if limit is not None and self.active and self.now >= self._begun() + limit:
            return [self._stopped(reasons.TIMEOUT, f"{limit:g}")]
        if self.pending:
            running = [container for container in self.pending if container.is_active]
            return [Step(STOP, running)] if running else [Step(START, self.pending)]
        return self._after_failures()

    def _after_failures(self) -> list[Step]:
        if not self.job.is_watched:
            return []
        failed = [c for c in self.containers if not c.is_active and not c.is_new and c.exit_code]
        counts = self._retry_counts()
        for container in sorted(failed, key=lambda c: c.finished):
            policy, limit = self.job.retries.get(container.role, ("REPLICA", 0))
            scope = container.role if policy == "ROLE" else ""
            if policy != "REPLICA" and len(self.job.containers) > 1 and counts.get(scope, 0) < limit:
                return [self._retry(scope, container)]
            if self.job.fail_fast and self.active:
                return [self._stopped(reasons.PEER_FAILED, f"{container.role}/{container.replica}")]
        return []

    def _stopped(self, reason: str, detail: str) -> Step:
        facts = {"reason": reason, "detail": detail, "at": int(self.now * 1e9)}
        return Step(MARK, None, STOPPED, facts)

    def _retry(self, scope: str, culprit: Container) -> Step:
        group = [c for c in self.containers if not scope or c.role == scope]
        facts = {
            "scope": scope,
            "culprit": f"{culprit.role}/{culprit.replica}",
            "was": {container.name: container.started for container in group},
            "at": int(self.now * 1e9),
        }
        return Step(MARK, None, f"{RETRY}-{len(self.retries) + 1}", facts)

    # ---- what it is called

    def _replica(self, role: str, k: int, container: Container | None) -> ReplicaStatus:
        if container is None:
            state, reason = self._missing()
            return ReplicaStatus(k, state, role, reason=reason)
        state, reason, code = self._container(container)
        restarts = max(container.restarts, sum(container.name in m.facts["was"] for m in self.retries))
        has_ended = is_terminal(state) and not container.is_new
        # Of a program that ends at once the daemon notes the end first, and then that it was started.
        started = min(container.started, container.finished) if has_ended else container.started
        return ReplicaStatus(
            k,
            state,
            role,
            hostname=container.name,
            exit_code=code if has_ended else None,
            reason=reason,
            restarts=restarts,
            started_at=in_seconds(started),
            ended_at=in_seconds(container.finished) if has_ended else None,
        )

    def _missing(self) -> tuple[AppState, str]:
        if self.is_submitting:
            return AppState.SUBMITTED, ""
        reason = reasons.INTERRUPTED if self.is_interrupted else reasons.REMOVED
        if self.end is not None and reason == reasons.REMOVED:
            return self._end_state(), self._end_words()
        return reasons.state_of(reason), reasons.describe(reason)

    def _container(self, container: Container) -> tuple[AppState, str, int]:
        """Return state, reason and exit code of one container."""
        code = container.exit_code
        if container.is_active:
            if container in self.pending:
                return AppState.PENDING, f"to be started again because {self._culprit(container)} failed", 0
            if container.state == "running":
                return AppState.RUNNING, _ports(self.job, container), 0
            words = {"restarting": f"failed with exit code {code}, to be started again", "paused": "paused"}
            return AppState.PENDING, words[container.state], 0
        if container in self.pending:
            return AppState.PENDING, f"to be started again because {self._culprit(container)} failed", 0
        if container.is_new:
            if self.is_submitting:
                return AppState.SUBMITTED, "", 0
            if self.end is not None:
                return self._end_state(), self._end_words(), 0
            if self.is_waiting:
                return AppState.PENDING, self._waiting_words(), 0
            return AppState.FAILED, reasons.describe(reasons.INTERRUPTED), 0
        if self.end is not None and container.finished >= self.end.at:
            return self._end_state(), self._end_words(), code
        if container.state != "exited":
            return AppState.FAILED, reasons.describe(reasons.DEAD), code
        reason = reasons.reason_of_exit(code, oom=container.oom, error=container.error)
        detail = container.error or reasons.EXEC_FAILURES.get(code, "")
        return reasons.state_of(reason), reasons.describe(reason, code=code, detail=detail), code

    def _culprit(self, container: Container) -> str:
        return next(
            str(m.facts["culprit"]) for m in reversed(self.retries) if container.name in m.facts["was"]
        )

    def _waiting_words(self) -> str:
        facts = self.waiting.facts if self.waiting is not None else {}
        return f"waiting for a network: {facts.get('reason', '')}"

    def _end_reason(self) -> str:
        if self.end is None or self.end.kind == CANCELLED:
            return reasons.CANCELLED
        return str(self.end.facts.get("reason", reasons.INTERRUPTED))

    def _end_state(self) -> AppState:
        return reasons.state_of(self._end_reason())

    def _end_words(self) -> str:
        facts = self.end.facts if self.end is not None else {}
        by = facts.get("by")
        detail = f" by {by}" if by else str(facts.get("detail", ""))
        return reasons.describe(self._end_reason(), detail=detail)

    def _state(self, replicas: list[ReplicaStatus], is_over: bool) -> AppState:
        if not is_over:
            if any(replica.state == AppState.RUNNING for replica in replicas):
                return AppState.RUNNING
            if self.is_submitting:
                return AppState.SUBMITTED
            return AppState.PENDING if self.active or self.pending or self.is_waiting else AppState.RUNNING
        if self.end is not None and self._end_reason() != reasons.PEER_FAILED:
            return self._end_state()
        states = {replica.state for replica in replicas}
        if AppState.FAILED in states:
            return AppState.FAILED
        return AppState.CANCELLED if AppState.CANCELLED in states else AppState.SUCCEEDED

    def _message(self, replicas: list[ReplicaStatus]) -> str:
        if self.end is not None and self._end_reason() != reasons.PEER_FAILED:
            return self._end_words()
        if self.is_interrupted:
            return reasons.describe(reasons.INTERRUPTED)
        failed = [replica for replica in replicas if replica.state == AppState.FAILED]
        if not failed:
            return ""
        first = min(failed, key=lambda replica: replica.ended_at or float("inf"))
        others = f" (and {len(failed) - 1} more replicas failed)" if len(failed) > 1 else ""
        return f"{first.role}/{first.id}: {first.reason}{others}"


def _ports(job: Job, container: Container) -> str:
    """Say where a replica's ports are found on this machine."""
    return ", ".join(f"{name}: {place}" for name, place in ports_of(container).items())


def ports_of(container: Container) -> dict[str, str]:
    """Return where a running container's ports are found, by name, or by number where they have none."""
    import json

    from trainyard.schedulers.exec.container import labels

    names = {number: name for name, number in json.loads(container.labels.get(labels.PORTS) or "{}").items()}
    return {names.get(number, str(number)): place for number, place in sorted(container.ports.items())}


def submitter_is_alive(job: Job) -> bool:
    """Tell whether the process that submits a job still runs; a guess where it ran on another machine."""

    from trainyard.schedulers.exec.container import labels
    from trainyard.system.identity import Process, host_name

    if job.labels.get(labels.HOST) != host_name():
        return time.time() - job.submitted_at < LONGEST_REMOTE_SUBMISSION
    process = Process.parse(job.labels.get(labels.SUBMITTER, ""))
    return process is not None and process.is_alive()
