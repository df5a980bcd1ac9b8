"""Ask the queue about jobs, as rarely as possible.

Concurrent callers in this process share one query. The more a query costs, the less often it is made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
class NativeReplica:
    """One replica as the queue reports it, such as a task of an array or a step's node.

    Args:
        state: its state; None if the queue does not tell replicas apart.
        exit_code: its exit code, 128 + N after signal N.
        host: the node that it runs on.
        reason: why it is in this state, in words.
    """

    state: AppState | None = None
    exit_code: int | None = None
    host: str = ""
    reason: str = ""


@dataclass
class NativeJob:
    """One submission as the queue or the accounting reports it.

    Args:
        native_id: the queue's own id.
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
        replicas: by index in the whole job (role after role), where the queue tells replicas apart.
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
    replicas: dict[int, NativeReplica] = field(default_factory=dict)


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
        #: Held by the one caller that asks the queue.
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        #: What callers want to know, and the one that asks next asks for.
        self._waiting: dict[str, JobIds] = {}
        self._answers: dict[str, tuple[float, list[NativeJob] | BaseException]] = {}
        #: The native ids that were asked for, by job.
        self._asked: dict[str, list[str]] = {}
        self._fresh = FRESH_SECONDS

    def ask(self, refs: Sequence[JobIds]) -> dict[str, list[NativeJob]]:
        """Return jobs as the queue reports them; those that it does not list are missing.

        Raises:
            UnreachableError: the queue does not answer.
        """
        asked_at = time.monotonic()
        while (found := self._known(refs, asked_at)) is None:
            with self._asking:
                if self._known(refs, asked_at) is None:  # or else another caller has asked for these, too
                    self._ask_for_all()
        for answer in found.values():
            if isinstance(answer, BaseException):
                raise answer
        return {app_id: answer for app_id, answer in found.items() if isinstance(answer, list) and answer}

    def _known(
        self, refs: Sequence[JobIds], asked_at: float
    ) -> dict[str, list[NativeJob] | BaseException] | None:
        """Return the answers if all are fresh; None if not, and the stale ones are asked for next."""
        with self._lock:
            stale = {ref.app_id: ref for ref in refs if not self._is_fresh(ref, asked_at)}
            if not stale:
                return {ref.app_id: self._answers[ref.app_id][1] for ref in refs}
            self._waiting.update(stale)
            return None

    def _ask_for_all(self) -> None:
        """Ask the queue for all that callers wait for."""
        with self._lock:
            work, self._waiting = list(self._waiting.values()), {}
        answers, seconds = self._made(work)
        now = time.monotonic()
        with self._lock:
            self._fresh = min(max(FRESH_SECONDS, FRESH_FACTOR * seconds), MOST_FRESH_SECONDS)
            self._answers = {
                key: old for key, old in self._answers.items() if now - old[0] < MOST_FRESH_SECONDS
            }
            self._answers.update({app_id: (now, answer) for app_id, answer in answers.items()})
            self._asked.update({ref.app_id: list(ref.native_ids) for ref in work})
            self._asked = {key: ids for key, ids in self._asked.items() if key in self._answers}

    def forget(self, app_ids: Sequence[str]) -> None:
        """Forget answers: the jobs have been changed."""
        with self._lock:
            for app_id in app_ids:
                self._answers.pop(app_id, None)

    def _made(self, refs: list[JobIds]) -> tuple[dict[str, list[NativeJob] | BaseException], float]:
        begin = time.monotonic()
        answers: dict[str, list[NativeJob] | BaseException] = {}
        for start in range(0, len(refs), self._chunk):
            part = refs[start : start + self._chunk]
            try:
                found = self._fetch(part)
            except Exception as error:
                answers.update({ref.app_id: error for ref in refs[start:]})
                break
            answers.update({ref.app_id: list(found.get(ref.app_id, ())) for ref in part})
        return answers, time.monotonic() - begin

    def _is_fresh(self, ref: JobIds, asked_at: float) -> bool:
        found = self._answers.get(ref.app_id)
        if self._asked.get(ref.app_id) != ref.native_ids:
            return False  # it has been submitted again since
        return found is not None and (found[0] >= asked_at or asked_at - found[0] < self._fresh)
