"""The history of submissions: an SQLite database that many processes write at the same time.

A row goes through phases. ``intent`` is written before the request is sent, so that the job is known even if
the sending process dies. It becomes ``submitted`` when the scheduler has returned an id, ``refused`` when the
scheduler refused the job, and ``deleted`` when the job was removed from its scheduler.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from shunter.paths import has_content, history_path
from shunter.runner.history_database import explained, open_for_reading, open_for_writing
from shunter.runner.jobsearch import JobFilter
from shunter.runner.records import COLUMNS, DELETED, INTENT, JSON_COLUMNS, REFUSED, SUBMITTED, JobRecord
from shunter.specs.status import AppState, AppStatus

Functions = Mapping[str, tuple[int, Callable[..., bool]]]

_SELECT = f"SELECT {', '.join(COLUMNS)} FROM jobs"
_ENDED = "state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')"
_OBSERVED = f"""
    UPDATE jobs SET state = ?, msg = ?, started_at = coalesce(?, started_at), ended_at = ?
    WHERE handle = ? AND phase = 'submitted' AND NOT {_ENDED}
"""
_TIMES_OF_ENDED = f"""
    UPDATE jobs SET started_at = coalesce(started_at, ?), ended_at = coalesce(ended_at, ?)
    WHERE handle = ? AND phase = 'submitted' AND {_ENDED} AND (started_at IS NULL OR ended_at IS NULL)
"""


class History:
    """The history database. Opened on first use; reading never creates or changes it.

    Args:
        path: the database file; by default the one of the state directory.

    Raises:
        StateStoreError: by every method, when the database cannot be used.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path or history_path()
        self._lock = threading.RLock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._abandoned: list[sqlite3.Connection | None] = []
        self._pid = os.getpid()

    def close(self) -> None:
        """Close the database. May be called more than once; later calls open it again."""
        with self._lock:
            for connection in filter(None, (self._reader, self._writer)):
                connection.close()
            self._reader = self._writer = None

    # ---- writing

    def add_intent(self, record: JobRecord, *, durable: bool = True) -> str:
        """Record that a job is about to be submitted; returns the row's key.

        Args:
            record: the submission. Secrets must have been removed.
            durable: whether the row must survive a power failure; not needed if the job would not.
        """
        row = record.to_row()
        names = ", ".join(row)
        self._write(
            [(f"INSERT INTO jobs ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))],
            synchronous="FULL" if durable else "NORMAL",
        )
        return record.key

    def submitted(self, key: str, handle: str, app_id: str, **columns: Any) -> None:
        """Record that the scheduler accepted the job and gave it an id."""
        values = {
            "phase": SUBMITTED,
            "handle": handle,
            "app_id": app_id,
            "submitted_at": time.time(),
            "state": AppState.SUBMITTED.name,
            "msg": "",
            **columns,
        }
        self._write([_update(values, "key = ?", key)])

    def refused(self, key: str, msg: str) -> None:
        """Record that no job was started, and why. Does nothing if the row is no longer an intent."""
        values = {"phase": REFUSED, "state": AppState.UNSUBMITTED.name, "msg": msg}
        self._write([_update(values, "key = ? AND phase = 'intent'", key)])

    def amend(self, key: str, **columns: Any) -> None:
        """Change fields of a row."""
        for name in JSON_COLUMNS & columns.keys():
            columns[name] = None if columns[name] is None else json.dumps(columns[name])
        self._write([_update(columns, "key = ?", key)])

    def observe(self, observations: Iterable[tuple[str, AppStatus]]) -> None:
        """Record what was seen of jobs, by handle.

        How a job ended is recorded once. Only a time that was not known then is filled in later.
        """
        changes: list[tuple[str, tuple[Any, ...]]] = []
        for handle, seen in observations:
            times = (seen.started_at, seen.ended_at)
            if seen.is_terminal() and times != (None, None):
                changes.append((_TIMES_OF_ENDED, (*times, handle)))
            changes.append((_OBSERVED, (seen.state.name, seen.reason, *times, handle)))
        self._write(changes)

    def mark_deleted(self, handle: str) -> None:
        """Record that a job was removed from its scheduler: lists leave it out from now on."""
        self._write([_update({"phase": DELETED}, "handle = ?", handle)])

    # ---- reading

    def find(self, handle: str) -> JobRecord | None:
        """Return the row of a handle, the latest if there are several."""
        return self._first("handle = ? ORDER BY seq DESC", handle)

    def get(self, key: str) -> JobRecord | None:
        """Return the row of a key."""
        return self._first("key = ?", key)

    def rows(
        self, limit: int | None = None, scheduler: str | None = None, *, deleted: bool = False
    ) -> list[JobRecord]:
        """Return submissions, the latest first, by default without deleted jobs."""
        where, values = ["1"], []
        if not deleted:
            where.append(f"phase != '{DELETED}'")
        if scheduler is not None:
            where.append("scheduler = ?")
            values.append(scheduler)
        tail = "" if limit is None else f" LIMIT {int(limit)}"
        return self._read(f"WHERE {' AND '.join(where)} ORDER BY seq DESC{tail}", *values)

    def intents(self) -> list[JobRecord]:
        """Return the submissions that are in progress, or were interrupted."""
        return self._read("WHERE phase = 'intent' ORDER BY seq DESC")

    def latest(self) -> JobRecord | None:
        """Return the job that was submitted last; of a sweep's points, the sweep."""
        return self._first("phase = 'submitted' AND sweep IS NULL ORDER BY seq DESC")

    def of_sweep(self, app_id: str) -> list[JobRecord]:
        """Return the jobs of a sweep's points, in the order of their submissions."""
        return self._read("WHERE sweep = ? ORDER BY seq", app_id)

    def select(
        self,
        job_filter: JobFilter,
        limit: int | None = None,
        *,
        settled: bool | None = None,
        by_time: bool = False,
        as_recorded: bool = False,
        offset: int = 0,
    ) -> list[JobRecord]:
        """Return the jobs that match a filter, the latest first; see `JobFilter.condition`."""
        condition, values = job_filter.condition(settled, as_recorded=as_recorded)
        order = "coalesce(submitted_at, created_at) DESC, seq DESC" if by_time else "seq DESC"
        tail = "" if limit is None else f" LIMIT {int(limit)} OFFSET {int(offset)}"
        source = "jobs" if settled is False else "jobs INDEXED BY jobs_list"
        matching = f"SELECT seq FROM {source} WHERE {condition} ORDER BY {order}{tail}"
        return self._read(
            f"WHERE seq IN ({matching}) ORDER BY {order}", *values, functions=job_filter.functions()
        )

    def count(self, job_filter: JobFilter, *, settled: bool | None = None, as_recorded: bool = False) -> int:
        """Return how many jobs match a filter."""
        condition, values = job_filter.condition(settled, as_recorded=as_recorded)
        statement = f"SELECT count(*) FROM jobs INDEXED BY jobs_list WHERE {condition}"
        rows = self._query(statement, *values, functions=job_filter.functions())
        return int(rows[0][0]) if rows else 0

    def tally(self) -> list[tuple[str, str, str, int]]:
        """Return how many jobs there are by scheduler, phase and recorded state, without deleted ones."""
        statement = (
            "SELECT scheduler, phase, state, count(*) FROM jobs INDEXED BY jobs_list"
            f" WHERE phase != '{DELETED}' GROUP BY scheduler, phase, state"
        )
        return [(row[0], row[1], row[2], int(row[3])) for row in self._query(statement)]

    def known(self, scheduler: str, app_ids: Iterable[str], *, deleted: bool = False) -> set[str]:
        """Return those of the ids whose jobs are in the history, by default without deleted ones."""
        condition = "scheduler = ?" if deleted else f"scheduler = ? AND phase != '{DELETED}'"
        return self._among("app_id", app_ids, condition, scheduler)

    def known_code(self, fingerprints: Iterable[str]) -> set[str]:
        """Return those of the fingerprints whose code went with a job of the history."""
        return self._among("fingerprint", fingerprints, "fingerprint IS NOT NULL")

    def _among(self, column: str, texts: Iterable[str], condition: str, *values: str) -> set[str]:
        candidates = list(texts)
        recorded: set[str] = set()
        for start in range(0, len(candidates), 500):  # SQLite has a limit for the number of values
            chunk = candidates[start : start + 500]
            marks = ", ".join("?" * len(chunk))
            statement = f"SELECT {column} FROM jobs WHERE {column} IN ({marks}) AND {condition}"
            recorded.update(row[0] for row in self._query(statement, *chunk, *values))
        return recorded

    def before(self, record: JobRecord) -> JobRecord | None:
        """Return the job that was submitted before another one under the same name."""
        condition = "phase = 'submitted' AND name = ? AND seq < ? ORDER BY seq DESC"
        return self._first(condition, record.name, record.seq)

    def latest_named(self, name: str) -> JobRecord | None:
        """Return the job that was submitted last under a name."""
        return self._first("phase = 'submitted' AND name = ? ORDER BY seq DESC", name)

    def last_success(self, record: JobRecord) -> JobRecord | None:
        """Return the last job under the same name that was submitted before another one and succeeded."""
        condition = "phase = 'submitted' AND name = ? AND seq < ? AND state = 'SUCCEEDED' ORDER BY seq DESC"
        return self._first(condition, record.name, record.seq)

    def handles(self, text: str, scheduler: str | None = None, limit: int | None = None) -> list[str]:
        """Return the handles of the jobs whose app id (or handle) begins with a text, the latest first."""
        condition, values = _begins_with(text, scheduler)
        tail = "" if limit is None else f" LIMIT {int(limit)}"
        rows = self._query(f"SELECT handle FROM jobs WHERE {condition} ORDER BY seq DESC{tail}", *values)
        return list(dict.fromkeys(row[0] for row in rows))

    def count_handles(self, text: str, scheduler: str | None = None) -> int:
        """Return how many jobs `handles` finds without a limit."""
        condition, values = _begins_with(text, scheduler)
        return int(self._query(f"SELECT count(*) FROM jobs WHERE {condition}", *values)[0][0])

    def with_id(self, app_id: str, scheduler: str | None = None) -> list[str]:
        """Return the handles of the jobs with exactly this id, the latest first."""
        condition = "phase = 'submitted' AND app_id = ?" + (" AND scheduler = ?" if scheduler else "")
        values = (app_id, scheduler) if scheduler else (app_id,)
        rows = self._query(f"SELECT handle FROM jobs WHERE {condition} ORDER BY seq DESC", *values)
        return list(dict.fromkeys(row[0] for row in rows))

    def needed_code(self, older_than: float) -> set[str]:
        """Return the fingerprints of the code of jobs that have not ended, or ended less than this ago."""
        statement = (
            "SELECT DISTINCT fingerprint FROM jobs WHERE fingerprint IS NOT NULL"
            f" AND phase IN ('{INTENT}', '{SUBMITTED}')"
            " AND (state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED') OR coalesce(ended_at, created_at) > ?)"
        )
        return {row[0] for row in self._query(statement, time.time() - older_than)}

    # ---- connections

    def _read(
        self, condition: str, *values: Any, functions: Functions = MappingProxyType({})
    ) -> list[JobRecord]:
        return [
            JobRecord.from_row(row)
            for row in self._query(f"{_SELECT} {condition}", *values, functions=functions)
        ]

    def _first(self, condition: str, *values: Any) -> JobRecord | None:
        return next(iter(self._read(f"WHERE {condition} LIMIT 1", *values)), None)

    def _query(
        self, statement: str, *values: Any, functions: Functions = MappingProxyType({})
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, which may call functions; an empty list without a database.

        ``functions`` has the number of arguments and the function by name.
        """
        if self._writer is None and self._reader is None and not has_content(self.path):
            return []
        with self._lock:
            self._after_fork()
            connection = self._writer or self._reader
            if connection is None:
                connection = self._reader = open_for_reading(self.path)
                if connection is None:
                    return []
            with explained("read the history", self.path):
                for name, (count, function) in functions.items():
                    if f"{name}(" in statement:
                        connection.create_function(name, count, function, deterministic=True)
                return connection.execute(statement, values).fetchall()

    def _write(self, statements: list[tuple[str, tuple[Any, ...]]], synchronous: str = "NORMAL") -> None:
        """Write all or nothing. The rows survive the end of any process; with FULL, a power failure too.

        FULL waits for the disk, 3 to 30 ms; NORMAL does not. What NORMAL loses in a power failure is found
        again: an intent makes the next reader ask the scheduler.
        """
        if not statements:
            return
        with self._lock:
            self._after_fork()
            connection = self._writer
            if connection is None:
                connection = self._writer = open_for_writing(self.path)
            with explained("write the history", self.path):
                connection.execute(f"PRAGMA synchronous = {synchronous}")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    for statement, values in statements:
                        connection.execute(statement, values)
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # a connection must not be used, nor closed, by the child of the process that opened it
            self._abandoned += [self._reader, self._writer]
            self._reader = self._writer = None
            self._pid = os.getpid()


def _begins_with(text: str, scheduler: str | None) -> tuple[str, list[Any]]:
    # a range, unlike LIKE, uses the index and takes '_' and '%' for what they are
    column = "handle" if "://" in text else "app_id"
    condition = f"phase = 'submitted' AND {column} >= ? AND {column} < ?"
    values = [text, text + "\U0010ffff"]
    return (
        (condition, values) if scheduler is None else (condition + " AND scheduler = ?", [*values, scheduler])
    )


def _update(columns: dict[str, Any], condition: str, *values: Any) -> tuple[str, tuple[Any, ...]]:
    names = ", ".join(f"{name} = ?" for name in columns)
    return f"UPDATE jobs SET {names} WHERE {condition}", (*columns.values(), *values)
