"""The rows of `list`: from the history, and from a scheduler that is asked for its own."""

from __future__ import annotations

from trainyard.specs.status import is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.runner import Runner
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
    def ended(self) -> bool:
        """Whether it can never change again."""
        return is_terminal(self.state) or self.phase == REFUSED

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the state by its name."""
        return {name: getattr(self, name) for name in self.__slots__} | {"state": self.state.name}


class Filter:
    """Which rows are wanted.

    Args:
        states: names of states; None for all.
        since: only jobs submitted at or after this time, seconds since the epoch.
        name: part of a name or id, or a pattern with ``*`` and ``?``.
        refused: whether all are wanted: submissions of which no job came to be, jobs that are not ours.
    """

    def __init__(
        self, states: set[str] | None, since: float | None, name: str | None, refused: bool = False
    ) -> None:
        self._states = states
        self._since = since
        self._name = name
        self._refused = refused
        self.active = states is not None or since is not None or bool(name)

    def suits(self, row: Row) -> bool:
        """Tell whether a row is wanted."""
        if row.phase == REFUSED and not self._refused:
            return False
        if self._states is not None and row.state.name not in self._states:
            return False
        if self._since is not None and (row.started_at is None or row.started_at < self._since):
            return False
        return not self._name or self._matches(row.name) or self._matches(row.app_id)

    def for_scheduler(self, taken: frozenset[str]) -> dict[str, Any]:
        """Return what a scheduler is to list, as far as it takes that; see `Scheduler.list_filters`."""
        from trainyard.specs.status import AppState

        states = None if self._states is None else {AppState[name] for name in self._states}
        filters = {"states": states, "since": self._since, "all": self._refused or None}
        return {key: value for key, value in filters.items() if key in taken and value is not None}

    def _matches(self, text: str) -> bool:
        name = self._name or ""
        if any(char in name for char in "*?["):
            from fnmatch import fnmatchcase

            return fnmatchcase(text, name)
        return name in text


def rows_of_history(runner: Runner, scheduler: str | None, cfg: dict[str, Any] | None = None) -> list[Row]:
    """Return the submissions of the history, the latest first, their states brought up to date.

    Args:
        runner: the runner.
        scheduler: only jobs of this one; None for all.
        cfg: its options, by which it may list some jobs only.

    Raises:
        UnknownSchedulerException: there is no such scheduler.
    """
    rows = [Row.from_record(record) for record in _records(runner, scheduler)]
    if scheduler is None or not cfg:
        return rows
    lists = runner.scheduler(scheduler).lists
    return [row for row in rows if lists(row.app_id, cfg)]


def _records(runner: Runner, scheduler: str | None) -> list[JobRecord]:
    if scheduler is not None:
        runner.scheduler(scheduler)
    return runner.jobs(scheduler=scheduler)


def rows_of_others(
    runner: Runner, scheduler: str, cfg: dict[str, Any] | None, known: list[Row], wanted: Filter
) -> list[Row]:
    """Return the jobs that a scheduler lists and the history does not know.

    What the scheduler can leave out itself it is not asked for.
    """
    ids = {row.app_id for row in known}  # by id: the session in a handle is only a label
    filters = wanted.for_scheduler(runner.scheduler(scheduler).list_filters)
    jobs = runner.list(scheduler, {**(cfg or {}), **filters} or None)
    return [Row.from_listed(scheduler, job) for job in jobs if job.app_id not in ids]
