"""The history of submissions: an SQLite database that many processes write at the same time.

A row goes through phases. ``intent`` is written before the request is sent, so that the job is known even if
the sending process dies. It becomes ``submitted`` when the scheduler has returned an id, ``refused`` when the
scheduler refused the job, and ``deleted`` when the job was removed from its scheduler.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from shunter.errors import StateStoreError
from shunter.paths import has_content, history_path, make_private_dir, state_error
from shunter.runner.jobsearch import JobFilter
from shunter.runner.records import COLUMNS, DELETED, INTENT, REFUSED, SUBMITTED, JobRecord, as_stored
from shunter.specs.status import AppState, AppStatus
from shunter.specs.training import CALL_KEY

#: How many steps there were before the first one here, which makes what all of them made.
EARLIER_STEPS = 6
# A released step is never changed. Each is a list of single statements: `executescript` would commit the
# transaction that makes a step all or nothing.
MIGRATIONS: list[list[str]] = [
    [  # `JobRecord` describes the columns
        """
        CREATE TABLE jobs (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            key UNIQUE NOT NULL,
            phase, handle, scheduler, session, app_id, name, component, component_args, cfg, app, workspace,
            cwd, argv, git_commit, git_dirty, user, host, created_at, submitted_at, ended_at, state, msg,
            submitter, rerun_of, parent_run_id, fingerprint, images, native_id, metrics, sweep, point,
            started_at, python
        )
        """,
        # so that no command reads rows that it does not show
        "CREATE INDEX jobs_handle ON jobs (handle, phase, scheduler)",
        "CREATE INDEX jobs_app_id ON jobs (app_id, phase, scheduler, handle)",
        "CREATE INDEX jobs_name ON jobs (name) WHERE phase = 'submitted'",
        "CREATE INDEX jobs_intents ON jobs (phase) WHERE phase = 'intent'",
        "CREATE INDEX jobs_fingerprint ON jobs (fingerprint) WHERE fingerprint IS NOT NULL",
        "CREATE INDEX jobs_sweep ON jobs (sweep) WHERE sweep IS NOT NULL",
        """
        CREATE INDEX jobs_list ON jobs
        (seq, phase, state, scheduler, name, app_id, submitted_at, created_at, sweep)
        """,
        """
        CREATE INDEX jobs_unsettled ON jobs (seq)
        WHERE phase = 'submitted' AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'UNKNOWN')
        """,
    ],
    [
        "ALTER TABLE jobs ADD COLUMN race",
        "CREATE INDEX jobs_race ON jobs (race) WHERE race IS NOT NULL",
    ],
    ["ALTER TABLE jobs ADD COLUMN installed"],
]

# Long enough for hundreds of processes that submit at the same time, each of which holds the lock for a
# few milliseconds.
BUSY_SECONDS = 60.0
#: What the files beside the database may take, in bytes.
LEAST_ROOM = 1 << 20
#: SQLite has a limit for the number of values.
VALUES_AT_A_TIME = 500

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
        statement = f"INSERT INTO jobs ({', '.join(row)}) VALUES ({_marks(len(row))})"
        self._write([(statement, tuple(row.values()))], synchronous="FULL" if durable else "NORMAL")
        return record.key

    def submitted(self, key: str, handle: str, app_id: str, **columns: Any) -> None:
        """Record that the scheduler accepted the job and gave it an id."""
        values = {
            "phase": SUBMITTED,
            "handle": handle,
            "app_id": app_id,
            "submitted_at": time.time(),
            "state": AppState.SUBMITTED,
            "msg": "",
            **columns,
        }
        self.amend(key, **values)

    def refused(self, key: str, msg: str) -> None:
        """Record that no job was started, and why. Does nothing if the row is no longer an intent."""
        values = {"phase": REFUSED, "state": AppState.UNSUBMITTED, "msg": msg}
        self._write([_update(values, "key = ? AND phase = 'intent'", key)])

    def amend(self, key: str, **columns: Any) -> None:
        """Change fields of a row."""
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
        return self._first("handle = ?", handle)

    def get(self, key: str) -> JobRecord | None:
        """Return the row of a key."""
        return self._first("key = ?", key)

    def rows(
        self, limit: int | None = None, scheduler: str | None = None, *, deleted: bool = False
    ) -> list[JobRecord]:
        """Return submissions, the latest first, by default without deleted jobs."""
        conditions, values = ["1" if deleted else f"phase != '{DELETED}'"], []
        if scheduler is not None:
            conditions.append("scheduler = ?")
            values.append(scheduler)
        return self._read(f"{' AND '.join(conditions)} ORDER BY seq DESC{_limit(limit)}", *values)

    def intents(self) -> list[JobRecord]:
        """Return the submissions that are in progress, or were interrupted."""
        return self._read("phase = 'intent' ORDER BY seq DESC")

    def latest(self, name: str | None = None) -> JobRecord | None:
        """Return the job that was submitted last, under this name if there is one; of a sweep, the sweep."""
        if name is not None:
            return self._first("phase = 'submitted' AND name = ?", name)
        return self._first("phase = 'submitted' AND sweep IS NULL")

    def of_sweep(self, app_id: str) -> list[JobRecord]:
        """Return the jobs of a sweep's points, in the order of their submissions."""
        return self._read("sweep = ? ORDER BY seq", app_id)

    def of_parent(self, parent_run_id: str) -> list[JobRecord]:
        """Return the jobs that belong to a run, in the order of their submissions."""
        return self._read("parent_run_id = ? ORDER BY seq", parent_run_id)

    def of_race(self, race: str) -> list[JobRecord]:
        """Return the jobs of a race, in the order of their submissions."""
        return self._read("race = ? ORDER BY seq", race)

    def before(self, record: JobRecord, *, succeeded: bool = False) -> JobRecord | None:
        """Return the last (successful) job under a job's name that was submitted before it."""
        condition = "phase = 'submitted' AND name = ? AND seq < ?"
        state = " AND state = 'SUCCEEDED'" if succeeded else ""
        return self._first(condition + state, record.name, record.seq)

    def select(
        self,
        job_filter: JobFilter,
        limit: int | None = None,
        *,
        is_open: bool | None = None,
        by_time: bool = False,
        offset: int = 0,
    ) -> list[JobRecord]:
        """Return the jobs that match a filter, the latest first; see `JobFilter.condition`."""
        condition, values = job_filter.condition(is_open)
        order = "coalesce(submitted_at, created_at) DESC, seq DESC" if by_time else "seq DESC"
        source = "jobs" if is_open else "jobs INDEXED BY jobs_list"
        matching = f"SELECT seq FROM {source} WHERE {condition} ORDER BY {order}{_limit(limit, offset)}"
        return self._read(f"seq IN ({matching}) ORDER BY {order}", *values)

    def count(self, job_filter: JobFilter, *, is_open: bool | None = None) -> int:
        """Return how many jobs match a filter."""
        condition, values = job_filter.condition(is_open)
        rows = self._query(f"SELECT count(*) FROM jobs INDEXED BY jobs_list WHERE {condition}", *values)
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

    def needed_code(self, older_than: float) -> set[str]:
        """Return the fingerprints of the code of jobs that have not ended, or ended less than this ago."""
        statement = (
            "SELECT DISTINCT fingerprint FROM jobs WHERE fingerprint IS NOT NULL"
            f" AND phase IN ('{INTENT}', '{SUBMITTED}')"
            f" AND (NOT {_ENDED} OR coalesce(ended_at, created_at) > ?)"
        )
        return {row[0] for row in self._query(statement, time.time() - older_than)}

    def needed_calls(self, older_than: float) -> set[str]:
        """Return the digests of the calls of jobs that have not ended, or ended less than this ago."""
        statement = (
            f"SELECT app FROM jobs WHERE instr(app, '\"{CALL_KEY}\"')"
            f" AND phase IN ('{INTENT}', '{SUBMITTED}')"
            f" AND (NOT {_ENDED} OR coalesce(ended_at, created_at) > ?)"
        )
        apps = [json.loads(row[0]) for row in self._query(statement, time.time() - older_than)]
        roles = [role for app in apps for role in app.get("roles", ())]
        calls = [(role.get("metadata") or {}).get(CALL_KEY) for role in roles]
        return {call.get("digest", "") for call in calls if isinstance(call, dict)}

    def handles(self, text: str, scheduler: str | None = None, limit: int | None = None) -> list[str]:
        """Return the handles of the jobs with this app id, or else whose id (or handle) begins with a text.

        The latest is the first.
        """
        column = "handle" if "://" in text else "app_id"
        # a range, unlike LIKE, uses the index and takes '_' and '%' for what they are
        beginning = f"{column} >= ? AND {column} < ?"
        for condition, values in (("app_id = ?", [text]), (beginning, [text, text + "\U0010ffff"])):
            if scheduler is not None:
                condition, values = condition + " AND scheduler = ?", [*values, scheduler]
            tail = f"ORDER BY seq DESC{_limit(limit)}"
            statement = f"SELECT handle FROM jobs WHERE phase = 'submitted' AND {condition} {tail}"
            if handles := list(dict.fromkeys(row[0] for row in self._query(statement, *values))):
                return handles
        return []

    def names(self, limit: int) -> list[str]:
        """Return the names of the latest submissions, each once."""
        condition = "phase = 'submitted' AND sweep IS NULL"
        rows = self._query(f"SELECT name FROM jobs WHERE {condition} ORDER BY seq DESC{_limit(limit)}")
        return list(dict.fromkeys(row[0] for row in rows))

    def named(self, name: str, scheduler: str | None = None) -> list[str]:
        """Return the handles of the jobs with this name, the latest first; not the points of sweeps."""
        condition, values = "name = ?", [name]
        if scheduler is not None:
            condition, values = condition + " AND scheduler = ?", [*values, scheduler]
        statement = (
            f"SELECT handle FROM jobs WHERE phase = 'submitted' AND sweep IS NULL AND {condition} "
            "ORDER BY seq DESC"
        )
        return [row[0] for row in self._query(statement, *values)]

    # ---- statements

    def _among(self, column: str, texts: Iterable[str], condition: str, *values: str) -> set[str]:
        candidates = list(texts)
        recorded: set[str] = set()
        for start in range(0, len(candidates), VALUES_AT_A_TIME):
            chunk = candidates[start : start + VALUES_AT_A_TIME]
            statement = f"SELECT {column} FROM jobs WHERE {column} IN ({_marks(len(chunk))}) AND {condition}"
            recorded.update(row[0] for row in self._query(statement, *chunk, *values))
        return recorded

    def _read(self, condition: str, *values: Any) -> list[JobRecord]:
        rows = self._query(f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE {condition}", *values)
        return [JobRecord.from_row(row) for row in rows]

    def _first(self, condition: str, *values: Any) -> JobRecord | None:
        return next(iter(self._read(f"{condition} ORDER BY seq DESC LIMIT 1", *values)), None)

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; an empty list without a database."""
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
                with _transaction(connection):
                    for statement, values in statements:
                        connection.execute(statement, values)

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # a connection must not be used, nor closed, by the child of the process that opened it
            self._abandoned += [self._reader, self._writer]
            self._reader = self._writer = None
            self._pid = os.getpid()


def _update(columns: dict[str, Any], condition: str, *values: Any) -> tuple[str, tuple[Any, ...]]:
    names = ", ".join(f"{name} = ?" for name in columns)
    return f"UPDATE jobs SET {names} WHERE {condition}", (*as_stored(columns).values(), *values)


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _limit(limit: int | None, offset: int = 0) -> str:
    return "" if limit is None else f" LIMIT {int(limit)} OFFSET {int(offset)}"


# ---- opening the database


def open_for_writing(path: str) -> sqlite3.Connection:
    """Open the database, creating it or upgrading its schema if necessary.

    Raises:
        StateStoreError: it cannot be opened; the message says why and what to do.
    """
    make_private_dir(os.path.dirname(path))
    with explained("write the history", path):
        connection = _connect(path)
        try:
            if _version(connection) != len(MIGRATIONS):
                # the kernel drops it when its holder dies; SQLite's own lock does not cover `journal_mode`
                with open(path + ".lock", "a", encoding="utf-8") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    _migrate(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def open_for_reading(path: str) -> sqlite3.Connection | None:
    """Open the database read-only; returns None if it does not exist yet.

    Raises:
        StateStoreError: it cannot be read; the message says why and what to do.
    """
    if not has_content(path):
        return None
    with explained("read the history", path):
        connection = _connect_read_only(path)
        try:
            version = _version(connection)
            if version > len(MIGRATIONS):
                raise _too_new(path, version)
        except BaseException:
            connection.close()
            raise
        if version == len(MIGRATIONS):
            return connection
        connection.close()
        # its schema is an older one, or the process that creates it has not finished
        return open_for_writing(path) if version else None


@contextlib.contextmanager
def explained(attempt: str, path: str) -> Iterator[None]:
    """Turn errors of SQLite and the file system into `StateStoreError`."""
    try:
        yield
    except OSError as error:
        raise state_error(attempt + " in", path, error) from error
    except sqlite3.DatabaseError as error:
        raise _explain(attempt, path, error) from error


def _connect(path: str, uri: bool = False) -> sqlite3.Connection:
    # isolation_level None: we begin transactions explicitly
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri)


def _connect_read_only(path: str) -> sqlite3.Connection:
    connection = _connect(f"file:{quote(os.fsencode(path))}?mode=ro", uri=True)
    try:
        _version(connection)
    except sqlite3.OperationalError:
        # A WAL database needs a file for shared memory beside it, which a read-only directory refuses.
        connection.close()
        return _copy_in_memory(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _copy_in_memory(path: str) -> sqlite3.Connection:
    """Read a database, and the rows that are still in its write-ahead log, through a copy of both."""
    with tempfile.TemporaryDirectory(prefix="shunter-history-") as directory:
        copy = os.path.join(directory, "history.db")
        for suffix in ("", "-wal"):
            if has_content(path + suffix):
                shutil.copyfile(path + suffix, copy + suffix)
        source, target = _connect(copy), _connect(":memory:")
        with contextlib.closing(source):
            source.backup(target)
    return target


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    """Return how many steps a database has been through."""
    return max(int(connection.execute("PRAGMA user_version").fetchone()[0]) - EARLIER_STEPS, 0)


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    """Apply the missing steps. A process that is killed leaves whole steps."""
    if _version(connection) > len(MIGRATIONS):
        raise _too_new(path, _version(connection))
    os.chmod(path, 0o600)
    # Where the file system cannot do WAL (some network ones), SQLite stays with its rollback journal.
    connection.execute("PRAGMA journal_mode = WAL")
    for number, statements in enumerate(MIGRATIONS[_version(connection) :], _version(connection) + 1):
        with _transaction(connection):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {EARLIER_STEPS + number}")


def _too_new(path: str, version: int) -> StateStoreError:
    return StateStoreError(
        f"the history {path} was written by a newer shunter (schema {version}, this one knows"
        f" {len(MIGRATIONS)})",
        hint="Upgrade shunter, or set SHUNTER_HOME to another directory.",
    )


def _is_full(directory: str) -> bool:
    try:
        facts = os.statvfs(directory)
    except OSError:
        return False
    return facts.f_bavail * facts.f_frsize < LEAST_ROOM


def _explain(attempt: str, path: str, error: sqlite3.DatabaseError) -> StateStoreError:
    text = str(error)
    directory = os.path.dirname(path)
    if "I/O" in text and _is_full(directory):  # SQLite needs more files than the database
        text = "the disk is full"
    if "full" in text:
        hint = f"Free space on the disk of {directory}, or set SHUNTER_HOME to a directory on another one."
    elif "readonly" in text or "read-only" in text or "unable to open" in text:
        hint = f"Make {directory} writable, or set SHUNTER_HOME to a directory that is."
    elif "not a database" in text or "malformed" in text or "no such" in text:
        hint = f"The file is damaged. Move it away (mv {path} {path}.damaged); a new one is created."
    elif "locked" in text or "busy" in text:
        hint = f"Another process has held it for {BUSY_SECONDS:.0f} s; `fuser {path}` shows which."
    else:
        hint = f"Check the disk and the permissions of {directory}, or set SHUNTER_HOME to another directory."
    return StateStoreError(f"cannot {attempt} in {path}: {text}", hint=hint)
