"""Finding jobs of the history: by what a user types, or by state, time and name."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from shunter.errors import UnknownAppException, UsageError, did_you_mean
from shunter.runner import observation
from shunter.runner.observation import SchedulerOf
from shunter.runner.records import INTENT, REFUSED, SETTLED_STATES, SUBMITTED, JobRecord
from shunter.schedulers.api import ListAppResponse, Scheduler
from shunter.specs.handles import LatestOfSeveral, parse_app_handle
from shunter.specs.status import AppState

if TYPE_CHECKING:
    from shunter.runner.history import History

MOST_CANDIDATES = 10
_MOST_NAMES = 1000

# An id with the random suffix of our ids: it is complete.
_WHOLE_ID = re.compile(r"[^/\s]+://.*/[^/\s]+-[23456789bcdfghjkmnpqrtvwxyz]{10}")

#: States of jobs that may still run.
OPEN_STATES = {name for name in AppState.__members__ if name not in SETTLED_STATES}

#: The state by which `list` shows submissions that were refused; no scheduler has it.
REFUSED_STATE = "REFUSED"


@dataclass
class JobFilter:
    """Which jobs to find.

    Args:
        states: names of states, or `REFUSED_STATE`; None for all.
        since: only jobs submitted at or after this time, seconds since the epoch.
        name: part of a name or id, or a pattern with ``*``, ``?`` and ``[``.
        refused: also submissions that were refused.
        scheduler: only jobs of this scheduler; None for all.
        names: only jobs that match one of these: a name, the beginning of an id or handle, or a pattern.
        words: each must be part of the name, the id or the arguments.
    """

    states: set[str] | None = None
    since: float | None = None
    name: str | None = None
    refused: bool = False
    scheduler: str | None = None
    names: Sequence[str] = ()
    words: Sequence[str] = ()

    @property
    def active(self) -> bool:
        """Whether it leaves out any jobs of its scheduler."""
        return (
            self.states is not None or self.since is not None or bool(self.name or self.names or self.words)
        )

    def suits(self, job: ListAppResponse) -> bool:
        """Tell whether a job that a scheduler lists matches."""
        if self.states is not None and job.state.name not in self.states:
            return False
        if self.since is not None and (job.submitted_at is None or job.submitted_at < self.since):
            return False
        name = job.name or job.app_id
        if self.names and not any(_means(text, name, job.app_id) for text in self.names):
            return False
        if not all(word in name or word in job.app_id for word in self.words):  # its arguments are not known
            return False
        return self.matches(name) or self.matches(job.app_id)

    def matches(self, text: str) -> bool:
        """Tell whether a name or an id matches ``name``."""
        name = self.name or ""
        return fnmatchcase(text, name) if is_pattern(name) else name in text

    def condition(self, is_open: bool | None = None) -> tuple[str, list[Any]]:
        """Return the filter in SQL, and its values.

        States are those that are recorded, and so may be out of date as long as a job is open. With
        ``is_open`` all open jobs match, whatever their states; without it (False), only others.
        """
        phases = [INTENT, SUBMITTED]
        if self.refused or REFUSED_STATE in (self.states or ()):
            phases.append(REFUSED)
        terms = [f"phase IN ({_texts(phases)})"]
        values: list[Any] = []
        if is_open is not None:
            terms.append(OPEN if is_open else f"NOT ({OPEN})")
        if self.states is not None and not is_open:
            # only names of states: these are no values, so that SQLite can use its indexes
            states = f"state IN ({_texts(name for name in AppState.__members__ if name in self.states)})"
            terms.append(f"({states} OR phase = '{REFUSED}')" if REFUSED_STATE in self.states else states)
        if self.scheduler is not None:
            terms.append("scheduler = ?")
            values.append(self.scheduler)
        if self.since is not None:
            terms.append("coalesce(submitted_at, created_at) >= ?")
            values.append(self.since)
        if not self.names and not self.refused:
            terms.append("sweep IS NULL")  # a sweep stands for its points
        if self.names:
            conditions = [_meaning(text) for text in self.names]
            terms.append(f"({' OR '.join(condition for condition, _ in conditions)})")
            values += [value for _, some in conditions for value in some]
        if self.name and is_pattern(self.name):
            terms.append("(name GLOB ? OR app_id GLOB ?)")
            values += [_glob(self.name)] * 2
        elif self.name:
            terms.append("(instr(name, ?) OR instr(app_id, ?))")
            values += [self.name] * 2
        for word in self.words:
            terms.append("(instr(name, ?) OR instr(app_id, ?) OR instr(component_args, ?))")
            values += [word] * 3
        return " AND ".join(terms), values


def is_pattern(text: str) -> bool:
    """Tell whether a text is a pattern of names rather than a name."""
    return any(char in text for char in "*?[")


def _means(text: str, name: str, app_id: str) -> bool:
    """Tell whether a user's text means a job that a scheduler lists, which has no handle yet."""
    if not is_pattern(text):
        return text == name or app_id.startswith(text)
    return fnmatchcase(name, text) or fnmatchcase(app_id, text)


def _meaning(text: str) -> tuple[str, list[str]]:
    """Return the condition that a user's text means a job, in SQL, and its values."""
    if is_pattern(text):
        columns = ["handle"] if "://" in text else ["name", "app_id"]
        return " OR ".join(f"{column} GLOB ?" for column in columns), [_glob(text)] * len(columns)
    return "name = ? OR instr(app_id, ?) = 1 OR instr(handle, ?) = 1", [text] * 3


def _glob(pattern: str) -> str:
    """Return a pattern of `fnmatch` as one of SQLite."""
    return pattern.replace("[!", "[^")


def _texts(texts: Iterable[str]) -> str:
    """Return constants, such as names of states, as an SQL list."""
    return ", ".join(f"'{text}'" for text in texts)


#: The condition of the index `jobs_unsettled`, word by word.
OPEN = f"phase = '{SUBMITTED}' AND state NOT IN ({_texts(SETTLED_STATES)})"


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
    open_jobs = history.select(job_filter, is_open=True)
    settled = history.select(job_filter, limit, is_open=False, by_time=by_time)
    total = _total(history, job_filter, settled, limit, is_open=False)
    in_both = {record.seq for record in settled}
    open_jobs = [record for record in open_jobs if record.seq not in in_both]
    observation.refresh(history, scheduler_of, open_jobs)
    seen = [record for record in open_jobs if record.state.name in job_filter.states]
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
    states = job_filter.states and job_filter.states - {REFUSED_STATE}
    if states is not None and not states:
        return []
    filters: dict[str, Any] = {
        "states": states and {AppState[name] for name in states},
        "since": job_filter.since,
        "all": job_filter.refused or None,
    }
    accepted = scheduler.capabilities.list_filters
    own = {key: value for key, value in filters.items() if key in accepted and value is not None}
    jobs = list_jobs({**(cfg or {}), **own} or None)
    # by id: the session in a handle is only a label
    known = history.known(scheduler.backend, [job.app_id for job in jobs])
    return [job for job in jobs if job.app_id not in known and job_filter.suits(job)]


def _total(
    history: History,
    job_filter: JobFilter,
    records: list[JobRecord],
    limit: int | None,
    is_open: bool | None = None,
) -> int:
    if limit is None or len(records) < limit:
        return len(records)
    return history.count(job_filter, is_open=is_open)


# ---- by what a user types


def resolve(text: str | None, history: Callable[[], History], *, latest: bool = True) -> str:
    """Return the handle that a text names; see `Runner.resolve_handle`. The history is opened if needed."""
    if text is not None and not isinstance(text, str):
        raise UsageError(f"{text!r} names no job", hint="A job is named by its handle, its id or its name.")
    if text and _WHOLE_ID.fullmatch(text):
        return text
    if text is None or text == "-":
        return _latest(history())
    if not text.strip() or text.endswith("/"):  # an unset variable in a script must not select a job
        raise UsageError(f"{text!r} names no job", hint="Write - for the job that was submitted last.")
    scheduler, separator, rest = text.partition("://")
    if not separator:
        return _only(text, text, None, history(), latest=latest)
    if history().find(text) is not None:
        return text
    if history().handles(text, limit=1):
        return _only(text, text, None, history(), latest=latest)
    if "/" not in rest:
        return _only(text, rest, scheduler, history(), latest=latest)
    parse_app_handle(text)  # a job of another machine, or of another user
    return text


def resolve_all(texts: Iterable[str], history: Callable[[], History], *, latest: bool = True) -> list[str]:
    """Return the handles of the jobs that texts name; see `Runner.resolve_handles`."""
    handles: dict[str, None] = {}
    for text in texts:
        if not is_pattern(text):
            handles[resolve(text, history, latest=latest)] = None
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


def _only(text: str, beginning: str, scheduler: str | None, history: History, *, latest: bool) -> str:
    """Return the handle of the only job with this id, or else whose id begins with it.

    If there are several, ``latest`` chooses the latest of those whose name it is.
    """
    handles = history.handles(beginning, scheduler, MOST_CANDIDATES + 1)
    named = history.named(beginning, scheduler) if latest and len(handles) != 1 else []
    if named:
        if len(named) > 1:
            app_id = parse_app_handle(named[0]).app_id
            message = f"{text}: {app_id}, the latest of {len(named)}"
            warnings.warn(message, LatestOfSeveral, stacklevel=2)
        return named[0]
    if not handles:
        raise UnknownAppException(
            f"no job in the history has an id that begins with {text!r}",
            hint=("For all jobs, write '*' in quotes. " if text == "all" else _similar(beginning, history))
            + "`shunter list` shows the jobs; name a job that is not listed by its complete handle.",
        )
    if len(handles) > 1:
        listing = "".join(f"\n  {handle}" for handle in handles[:MOST_CANDIDATES])
        has_more = len(handles) > MOST_CANDIDATES
        raise UsageError(
            f"{text!r} matches {f'more than {MOST_CANDIDATES}' if has_more else len(handles)} jobs:{listing}",
            hint="Give more of the id, or the complete handle; or, for all of them, a pattern: "
            f"{shlex.quote(text + '*')}",
        )
    return handles[0]


def _similar(name: str, history: History) -> str:
    """Return a question with names of recent jobs that are like this one; "" without any."""
    question = did_you_mean(name, history.names(_MOST_NAMES))
    return f"{question} " if question.startswith("Did") else ""


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
