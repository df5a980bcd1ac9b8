from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shunter.errors import StateStoreError
from shunter.paths import history_path
from shunter.runner import history as database
from shunter.runner.history import History
from shunter.runner.records import COLUMNS, JobRecord
from shunter.specs import AppState

ROOT = Path(__file__).parents[2]


def intent(history: History, name: str = "n", **columns: Any) -> str:
    values: dict[str, Any] = {
        "scheduler": "fake",
        "session": "s",
        "name": name,
        "cfg": {},
        "app": {},
        "cwd": "/",
        "argv": [],
        "user": "u",
        "host": "h",
        "submitter": "1:2:3",
    }
    return history.add_intent(JobRecord(**{**values, **columns}))


def add(history: History, app_id: str, **columns: Any) -> str:
    key = intent(history, **columns)
    history.submitted(key, f"fake://s/{app_id}", app_id)
    return key


# ---- reading and writing


def test_a_row_holds_what_was_written() -> None:
    history = History()
    key = intent(
        history,
        component="utils.echo",
        component_args={"msg": ["a", {"b": None}]},
        cfg={"x": 1.5},
        app={"name": "ünïcode"},
        argv=["shunter", "run"],
        workspace="/w",
        parent_run_id="p",
        rerun_of="fake://s/old",
    )
    row = history.get(key)
    assert row is not None
    assert (row.phase, row.state, row.handle, row.submitted_at) == ("intent", AppState.UNSUBMITTED, "", None)
    assert (row.component_args, row.cfg, row.app) == (
        {"msg": ["a", {"b": None}]},
        {"x": 1.5},
        {"name": "ünïcode"},
    )
    history.submitted(key, "fake://s/a", "a", git_commit="c0ffee", git_dirty=True)
    row = history.find("fake://s/a")
    assert row is not None
    assert (row.phase, row.state, row.git_commit, row.git_dirty) == (
        "submitted",
        AppState.SUBMITTED,
        "c0ffee",
        True,
    )
    data = json.loads(json.dumps(row.to_json()))
    assert set(data) == set(COLUMNS)
    assert data["state"] == "SUBMITTED"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cfg=st.dictionaries(st.text(), json_values), args=st.lists(st.text()), name=st.text())
def test_any_json_comes_back(home: Path, cfg: dict[str, Any], args: list[str], name: str) -> None:
    history = History()
    try:
        row = history.get(intent(history, name, cfg=cfg, component_args=args))
    finally:
        history.close()
    assert row is not None
    assert (row.cfg, row.component_args, row.name) == (cfg, args, name)


def test_rows_are_the_latest_first() -> None:
    history = History()
    for number in range(5):
        add(history, f"job{number}", scheduler="odd" if number % 2 else "even")
    assert [row.app_id for row in history.rows()] == ["job4", "job3", "job2", "job1", "job0"]
    assert [row.app_id for row in history.rows(limit=2)] == ["job4", "job3"]
    assert [row.app_id for row in history.rows(scheduler="odd")] == ["job3", "job1"]
    latest = history.latest()
    assert latest is not None
    assert latest.app_id == "job4"
    history.mark_deleted("fake://s/job4")
    assert len(history.rows()) == 4
    latest = history.latest()
    assert latest is not None
    assert latest.app_id == "job3"


def test_a_refusal_does_not_undo_a_submission() -> None:
    history = History()
    key = add(history, "a")
    history.refused(key, "late")
    row = history.get(key)
    assert row is not None
    assert (row.phase, row.msg) == ("submitted", "")


def test_a_state_of_a_later_version_reads_as_unknown() -> None:
    history = History()
    history.amend(add(history, "a"), state="LEVITATING")
    assert history.rows()[0].state is AppState.UNKNOWN


def test_threads_share_a_history() -> None:
    history = History()
    threads = [threading.Thread(target=add, args=(history, f"t{number}")) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {row.app_id for row in history.rows()} == {f"t{number}" for number in range(20)}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # pytest-xdist has threads
def test_a_forked_child_opens_its_own_connection() -> None:
    history = History()
    add(history, "parent")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            add(history, "child")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    add(history, "parent-again")
    assert [row.app_id for row in history.rows()] == ["parent-again", "child", "parent"]


def test_the_database_is_private(home: Path) -> None:
    old = os.umask(0)
    try:
        add(History(), "a")
    finally:
        os.umask(old)
    assert os.stat(history_path()).st_mode & 0o077 == 0
    assert os.stat(home / "state").st_mode & 0o077 == 0


# ---- without write access


def test_reading_nothing_makes_nothing(home: Path) -> None:
    history = History()
    assert history.rows() == history.intents() == history.handles("x") == []
    assert history.latest() is history.find("fake://s/x") is None
    assert not home.exists()


def test_an_empty_file_is_a_history_without_rows(home: Path) -> None:
    Path(history_path()).parent.mkdir(parents=True)
    Path(history_path()).touch()
    assert History().rows() == []
    add(History(), "a")
    assert len(History().rows()) == 1


READER = """
import os, sys
import shutil, tempfile
import shunter.runner.records, json  # others may not read there
from shunter.runner.history import History
from shunter.errors import StateStoreError
os.setgid(65534); os.setuid(65534)
history = History(sys.argv[1])
print(sorted(row.app_id for row in history.rows()))
try:
    history.mark_deleted("fake://s/a")
except StateStoreError as error:
    print(error.hint)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can become a user who may not write")
@pytest.mark.parametrize("open_elsewhere", [False, True], ids=["closed", "in use"])
def test_a_read_only_directory_can_be_read(open_elsewhere: bool) -> None:
    # not below tmp_path, which other users cannot enter
    directory = Path(tempfile.mkdtemp(prefix="shunter-test-"))
    try:
        path = directory / "history.db"
        writer = History(str(path))
        add(writer, "a")
        add(writer, "b")
        if open_elsewhere:
            # what a killed writer leaves: rows in the log, no shared memory file
            wal = Path(f"{path}-wal").read_bytes()
            main = path.read_bytes()
            writer.close()
            path.write_bytes(main)
            Path(f"{path}-wal").write_bytes(wal)
        writer.close()
        for file in directory.iterdir():
            file.chmod(0o444)
        directory.chmod(0o555)
        result = subprocess.run(
            [sys.executable, "-c", READER, str(path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.stdout.splitlines()[0] == "['a', 'b']", result.stderr
        assert "SHUNTER_HOME" in result.stdout.splitlines()[1]
    finally:
        directory.chmod(0o755)
        shutil.rmtree(directory)


# ---- what can be wrong with it


def test_a_damaged_file_is_explained() -> None:
    history = History()
    add(history, "a")
    history.close()  # left to the garbage collector, it would write its log into the file whenever that comes
    path = Path(history_path())
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(b"this is not a database" * 100)
    for call in (History().rows, lambda: intent(History())):
        with pytest.raises(StateStoreError, match="not a database") as caught:
            call()
        assert f"mv {path} {path}.damaged" in caught.value.hint


def test_a_full_disk_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    add(History(), "a")
    connect = database._connect

    def small(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = connect(*args, **kwargs)
        connection.execute("PRAGMA max_page_count = 1")  # SQLite then says what it says on a full disk
        return connection

    monkeypatch.setattr(database, "_connect", small)
    history = History()
    with pytest.raises(StateStoreError, match="full") as caught:
        intent(history, app={"text": "x" * 100_000})
    assert "Free space" in caught.value.hint
    history.close()
    monkeypatch.undo()


def test_a_full_disk_loses_nothing_that_was_written(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    history = History()
    add(history, "a")
    writer = history._writer
    assert writer is not None
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StateStoreError, match="full"):
        intent(history, app={"text": "x" * 100_000})
    writer.execute("PRAGMA max_page_count = 100000")
    add(history, "b")
    assert [row.app_id for row in history.rows()] == ["b", "a"]


def test_a_directory_in_the_way_is_explained() -> None:
    Path(history_path()).mkdir(parents=True)
    for call in (History().rows, lambda: intent(History())):
        with pytest.raises(StateStoreError) as caught:
            call()
        assert "SHUNTER_HOME" in caught.value.hint


def test_a_locked_database_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    add(History(), "a")
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.0)
    other = sqlite3.connect(history_path(), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StateStoreError, match="locked"):
            intent(History())
        assert len(History().rows()) == 1  # readers never wait for writers
    finally:
        other.close()


def test_a_newer_schema_is_refused() -> None:
    history = History()
    add(history, "a")
    assert history._writer is not None
    history._writer.execute(f"PRAGMA user_version = {database.EARLIER_STEPS + 99}")
    history.close()
    for call in (History().rows, lambda: intent(History())):
        with pytest.raises(StateStoreError, match=r"newer shunter \(schema 99") as caught:
            call()
        assert "Upgrade" in caught.value.hint


def test_a_newer_schema_is_not_called_damaged_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History()
    add(history, "a")
    assert history._writer is not None
    history._writer.execute(f"PRAGMA user_version = {database.EARLIER_STEPS + 99}")
    history.close()
    monkeypatch.setattr(database, "_connect_read_only", database._copy_in_memory)
    with pytest.raises(StateStoreError, match="newer shunter"):
        History().rows()


# ---- migrations


@pytest.fixture
def one_more_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [*database.MIGRATIONS, ["CREATE TABLE extra (x)", "INSERT INTO extra VALUES (7)"]]
    monkeypatch.setattr(database, "MIGRATIONS", steps)


@pytest.mark.parametrize("reader_first", [False, True])
def test_an_older_schema_is_brought_up(reader_first: bool, request: pytest.FixtureRequest) -> None:
    old = History()
    add(old, "a")
    old.close()
    request.getfixturevalue("one_more_step")
    history = History()
    if not reader_first:
        add(history, "b")
    assert [row.app_id for row in history.rows()][-1] == "a"
    connection = sqlite3.connect(history_path())
    assert connection.execute("SELECT x FROM extra").fetchall() == [(7,)]
    connection.close()


def test_a_step_that_fails_leaves_the_database_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    old = History()
    add(old, "a")
    old.close()
    with monkeypatch.context() as patch:
        steps = [*database.MIGRATIONS, ["CREATE TABLE extra (x)", "INSERT INTO nowhere VALUES (7)"]]
        patch.setattr(database, "MIGRATIONS", steps)
        with pytest.raises(StateStoreError):
            History().rows()
    assert [row.app_id for row in History().rows()] == ["a"]


def test_the_first_step_is_what_was_released() -> None:
    """A released step never changes: databases that it made exist. Add a step instead."""
    import hashlib

    digest = hashlib.sha256("\n".join(database.MIGRATIONS[0]).encode()).hexdigest()
    assert digest[:16] == "8e6ebf3c6c836d17"
