"""What state a job is in, and what is left to do for it: a pure function of what the daemon knows.

Readers (``status``, ``list``, ``wait``) use the state, and the watcher takes the steps. So a watcher may be
killed in the middle of anything: the next one finds what is left to do.

Six kinds of markers record what the containers cannot:

- ``cancelled`` (by, at): a user cancelled the job.
- ``stopped`` (reason, detail, at): the job was ended by its time limit, fail_fast, or a failed submission.
- ``retry-N`` (scope, culprit, was, at): a role (or, with an empty scope, everything) is to be restarted.
  ``was`` contains the containers and their last starts, which shows which were started since then.
- ``final-N`` (culprit, was, note, at): a failure that is not retried, by its class (`retry_step`).
- ``hung-N`` (container, started, note, at): a container showed no activity (`container_hangs`).
- ``waiting`` (reason, at): its containers are made, and are started when there is a network for them.
"""

from __future__ import annotations

import time
from typing import Any

from shunter.schedulers.exec import reasons
from shunter.schedulers.exec.container.inventory import (
    CANCELLED,
    FINAL,
    HUNG,
    RETRY,
    STOPPED,
    WAITING,
    Container,
    Job,
    Marker,
)
from shunter.specs.status import AppState, EarlierAttempt, ReplicaStatus, RoleStatus, is_terminal

# Kinds of steps.
STOP = "stop"
START = "start"
MARK = "mark"
DECIDE = "decide"
LAUNCH = "launch"

#: What ``docker-init`` and shells end with when they cannot run a program.
_EXEC_FAILURES = {126: "cannot be executed", 127: "is not in the image"}
#: Exit codes that are 128 plus the number of a signal that usually ends a program.
_SIGNALS = {
    129: "SIGHUP",
    130: "SIGINT",
    131: "SIGQUIT",
    132: "SIGILL",
    133: "SIGTRAP",
    134: "SIGABRT",
    135: "SIGBUS",
    136: "SIGFPE",
    137: "SIGKILL",
    138: "SIGUSR1",
    139: "SIGSEGV",
    140: "SIGUSR2",
    141: "SIGPIPE",
    142: "SIGALRM",
    143: "SIGTERM",
    152: "SIGXCPU",
    153: "SIGXFSZ",
}


class Step:
    """Something to do: ``stop`` or ``start`` containers, ``launch`` them once there is a network for them,
    ``decide`` by its class what becomes of a failure, or ``mark`` the job (name, facts)."""

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


class Judgement:
    """The state of a job, and what to do for it.

    Args:
        job: its containers, inspected, and its markers.
        now: seconds since the epoch.

    Attributes:
        state: of the job.
        msg: why, in words; "" while there is nothing to say.
        roles: states of the replicas.
        restarts: how many times any part of it was restarted.
        steps: what has to be done now.
        is_over: nothing of it is running, and nothing will be started.
        deadline: when its time limit is reached, seconds since the epoch.
    """

    def __init__(self, job: Job, now: float) -> None:
        self._job = job
        self._now = now
        self._containers = job.containers
        self._active = [container for container in job.containers if container.is_active]
        self._new = [container for container in job.containers if container.is_new]
        total = sum(count for _, count in job.layout)
        # While it is being submitted containers are missing or new; afterwards none is ever new again.
        is_incomplete = bool(self._new) or (
            len(job.containers) < total and all(c.is_new for c in job.containers)
        )
        self._waiting = next((marker for marker in job.markers if marker.kind == WAITING), None)
        self._is_waiting = self._waiting is not None and bool(self._new)
        self._is_submitting = is_incomplete and not self._is_waiting and job.submitter_is_alive
        self._is_interrupted = is_incomplete and not (self._is_submitting or self._is_waiting)
        self._retries = sorted((m for m in job.markers if m.kind == RETRY), key=lambda m: (m.at, m.name))
        #: Containers that the last retries have not restarted yet.
        self._pending = [
            container
            for container in job.containers
            if any(retry.facts["was"].get(container.name) == container.started for retry in self._retries)
        ]
        self._end = self._end_marker()
        if self._end is not None:
            self._pending = []
            self._end_reason, self._end_words = _reason_of(self._end)
            self._end_state = reasons.state_of(self._end_reason)

        by_replica = job.by_replica()
        self.steps = self._next_steps() if job.is_our_own or self._end is not None else []
        self.is_over = not (self._active or self._pending or self._is_submitting or self.steps)
        self.deadline = None if job.timeout is None or not self._active else self._began() + job.timeout
        own = max((container.restarts for container in self._containers), default=0)
        self.restarts = max([own, *self._retry_counts().values()])
        self.roles = [
            RoleStatus(role, [self._replica(role, k, by_replica.get((role, k))) for k in range(count)])
            for role, count in job.layout
        ]
        replicas = [replica for role in self.roles for replica in role.replicas]
        self.state = self._state(replicas)
        self.msg = self._message(replicas)

    @property
    def ended_at(self) -> float | None:
        """When the last replica ended, or None if that is not known."""
        ends = [replica.ended_at for role in self.roles for replica in role.replicas if replica.ended_at]
        return max(ends) if self.is_over and ends else None

    # ---- what has happened

    def _began(self) -> float:
        """Return when the job's time began to run: a wait for a network does not count."""
        starts = [container.started for container in self._containers if container.started]
        return min(starts) / 1e9 if self._waiting is not None and starts else self._job.submitted_at

    def _end_marker(self) -> Marker | None:
        """Return what ended the job, unless it had already ended by itself."""
        ends = [marker for marker in self._job.markers if marker.kind in (CANCELLED, STOPPED)]
        if not ends:
            return None
        first = min(ends, key=lambda marker: marker.at)
        had_ended = not (self._active or self._new) and all(c.finished < first.at for c in self._containers)
        return None if had_ended and not self._pending else first

    def _retry_counts(self) -> dict[str, int]:
        """Return how often each role, and everything (""), was restarted."""
        counts = {"": 0}
        for marker in self._retries:
            counts[marker.facts["scope"]] = counts.get(marker.facts["scope"], 0) + 1
        return counts

    # ---- what to do next

    def _next_steps(self) -> list[Step]:
        if self._end is not None:
            return [Step(STOP, self._active)] if self._active else []
        if self._is_interrupted:
            return [self._stopped(reasons.INTERRUPTED, "")] if self._active else []
        if self._is_submitting:
            return []
        if self._is_waiting:
            return [Step(LAUNCH, self._new)]
        limit = self._job.timeout
        if limit is not None and self._active and self._now >= self._began() + limit:
            return [self._stopped(reasons.TIMEOUT, f"{limit:g}")]
        if self._pending:
            running = [container for container in self._pending if container.is_active]
            return [Step(STOP, running)] if running else [Step(START, self._pending)]
        return self._after_failures()

    def _after_failures(self) -> list[Step]:
        if not self._job.is_watched:
            return []
        failed = [c for c in self._containers if not c.is_active and not c.is_new and c.exit_code]
        counts = self._retry_counts()
        finals = [marker.facts["was"] for marker in self._job.markers if marker.kind == FINAL]
        for container in sorted(failed, key=lambda c: c.finished):
            if self._job.rules and not any(was.get(container.name) == container.started for was in finals):
                return [Step(DECIDE, [container])]
            policy, limit = self._job.retries.get(container.role, ("REPLICA", 0))
            if self._job.rules:
                limit = 0  # it has been decided already
            scope = container.role if policy == "ROLE" else ""
            if policy != "REPLICA" and len(self._job.containers) > 1 and counts.get(scope, 0) < limit:
                return [self._retry(scope, container)]
            if self._job.fail_fast and self._active:
                return [self._stopped(reasons.PEER_FAILED, f"{container.role}/{container.replica}")]
        return []

    def _notes(self, container: Container) -> list[str]:
        """Return what has happened to a container, in words."""
        name = f"{container.role}/{container.replica}"
        kinds = (RETRY, FINAL, HUNG)
        own = [m for m in self._job.markers if m.kind in kinds and m.facts.get("culprit") == name]
        return [m.facts["note"] for m in sorted(own, key=lambda m: m.at) if m.facts.get("note")]

    def _stopped(self, reason: str, detail: str) -> Step:
        facts = {"reason": reason, "detail": detail, "at": int(self._now * 1e9)}
        return Step(MARK, None, STOPPED, facts)

    def _retry(self, scope: str, culprit: Container) -> Step:
        group = [c for c in self._containers if not scope or c.role == scope]
        facts = {
            "scope": scope,
            "culprit": f"{culprit.role}/{culprit.replica}",
            "was": {container.name: container.started for container in group},
            "at": int(self._now * 1e9),
        }
        return Step(MARK, None, f"{RETRY}-{len(self._retries) + 1}", facts)

    # ---- states, and why, in words

    def _replica(self, role: str, k: int, container: Container | None) -> ReplicaStatus:
        if container is None:
            state, reason = self._missing()
            return ReplicaStatus(k, state, role, reason=reason)
        state, reason, code = self._container(container)
        restarts = max(container.restarts, sum(container.name in m.facts["was"] for m in self._retries))
        has_ended = is_terminal(state) and not container.is_new
        # If a program ends at once, the daemon records its end before its start.
        started = min(container.started, container.finished) if has_ended else container.started
        return ReplicaStatus(
            k,
            state,
            role,
            hostname=container.name,
            exit_code=code if has_ended else None,
            reason=reason,
            restarts=restarts,
            started_at=started / 1e9 or None,
            ended_at=(container.finished / 1e9 or None) if has_ended else None,
            notes=self._notes(container),
            earlier=self._earlier(container),
        )

    def _earlier(self, container: Container) -> list[EarlierAttempt]:
        """Return the attempts that the watcher ended; the daemon keeps nothing of those that it restarts."""
        if container in self._pending:
            return []
        marks = sorted((m for m in self._retries if container.name in m.facts["was"]), key=lambda m: m.at)
        if len(marks) < container.restarts:
            return []
        return [
            EarlierAttempt(
                number,
                mark.facts["was"][container.name] / 1e9 or None,
                mark.at / 1e9,
                reason=f"restarted because {mark.facts['culprit']} failed",
            )
            for number, mark in enumerate(marks)
        ]

    def _missing(self) -> tuple[AppState, str]:
        if self._is_submitting:
            return AppState.SUBMITTED, ""
        reason = reasons.INTERRUPTED if self._is_interrupted else reasons.REMOVED
        if self._end is not None and reason == reasons.REMOVED:
            return self._end_state, self._end_words
        return reasons.state_of(reason), reasons.describe(reason)

    def _container(self, container: Container) -> tuple[AppState, str, int]:
        """Return state, reason and exit code of one container."""
        code = container.exit_code
        if container in self._pending:
            culprit = next(
                m.facts["culprit"] for m in reversed(self._retries) if container.name in m.facts["was"]
            )
            return AppState.PENDING, f"to be restarted because {culprit} failed", 0
        if container.state == "running":
            ports = container.named_ports.items()
            return AppState.RUNNING, ", ".join(f"{name}: {place}" for name, place in ports), 0
        if container.is_active:
            words = {"restarting": f"failed with exit code {code}, to be restarted", "paused": "paused"}
            return AppState.PENDING, words[container.state], 0
        if container.is_new:
            if self._is_submitting:
                return AppState.SUBMITTED, "", 0
            if self._end is not None:
                return self._end_state, self._end_words, 0
            if self._is_waiting:
                return AppState.PENDING, self._waiting_words(), 0
            return AppState.FAILED, reasons.describe(reasons.INTERRUPTED), 0
        if self._end is not None and container.finished >= self._end.at:
            return self._end_state, self._end_words, code
        if container.state != "exited":
            return AppState.FAILED, reasons.describe(reasons.DEAD), code
        reason = _reason_of_exit(code, oom=container.oom, error=container.error)
        detail = container.error or _EXEC_FAILURES.get(code, "")
        return (
            reasons.state_of(reason),
            reasons.describe(reason, code=code, signal=_SIGNALS.get(code, ""), detail=detail),
            code,
        )

    def _waiting_words(self) -> str:
        facts = self._waiting.facts if self._waiting is not None else {}
        return f"waiting for a network: {facts.get('reason', '')}"

    def _state(self, replicas: list[ReplicaStatus]) -> AppState:
        if not self.is_over:
            if any(replica.state == AppState.RUNNING for replica in replicas):
                return AppState.RUNNING
            if self._is_submitting:
                return AppState.SUBMITTED
            return AppState.PENDING if self._active or self._pending or self._is_waiting else AppState.RUNNING
        if self._end is not None and self._end_reason != reasons.PEER_FAILED:
            return self._end_state
        states = {replica.state for replica in replicas}
        if AppState.FAILED in states:
            return AppState.FAILED
        return AppState.CANCELLED if AppState.CANCELLED in states else AppState.SUCCEEDED

    def _message(self, replicas: list[ReplicaStatus]) -> str:
        if not self.is_over:
            return self._waiting_words() if self._is_waiting and not self._active else ""
        if self._end is not None and self._end_reason != reasons.PEER_FAILED:
            return self._end_words
        if self._is_interrupted:
            return reasons.describe(reasons.INTERRUPTED)
        failed = [replica for replica in replicas if replica.state == AppState.FAILED]
        if not failed:
            return ""
        first = min(failed, key=lambda replica: replica.ended_at or float("inf"))
        others = f" (and {len(failed) - 1} more failed)" if len(failed) > 1 else ""
        return f"{first.role}/{first.id}: {first.reason}{others}"


def _reason_of(end: Marker) -> tuple[str, str]:
    """Return the reason that a marker gives for a job's end, and a text that describes it."""
    reason = reasons.CANCELLED if end.kind == CANCELLED else end.facts.get("reason", reasons.INTERRUPTED)
    by = end.facts.get("by")
    detail = f" by {by}" if by else str(end.facts.get("detail", ""))
    return str(reason), reasons.describe(reason, detail=detail)


def _reason_of_exit(code: int, *, oom: bool, error: str) -> str:
    """Return the reason why a container ended, judging by the evidence.

    That is its exit code (128 + N after signal N), whether the kernel killed something in it because memory
    ran out, and what the daemon could not do.
    """
    if error:
        return reasons.NOT_STARTED
    if code == 0:
        return reasons.SUCCEEDED
    if oom:
        return reasons.OUT_OF_MEMORY
    if code in _EXEC_FAILURES:
        return reasons.NOT_EXECUTED
    return reasons.EXIT_LIKE_SIGNAL if code in _SIGNALS else reasons.FAILED


def judge(job: Job) -> Judgement:
    """Judge a job now."""
    return Judgement(job, time.time())
