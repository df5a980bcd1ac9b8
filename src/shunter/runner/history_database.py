"""The history's SQLite database: its schema, as migration steps, and opening it with readable errors.

A released step is never changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from urllib.parse import quote

from shunter.errors import StateStoreError
from shunter.paths import has_content, make_private_dir, state_error

# Step N brings the database to `user_version` N. Each is a list of single statements: `executescript`
# would commit the transaction that makes a step all or nothing.
MIGRATIONS: list[list[str]] = [
    [
        """
        CREATE TABLE jobs (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            key TEXT NOT NULL UNIQUE,
            phase TEXT NOT NULL,            -- intent, submitted, refused or deleted
            handle TEXT NOT NULL,           -- '' until the scheduler has given an id
            scheduler TEXT NOT NULL,
            session TEXT NOT NULL,
            app_id TEXT NOT NULL,
            name TEXT NOT NULL,
            component TEXT,
            component_args TEXT,            -- JSON
            cfg TEXT NOT NULL,              -- JSON, resolved
            app TEXT NOT NULL,              -- JSON, before the runner's variables are added
            workspace TEXT,
            cwd TEXT NOT NULL,
            argv TEXT NOT NULL,             -- JSON
            git_commit TEXT,
            git_dirty INTEGER,
            user TEXT NOT NULL,
            host TEXT NOT NULL,
            created_at REAL NOT NULL,       -- times in seconds since the epoch
            submitted_at REAL,
            ended_at REAL,
            state TEXT NOT NULL,            -- the last one that was seen
            msg TEXT NOT NULL,
            submitter TEXT NOT NULL,        -- pid:start:boot
            rerun_of TEXT,
            parent_run_id TEXT
        )
        """,
        "CREATE INDEX jobs_handle ON jobs (handle)",
        "CREATE INDEX jobs_app_id ON jobs (app_id)",
        "CREATE INDEX jobs_intents ON jobs (phase) WHERE phase = 'intent'",
    ],
    [
        "ALTER TABLE jobs ADD COLUMN fingerprint TEXT",
        "ALTER TABLE jobs ADD COLUMN images TEXT",  # JSON
        "ALTER TABLE jobs ADD COLUMN native_id TEXT",
        "CREATE INDEX jobs_fingerprint ON jobs (fingerprint) WHERE fingerprint IS NOT NULL",
    ],
    [  # so that no command reads rows that it does not show
        "DROP INDEX jobs_handle",
        "DROP INDEX jobs_app_id",
        "CREATE INDEX jobs_handle ON jobs (handle, phase, scheduler)",
        "CREATE INDEX jobs_app_id ON jobs (app_id, phase, scheduler, handle)",
        "CREATE INDEX jobs_name ON jobs (name) WHERE phase = 'submitted'",
        """
        CREATE INDEX jobs_list ON jobs
        (seq, phase, state, scheduler, name, app_id, submitted_at, created_at)
        """,
        """
        CREATE INDEX jobs_unsettled ON jobs (seq)
        WHERE phase = 'submitted' AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'UNKNOWN')
        """,
    ],
    ["ALTER TABLE jobs ADD COLUMN metrics TEXT"],  # JSON
    [
        "ALTER TABLE jobs ADD COLUMN sweep TEXT",
        "ALTER TABLE jobs ADD COLUMN point INTEGER",
        "CREATE INDEX jobs_sweep ON jobs (sweep) WHERE sweep IS NOT NULL",
        "DROP INDEX jobs_list",
        """
        CREATE INDEX jobs_list ON jobs
        (seq, phase, state, scheduler, name, app_id, submitted_at, created_at, sweep)
        """,
    ],
    ["ALTER TABLE jobs ADD COLUMN started_at REAL"],
    ["ALTER TABLE jobs ADD COLUMN python TEXT"],
]

# Long enough for hundreds of processes that submit at the same time, each of which holds the lock for a
# few milliseconds.
BUSY_SECONDS = 60.0
#: What the files beside the database may take, in bytes.
LEAST_ROOM = 1 << 20


def open_for_writing(path: str) -> sqlite3.Connection:
    """Open the database, creating it or upgrading its schema if necessary.

    Raises:
        StateStoreError: it cannot be opened; the message says why and what to do.
    """
    make_private_dir(os.path.dirname(path))
    with explained("write the history", path):
        connection = _connect(path)
        try:
            if version(connection) != len(MIGRATIONS):
                with _exclusively(path):
                    _set_up(connection, path)
            connection.execute("PRAGMA synchronous = NORMAL")
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
            number = version(connection)
        except BaseException:
            connection.close()
            raise
        if number == len(MIGRATIONS):
            return connection
        connection.close()
        if not 0 <= number < len(MIGRATIONS):
            raise _too_new(path, number)
        # its schema is an older one, or the process that creates it has not finished
        return open_for_writing(path) if number else None


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
    location = f"file:{quote(os.fsencode(path))}"
    connection = _connect(f"{location}?mode=ro", uri=True)
    try:
        version(connection)
    except sqlite3.DatabaseError as error:
        connection.close()
        if not isinstance(error, sqlite3.OperationalError):
            raise
        # A WAL database needs a file for shared memory beside it, which a read-only directory refuses.
        if has_content(path + "-wal"):
            return _copy_in_memory(path)
        connection = _connect(f"{location}?mode=ro&immutable=1", uri=True)
    return connection


def _copy_in_memory(path: str) -> sqlite3.Connection:
    """Read a database whose newest rows are still in its write-ahead log, through a copy of both."""
    with tempfile.TemporaryDirectory(prefix="shunter-history-") as directory:
        copy = os.path.join(directory, "history.db")
        for suffix in ("", "-wal"):
            shutil.copyfile(path + suffix, copy + suffix)
        source, target = _connect(copy), _connect(":memory:")
        try:
            source.backup(target)
        except BaseException:
            target.close()
            raise
        finally:
            source.close()
    return target


def _set_up(connection: sqlite3.Connection, path: str) -> None:
    if version(connection) > len(MIGRATIONS):
        raise _too_new(path, version(connection))
    os.chmod(path, 0o600)
    # Where the file system cannot do WAL (some network ones), SQLite stays with its rollback journal.
    connection.execute("PRAGMA journal_mode = WAL")
    migrate(connection)


@contextlib.contextmanager
def _exclusively(path: str) -> Iterator[None]:
    """Hold a lock that the kernel drops when its holder dies; SQLite's own does not cover `journal_mode`."""
    with open(path + ".lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _too_new(path: str, number: int) -> StateStoreError:
    return StateStoreError(
        f"the history {path} was written by a newer shunter (schema {number}, this one knows"
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


# ---- the schema


def version(connection: sqlite3.Connection) -> int:
    """Return how many steps a database has been through."""
    number: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return number


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the missing steps. Safe if several processes do it at once, or one is killed."""
    while version(connection) < len(MIGRATIONS):
        connection.execute("BEGIN IMMEDIATE")
        try:
            done = version(connection)  # another process may have been faster
            if done < len(MIGRATIONS):
                for statement in MIGRATIONS[done]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {done + 1}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
