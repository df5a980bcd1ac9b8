"""Finding jobs of the history: by what a user types, or by state, time and name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from shunter.errors import UnknownAppException, UsageError
from shunter.runner import observation
from shunter.runner.observation import SchedulerOf
from shunter.runner.records import INTENT, REFUSED, SETTLED_STATES, SUBMITTED, JobRecord
from shunter.schedulers.api import ListAppResponse, Scheduler
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState

if TYPE_CHECKING:
    from shunter.runner.history import History

MOST_CANDIDATES = 10

# An id with the random suffix of our ids: it is complete.
_WHOLE_ID = re.compile(r"[^/\s]+://.*/[^/\s]+-[23456789bcdfghjkmnpqrtvwxyz]{10}")

#: The state by which `list` shows submissions that were refused; no scheduler has it.
REFUSED_STATE = "REFUSED"


class JobFilter:
    """Which jobs to find.

    Args:
        states: names of states, or `REFUSED_STATE`; None for all.
        since: only jobs submitted at or after this time, seconds since the epoch.
        name: part of a name or id, or a pattern with ``*``, ``?`` and ``[``.
        refused: also submissions that were refused.
        scheduler: only jobs of this scheduler; None for all.
        names: only jobs that match one of these: a name, the beginning of an id or handle, or a pattern.
    """

    def __init__(
        self,
        states: set[str] | None = None,
        since: float | None = None,
        name: str | None = None,
        refused: bool = False,
        scheduler: str | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.names = list(names)
        self.states = states
        self.since = since
        self.name = name
        self.refused = refused
        self.scheduler = scheduler
        self.active = states is not None or since is not None or bool(name) or bool(self.names)

    def suits(self, state: str, started_at: float | None, names: tuple[str, ...]) -> bool:
        """Tell whether a job that a scheduler lists matches."""
        if self.states is not None and state not in self.states:
            return False
        if self.since is not None and (started_at is None or started_at < self.since):
            return False
        if self.names and not self.is_named(names[0], names[-1], ""):
            return False
        return not self.name or any(map(self.matches, names))

    def matches(self, text: str) -> bool:
        """Tell whether a name or an id matches."""
        name = self.name or ""
        if self.is_pattern:
            return fnmatchcase(text, name)
        return name in text

    def is_named(self, name: str | None, app_id: str | None, handle: str | None) -> bool:
        """Tell whether one of ``names`` means a job; what is not known is None or ""."""
        return any(_means(text, name or "", app_id or "", handle or "") for text in self.names)

    def functions(self) -> dict[str, tuple[int, Callable[..., bool]]]:
        """Return the functions that `condition` calls, each with the number of its arguments."""
        return {"matches": (1, self.matches), "is_named": (3, self.is_named)}

    @property
    def is_pattern(self) -> bool:
        """Whether the name is a pattern rather than a part of the text."""
        return is_pattern(self.name or "")

    def condition(self, settled: bool | None = None, *, as_recorded: bool = False) -> tuple[str, list[Any]]:
        """Return the filter in SQL, and its values.

        Args:
            settled: True for jobs whose recorded state is final and wanted, False for all jobs whose state is
                not final, None for both, whatever their states.
            as_recorded: only jobs whose recorded state is wanted, final or not.
        """
        terms: list[str] = []
        values: list[Any] = []
        if settled is None:
            phases = [INTENT, SUBMITTED, *([REFUSED] if self.refused else [])]
            terms.append(f"phase IN ({_texts(phases)})")
        elif settled:
            terms.append(self._settled())
        else:
            terms.append(UNSETTLED)
        if as_recorded and self.states is not None:
            states = [name for name in AppState.__members__ if name in self.states]
            refused = f" OR phase = '{REFUSED}'" if REFUSED_STATE in self.states else ""
            terms.append(f"((phase != '{REFUSED}' AND state IN ({_texts(states)})){refused})")
        if self.scheduler is not None:
            terms.append("scheduler = ?")
            values.append(self.scheduler)
        if self.since is not None:
            terms.append("coalesce(submitted_at, created_at) >= ?")
            values.append(self.since)
        if not self.names and not self.refused:
            terms.append("sweep IS NULL")  # a sweep stands for its points
        if self.names:
            terms.append("is_named(name, app_id, handle)")
        if self.name and self.is_pattern:
            terms.append("(matches(name) OR matches(app_id))")
        elif self.name:
            terms.append("(instr(name, ?) OR instr(app_id, ?))")
            values += [self.name, self.name]
        return " AND ".join(terms), values

    def _settled(self) -> str:
        states = [name for name in AppState.__members__ if name in (self.states or ())]
        ended = [name for name in states if name in SETTLED_STATES]
        choices = [f"(phase = '{SUBMITTED}' AND state IN ({_texts(ended)}))"]
        choices.append(f"(phase = '{INTENT}' AND state IN ({_texts(states)}))")
        if REFUSED_STATE in (self.states or ()):
            choices.append(f"phase = '{REFUSED}'")
        elif self.refused:
            choices.append(f"(phase = '{REFUSED}' AND state IN ({_texts(states)}))")
        return f"({' OR '.join(choices)})"


def is_pattern(text: str) -> bool:
    """Tell whether a text is a pattern of names rather than a name."""
    return any(char in text for char in "*?[")


def _means(text: str, name: str, app_id: str, handle: str) -> bool:
    if not is_pattern(text):
        return text == name or app_id.startswith(text) or handle.startswith(text)
    if "://" in text:
        return fnmatchcase(handle, text)
    return fnmatchcase(name, text) or fnmatchcase(app_id, text)


def _texts(texts: list[str]) -> str:
    """Return constants, such as names of states, as an SQL list."""
    return ", ".join(f"'{text}'" for text in texts)


#: The condition of the index `jobs_unsettled`, word by word.
UNSETTLED = f"phase = '{SUBMITTED}' AND state NOT IN ({_texts(list(SETTLED_STATES))})"


def search(
    history: History,
    scheduler_of: SchedulerOf,
    job_filter: JobFilter,
    limit: int | None = None,
    *,
    by_time: bool = False,
) -> tuple[list[JobRecord], int]:
    """Return up to ``limit`` jobs with current states, the latest first, and the number of all that match.

    Schedulers are asked only about jobs that may be shown: those of the page or, if states are wanted, all
    that have not ended. With ``by_time`` jobs are ordered by submission rather than by intent.
    """
    intents = [record for record in history.intents() if job_filter.scheduler in (None, record.scheduler)]
    observation.reconcile(history, scheduler_of, intents)
    if job_filter.states is None:
        records = history.select(job_filter, limit, by_time=by_time)
        observation.refresh(history, scheduler_of, records)
        return records, _total(history, job_filter, records, limit)
    # in this order: a job that another process sees end in between is in both rather than in neither
    unsettled = history.select(job_filter, settled=False)
    settled = history.select(job_filter, limit, settled=True, by_time=by_time)
    total = _total(history, job_filter, settled, limit, settled=True)
    in_both = {record.seq for record in settled}
    unsettled = [record for record in unsettled if record.seq not in in_both]
    observation.refresh(history, scheduler_of, unsettled)
    seen = [record for record in unsettled if record.state.name in job_filter.states]
    key = (lambda r: (r.submitted_at or r.created_at, r.seq)) if by_time else (lambda r: r.seq)
    records = sorted([*settled, *seen], key=key, reverse=True)
    return records[:limit], total + len(seen)


def unrecorded(
    history: History,
    scheduler: Scheduler[Any],
    list_jobs: Callable[[Mapping[str, Any] | None], list[ListAppResponse]],
    job_filter: JobFilter,
    cfg: Mapping[str, Any] | None,
) -> list[ListAppResponse]:
    """Return the jobs that match, that a scheduler lists and that the history does not know.

    ``list_jobs`` lists its jobs, with options or filters that it takes.
    """
    states = (
        None if job_filter.states is None else {name for name in job_filter.states if name != REFUSED_STATE}
    )
    if states == set():
        return []
    jobs = list_jobs(
        {**(cfg or {}), **_for_scheduler(job_filter, states, scheduler.capabilities.list_filters)} or None
    )
    # by id: the session in a handle is only a label
    known = history.known(scheduler.backend, [job.app_id for job in jobs])
    return [
        job
        for job in jobs
        if job.app_id not in known
        and job_filter.suits(job.state.name, job.submitted_at, (job.name or job.app_id, job.app_id))
    ]


def _for_scheduler(job_filter: JobFilter, states: set[str] | None, taken: frozenset[str]) -> dict[str, Any]:
    """Return the part of the filter that the scheduler applies itself; see `Capabilities.list_filters`."""
    state_filter = None if states is None else {AppState[name] for name in states}
    filters = {"states": state_filter, "since": job_filter.since, "all": job_filter.refused or None}
    return {key: value for key, value in filters.items() if key in taken and value is not None}


def _total(
    history: History,
    job_filter: JobFilter,
    records: list[JobRecord],
    limit: int | None,
    settled: bool | None = None,
) -> int:
    if limit is None or len(records) < limit:
        return len(records)
    return history.count(job_filter, settled=settled)


# ---- by what a user types


def resolve(text: str | None, history: Callable[[], History]) -> str:
    """Return the handle that a text names; see `Runner.resolve_handle`. The history is opened if needed."""
    if text and _WHOLE_ID.fullmatch(text):
        return text
    if text is None or text == "-":
        return _latest(history())
    if not text.strip() or text.endswith("/"):  # an unset variable in a script must not select a job
        raise UsageError(f"{text!r} names no job", hint="Write - for the job that was submitted last.")
    scheduler, separator, rest = text.partition("://")
    if not separator:
        return _only(text, text, None, history())
    if history().find(text) is not None:
        return text
    if history().handles(text, limit=1):
        return _only(text, text, None, history())
    if "/" not in rest:
        return _only(text, rest, scheduler, history())
    parse_app_handle(text)  # a job of another machine, or of another user
    return text


def resolve_all(texts: Iterable[str], history: Callable[[], History]) -> list[str]:
    """Return the handles of the jobs that texts name; see `Runner.resolve_handles`."""
    handles: dict[str, None] = {}
    for text in texts:
        if not is_pattern(text):
            handles[resolve(text, history)] = None
            continue
        matches = [
            record.handle for record in history().select(JobFilter(names=[text])) if record.phase == SUBMITTED
        ]
        if not matches:
            raise UnknownAppException(
                f"no job in the history has a name or an id that matches {text!r}",
                hint="`shunter list` shows the jobs. Patterns have to be quoted: 'exp-*'.",
            )
        handles.update(dict.fromkeys(matches))
    return list(handles)


def _latest(history: History) -> str:
    record = history.latest()
    if record is None:
        raise UnknownAppException(
            "there is no latest job: the history is empty",
            hint="Start one with `shunter run`, or name a job by its handle.",
        )
    return record.handle


def _only(text: str, beginning: str, scheduler: str | None, history: History) -> str:
    """Return the handle of the only job with this id, or else whose id begins with it."""
    handles = history.with_id(beginning, scheduler) or history.handles(
        beginning, scheduler, MOST_CANDIDATES + 1
    )
    if not handles:
        raise UnknownAppException(
            f"no job in the history has an id that begins with {text!r}",
            hint="`shunter list` shows the jobs; name a job that is not listed by its complete handle.",
        )
    if len(handles) > 1:
        number = max(len(handles), history.count_handles(beginning, scheduler))
        listing = "".join(f"\n  {handle}" for handle in handles[:MOST_CANDIDATES])
        more = f"\n  and {number - MOST_CANDIDATES} more" if number > MOST_CANDIDATES else ""
        raise UsageError(
            f"{text!r} matches {number} jobs:{listing}{more}",
            hint="Give more of the id, or the complete handle.",
        )
    return handles[0]


def recorded(history: History, app_handle: str, attempt: str) -> JobRecord:
    """Return the row of a handle.

    Raises:
        UnknownAppException: the history has none; ``attempt``, such as "repeat", is for the message.
    """
    record = history.find(app_handle)
    if record is None:
        raise UnknownAppException(
            f"cannot {attempt} {app_handle}: it is not in the history of this machine",
            hint="`shunter list` shows the jobs that are.",
        )
    return record
