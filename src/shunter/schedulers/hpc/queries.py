"""Ask the queue about jobs, as rarely as possible.

Concurrent callers in this process share one query. The more a query costs, the less often it is made.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shunter.specs.status import AppState, is_terminal

#: How long an answer is reused: at least, in multiples of the time that its query took, and at most.
FRESH_SECONDS = 0.5
FRESH_FACTOR = 5.0
MOST_FRESH_SECONDS = 30.0
#: How many jobs one query asks for: command lines and servers have limits.
CHUNK = 1000

#: The state of an array, or of a job of several parts, is the first of these that one of its elements has.
PRECEDENCE = (
    AppState.RUNNING,
    AppState.UNREACHABLE,
    AppState.UNKNOWN,
    AppState.SUSPENDED,
    AppState.PENDING,
    AppState.FAILED,
    AppState.CANCELLED,
    AppState.SUCCEEDED,
)


@dataclass
class NativeJob:
    """One submission as the queue or the accounting reports it, or a part of it, such as a task of an array.

    Args:
        native_id: the queue's own id of the submission.
        app_id: our id, found in the job's name or comment; "" if the job is not ours.
        state: its state. A state that is not known counts as open: AppState.UNKNOWN.
        native_state: the queue's own word for the state.
        reason: why it is in this state, in words; "" if the queue does not say.
        exit_code: of the batch script, 128 + N after signal N.
        hosts: the nodes that it has, in order.
        submitted_at, started_at, ended_at: seconds since the epoch.
        restarts: how often the queue has started it again.
        is_lost: whether the queue only says that it lost the host. It may have started the job again since,
            and not accounted for that yet; an end in the job's own records then takes precedence.
        number: of a task of an array, the replica's index in the whole job (role after role).
        parts: of a submission, the parts that it was combined from.
    """

    native_id: str
    app_id: str = ""
    state: AppState = AppState.UNKNOWN
    native_state: str = ""
    reason: str = ""
    exit_code: int | None = None
    hosts: list[str] = field(default_factory=list)
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    restarts: int = 0
    is_lost: bool = False
    number: int | None = None
    parts: list[NativeJob] = field(default_factory=list)

    @property
    def replicas(self) -> dict[int, NativeJob]:
        """Its tasks by the replica's index in the whole job, where the queue tells replicas apart."""
        return {part.number: part for part in self.parts if part.number is not None}

    def host_of(self, number: int) -> str:
        """Return the host that a replica runs on; "" if the queue does not say."""
        hosts = self.replicas[number].hosts if number in self.replicas else self.hosts[number : number + 1]
        return hosts[0] if hosts else ""


def combined(parts: Iterable[NativeJob]) -> dict[str, NativeJob]:
    """Return submissions by their native ids, from their parts: tasks of an array, or components."""
    grouped: dict[str, list[NativeJob]] = {}
    for part in parts:
        grouped.setdefault(part.native_id, []).append(part)
    return {native_id: _whole(found) for native_id, found in grouped.items()}


def _whole(parts: list[NativeJob]) -> NativeJob:
    """Return what the parts of a submission say of all of it."""
    # one that runs and has something to say, such as that it is about to end, says nothing of the others
    leader = min(
        parts,
        key=lambda part: (PRECEDENCE.index(part.state), part.state == AppState.RUNNING and part.reason != ""),
    )
    is_over = is_terminal(leader.state)
    is_under_way = leader.state == AppState.PENDING and any(is_terminal(part.state) for part in parts)
    return replace(
        leader,
        state=AppState.RUNNING if is_under_way else leader.state,
        exit_code=leader.exit_code if is_over else None,
        hosts=list(dict.fromkeys(host for part in parts for host in part.hosts)),
        submitted_at=min((part.submitted_at for part in parts if part.submitted_at), default=None),
        started_at=min((part.started_at for part in parts if part.started_at), default=None),
        ended_at=max((part.ended_at for part in parts if part.ended_at), default=None) if is_over else None,
        restarts=max(part.restarts for part in parts),
        number=None,
        parts=parts,
    )


def numbers_in(text: str) -> list[int]:
    """Return the tasks of an array as queues write them: ``3``, ``0-3,7,10-20:5``; [] if there are none."""
    numbers: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is not None:
            numbers += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
    return numbers


@dataclass
class JobIds:
    """A job that the queue is asked about: our id, and its native ids, one for each submission, if known.

    ``may_have_more`` marks a chain whose client may have been killed before it noted the last one's id.
    """

    app_id: str
    native_ids: list[str] = field(default_factory=list)
    may_have_more: bool = False


def by_job(
    refs: Sequence[JobIds], found: Mapping[str, NativeJob], listed: Iterable[NativeJob]
) -> dict[str, list[NativeJob]]:
    """Return the submissions of each job, in their order.

    Args:
        refs: the jobs asked for.
        found: what is known of native ids.
        listed: where jobs without native ids are looked for by their name. One that has ended is not taken:
            it was deleted.
    """
    named: dict[str, list[NativeJob]] = {}
    for item in listed:
        if not is_terminal(item.state):
            named.setdefault(item.app_id, []).append(item)
    answer = {}
    for ref in refs:
        items = [found[native_id] for native_id in ref.native_ids if native_id in found]
        items = items if ref.native_ids else named.get(ref.app_id, [])
        if items:
            answer[ref.app_id] = items
    return answer


@dataclass
class _Answer:
    """What the queue said of a job, when, and which native ids it was asked for."""

    at: float
    native_ids: list[str]
    jobs: list[NativeJob] | Exception


class JobQuery:
    """Asks the queue for jobs, with one query for all concurrent callers.

    Args:
        fetch: asks the queue for some jobs; returns for each one that it knows its submissions, oldest first.
            A job that is missing in the result is one that the queue does not list, which is not an end.
        chunk: how many jobs one call of ``fetch`` gets.
    """

    def __init__(
        self, fetch: Callable[[Sequence[JobIds]], Mapping[str, list[NativeJob]]], chunk: int = CHUNK
    ) -> None:
        self._fetch = fetch
        self._chunk = chunk
        #: Held by the one caller that asks the queue, for all who wait.
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._waiting: dict[str, JobIds] = {}
        self._answers: dict[str, _Answer] = {}
        self._fresh = FRESH_SECONDS

    def ask(self, refs: Sequence[JobIds]) -> dict[str, list[NativeJob]]:
        """Return jobs as the queue reports them; those that it does not list are missing.

        Raises:
            UnreachableError: the queue does not answer.
        """
        with self._lock:
            self._waiting.update({ref.app_id: ref for ref in refs if not self._is_fresh(ref)})
        with self._asking:
            with self._lock:
                work, self._waiting = self._waiting, {}
            # nothing, if another caller has asked for these, too; it may have been interrupted
            work |= {ref.app_id: ref for ref in refs if ref.app_id not in self._answers}
            self._ask_for([*work.values()])
        found = {}
        for ref in refs:
            jobs = self._answers[ref.app_id].jobs
            if isinstance(jobs, Exception):
                raise jobs
            if jobs:
                found[ref.app_id] = jobs
        return found

    def forget(self, app_ids: Sequence[str]) -> None:
        """Ask for these jobs again: they have been changed."""
        for app_id in app_ids:
            if app_id in self._answers:
                self._answers[app_id].at = -MOST_FRESH_SECONDS

    def _ask_for(self, refs: Sequence[JobIds]) -> None:
        begin = time.monotonic()
        found: Mapping[str, list[NativeJob]] = {}
        error: Exception | None = None
        for start in range(0, len(refs), self._chunk):
            part = refs[start : start + self._chunk]
            try:
                found = self._fetch(part) if error is None else {}
            except Exception as caught:
                error = caught
            now = time.monotonic()
            for ref in part:
                jobs = error or list(found.get(ref.app_id, ()))
                self._answers[ref.app_id] = _Answer(now, list(ref.native_ids), jobs)
            self._fresh = min(max(FRESH_SECONDS, FRESH_FACTOR * (now - begin)), MOST_FRESH_SECONDS)

    def _is_fresh(self, ref: JobIds) -> bool:
        answer = self._answers.get(ref.app_id)
        if answer is None or answer.native_ids != ref.native_ids:  # or it has been submitted again since
            return False
        return time.monotonic() - answer.at < self._fresh
