"""The history's schema, as migration steps. A released step is never changed."""

from __future__ import annotations

import sqlite3

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
