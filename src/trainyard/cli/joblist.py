"""The rows of `list`: from the history, and from a scheduler that is asked for its own."""

from __future__ import annotations

from trainyard.runner.jobsearch import REFUSED_STATE
from trainyard.specs.status import is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.runner import Runner
    from trainyard.runner.jobsearch import JobFilter
    from trainyard.runner.records import JobRecord
    from trainyard.schedulers.base import ListAppResponse
    from trainyard.specs.status import AppState

REFUSED = "refused"


class Row:
    """One job of the list. Times are seconds since the epoch; None where they are not known.

    ``state`` is UNREACHABLE for a job that cannot be seen now; the history keeps the last one that was.
    """

    __slots__ = (
        "app_id",
        "component",
        "created_at",
        "ended_at",
        "handle",
        "msg",
        "name",
        "phase",
        "scheduler",
        "state",
        "submitted_at",
    )

    def __init__(self, handle: str, scheduler: str, app_id: str, name: str, state: AppState) -> None:
        self.handle = handle
        self.scheduler = scheduler
        self.app_id = app_id
        self.name = name
        self.state = state
        self.phase = "submitted"
        self.component: str | None = None
        self.msg = ""
        self.created_at: float | None = None
        self.submitted_at: float | None = None
        self.ended_at: float | None = None

    @classmethod
    def from_record(cls, record: JobRecord) -> Row:
        """Make the row of a submission in the history."""
        row = cls(record.handle, record.scheduler, record.app_id, record.name, record.state)
        row.phase, row.component, row.msg = record.phase, record.component, record.msg
        row.created_at, row.submitted_at = record.created_at, record.submitted_at
        row.ended_at = record.ended_at
        return row

    @classmethod
    def from_listed(cls, scheduler: str, job: ListAppResponse) -> Row:
        """Make the row of a job that a scheduler lists."""
        row = cls(job.app_handle, scheduler, job.app_id, job.name or job.app_id, job.state)
        row.submitted_at, row.ended_at = job.submitted_at, job.ended_at
        return row

    @property
    def started_at(self) -> float | None:
        """When it was submitted, or was to be."""
        return self.submitted_at or self.created_at

    @property
    def shown_state(self) -> str:
        """The name of the state, as a table has it."""
        return REFUSED_STATE if self.phase == REFUSED else self.state.name

    @property
    def ended(self) -> bool:
        """Whether it can never change again."""
        return is_terminal(self.state) or self.phase == REFUSED

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the state by its name."""
        return {name: getattr(self, name) for name in self.__slots__} | {"state": self.state.name}


def own_rows(
    runner: Runner, wanted: JobFilter, limit: int | None, cfg: dict[str, Any] | None = None
) -> tuple[list[Row], int]:
    """Return submissions of the history, the latest first, and the number of all that are wanted.

    Args:
        runner: the runner.
        wanted: which.
        limit: at most so many; None for all.
        cfg: options of the filter's scheduler, by which it may list some jobs only.

    Raises:
        UnknownSchedulerException: there is no such scheduler.
    """
    if wanted.scheduler is None:
        records, total = runner.search(wanted, limit)
        return [Row.from_record(record) for record in records], total
    lists = runner.scheduler(wanted.scheduler).lists
    if not cfg:
        records, total = runner.search(wanted, limit, by_time=True)
    else:
        records = [record for record in runner.search(wanted, by_time=True)[0] if lists(record.app_id, cfg)]
        total = len(records)
    return [Row.from_record(record) for record in records], total


def rows_of_others(runner: Runner, wanted: JobFilter, cfg: dict[str, Any] | None) -> list[Row]:
    """Return the jobs that a scheduler lists and the history does not know.

    What the scheduler can leave out itself it is not asked for.
    """
    scheduler = wanted.scheduler or ""
    states = None if wanted.states is None else {name for name in wanted.states if name != REFUSED_STATE}
    if states == set():
        return []
    filters = _for_scheduler(wanted, states, runner.scheduler(scheduler).list_filters)
    jobs = runner.list(scheduler, {**(cfg or {}), **filters} or None)
    # by id: the session in a handle is only a label
    known = runner.history.known(scheduler, [job.app_id for job in jobs])
    rows = [Row.from_listed(scheduler, job) for job in jobs if job.app_id not in known]
    return [row for row in rows if wanted.suits(row.state.name, row.started_at, (row.name, row.app_id))]


def _for_scheduler(wanted: JobFilter, states: set[str] | None, taken: frozenset[str]) -> dict[str, Any]:
    """Return what a scheduler is to list, as far as it takes that; see `Scheduler.list_filters`."""
    from trainyard.specs.status import AppState

    named = None if states is None else {AppState[name] for name in states}
    filters = {"states": named, "since": wanted.since, "all": wanted.refused or None}
    return {key: value for key, value in filters.items() if key in taken and value is not None}
