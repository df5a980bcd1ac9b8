"""TensorBoard's event files and Trackio's databases, as the real libraries wrote them."""

from __future__ import annotations

import math
import shutil
import sqlite3
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.metrics.event_files import DamagedFile, _scalars, read_scalars
from shunter.metrics.result_files import ResultFiles
from shunter.metrics.series import MetricTable

RECORDED = Path(__file__).parent / "recorded"
REPLICAS = [("trainer", 0), ("trainer", 1)]


def scalars_of(path):
    return [scalar for _, scalars in read_scalars(str(path), 0) for scalar in scalars]


def test_scalars_of_torch():
    found = scalars_of(RECORDED / "torch.tfevents.recorded")
    losses = [scalar for scalar in found if scalar.tag == "loss/train"]
    assert [scalar.step for scalar in losses] == list(range(0, 50, 5))
    assert losses[2].value == pytest.approx(math.exp(-0.5))
    assert losses[2].time == 1700000010
    others = {scalar.tag: (scalar.step, scalar.value) for scalar in found if scalar.tag != "loss/train"}
    assert others == {"acc": (10, 0.5), "acc_new": (10, 0.25)}


def test_scalars_of_tensorboardx():
    found = scalars_of(RECORDED / "tensorboardX.tfevents.recorded")
    assert [(scalar.tag, scalar.step, round(scalar.value, 3)) for scalar in found] == [
        ("loss", step, round(1 / (step + 1), 3)) for step in range(5)
    ]


def values_of(files, table):
    files.add_to(table)
    return {series.name: (list(series.steps), list(series.values)) for series in table}


def test_a_csv_file_grows_and_gets_columns(tmp_path):
    """As Lightning's CSVLogger writes it: a row for each call, with empty cells."""
    folder = tmp_path / "lightning_logs" / "version_0"
    folder.mkdir(parents=True)
    path = folder / "metrics.csv"
    files, table = ResultFiles(str(tmp_path), REPLICAS), MetricTable()
    path.write_text("epoch,step,train_loss\n0,4,0.5\n0,9,0.")
    assert values_of(files, table) == {"epoch": ([4], [0]), "train_loss": ([4], [0.5])}
    assert not files.add_to(table)
    path.write_text("epoch,step,train_loss,val_loss\n0,4,0.5,\n0,9,0.25,\n0,9,,nan\nx,14,text\n")
    found = values_of(files, table)
    assert found["train_loss"] == ([4, 9], [0.5, 0.25])
    assert found["epoch"] == ([4, 9, 9], [0, 0, 0])
    assert math.isnan(found["val_loss"][1][0])
    assert not files.problems


def test_csv_files_that_are_data_are_left_alone(tmp_path):
    for name, text in (
        ("predictions.csv", "step,loss\n1,2\n"),
        ("results.csv", "label,score\n1,2\n"),
        ("log.csv", ""),
        ("history.csv", '\0"step\n'),
    ):
        (tmp_path / name).write_text(text)
    files, table = ResultFiles(str(tmp_path), REPLICAS), MetricTable()
    assert not files.add_to(table)


def test_directories_that_libraries_name_by_themselves_are_not_part_of_a_name(tmp_path):
    folder = tmp_path / "runs" / "Nov29_01-02-03_host.example"
    folder.mkdir(parents=True)
    shutil.copy(RECORDED / "tensorboardX.tfevents.recorded", folder / "events.out.tfevents.1")
    assert list(values_of(ResultFiles(str(tmp_path), REPLICAS), MetricTable())) == ["loss"]


def test_a_record_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    whole = (RECORDED / "tensorboardX.tfevents.recorded").read_bytes()
    path = tmp_path / "events"
    found, offset = [], 0
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        for after, scalars in read_scalars(str(path), offset):
            offset = after
            found += scalars
    assert [scalar.step for scalar in found] == [0, 1, 2, 3, 4]
    assert offset == len(whole)


def test_a_damaged_file_is_read_up_to_the_damage(tmp_path):
    data = bytearray((RECORDED / "tensorboardX.tfevents.recorded").read_bytes())
    folder = tmp_path / "output" / "tensorboard"
    folder.mkdir(parents=True)
    data[-10] ^= 1
    (folder / "a.tfevents.1").write_bytes(data)
    files, table = ResultFiles(str(tmp_path), REPLICAS), MetricTable()
    files.add_to(table)
    files.add_to(table)
    [series] = table
    assert (series.name, series.count) == ("loss", 4)
    [problem] = files.problems
    assert "a.tfevents.1 is damaged" in problem


@given(st.binary(max_size=100))
def test_any_bytes_end_in_scalars_or_a_known_error(data):
    try:
        _scalars(data)
    except (IndexError, struct.error, UnicodeDecodeError):
        pass


@given(st.binary(max_size=60))
def test_any_file_is_refused_or_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "events"
    path.write_bytes(data)
    try:
        list(read_scalars(str(path), 0))
    except DamagedFile:
        pass


def test_the_folder_names_the_replica_and_the_run(tmp_path):
    for name, source in {
        "trainer-0/output/tensorboard": "torch",
        "trainer-1/output/tensorboard/pair_a": "pair_a",
    }.items():
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(
            RECORDED / f"{source}.tfevents.recorded", tmp_path / name / "events.out.tfevents.1.vm.2.0"
        )
    (tmp_path / "trainer-0" / "model").write_bytes(b"x")
    files, table = ResultFiles(str(tmp_path), REPLICAS), MetricTable()
    assert files.add_to(table)
    assert not files.add_to(table)
    assert sorted((each.name, each.place, each.count) for each in table) == [
        ("acc", "trainer/0", 1),
        ("acc_new", "trainer/0", 1),
        ("loss/train", "trainer/0", 10),
        ("pair_a/pair", "trainer/1", 1),
    ]


def test_a_database_of_trackio_is_read_as_it_grows(tmp_path):
    with sqlite3.connect(tmp_path / "demo.db") as database:
        database.executescript((RECORDED / "trackio.sql").read_text())
        with sqlite3.connect(tmp_path / "other.db") as other:
            other.execute("CREATE TABLE metrics (id INTEGER)")
        other.close()
        files, table = ResultFiles(str(tmp_path), REPLICAS), MetricTable()
        assert files.add_to(table)
        series = {each.name: each for each in table}
        assert series.keys() == {"loss", "acc"}
        assert list(series["loss"].steps) == [0, 1, 2, 3, 4, 50]
        assert not math.isnan(series["loss"].last_time)
        database.execute(
            "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics)"
            " VALUES ('r', '2026-11-22T23:10:00Z', 'run-a', 51, '{\"loss\": 0.05}')"
        )
        database.commit()
        assert files.add_to(table)
    database.close()
    assert (series["loss"].last, series["loss"].last_step) == (0.05, 51)
    assert files.problems == []


def database(path, row, declaration="TABLE metrics (id, timestamp TEXT, run_name TEXT, step, metrics TEXT)"):
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE {declaration}")
        if row:
            connection.execute("INSERT INTO metrics VALUES (?, '2026-03-01T12:00:00', 'run', 1, ?)", row)
    connection.close()


@pytest.mark.parametrize(
    "row",
    [
        (1, '{"loss": 1%s}' % ("0" * 400)),
        (1, "[" * 100_000),
        (1, '{"loss": 1}' + " " * 2_000_000),
        ("id", '{"loss": 1}'),
        (b"id", '{"loss": 1}'),
    ],
    ids=["greater than any float", "nested deeply", "very long", "id is a text", "id is bytes"],
)
def test_what_a_job_put_into_a_database_cannot_stop_the_reading(tmp_path, row):
    database(tmp_path / "a.db", row)
    database(tmp_path / "b.db", (1, '{"loss": 2.5}'))
    files, table = ResultFiles(str(tmp_path), []), MetricTable()
    assert files.add_to(table)
    (series,) = table.by_name()["loss"]
    assert series.last == 2.5
    assert len(files.problems) == 1
    assert "a.db cannot be read" in files.problems[0] or "a.db is left out" in files.problems[0]


def test_a_view_that_computes_for_ever_is_not_read(tmp_path):
    endless = (
        "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT 1 - id FROM n)"
        " SELECT id, '' AS timestamp, '' AS run_name, 1 AS step, '{}' AS metrics FROM n WHERE id > 5"
    )
    database(tmp_path / "a.db", None, f"VIEW metrics AS {endless}")
    assert not ResultFiles(str(tmp_path), []).add_to(MetricTable())


def test_links_to_files_elsewhere_are_not_followed(tmp_path):
    database(tmp_path / "elsewhere.db", (1, '{"loss": 1}'))
    results = tmp_path / "results"
    results.mkdir()
    (results / "link.db").symlink_to(tmp_path / "elsewhere.db")
    assert not ResultFiles(str(results), []).add_to(MetricTable())
    database(results / "own.bin", (1, '{"loss": 1}'))
    (results / "latest.db").symlink_to("own.bin")
    assert ResultFiles(str(results), []).add_to(MetricTable())


def test_a_row_that_cannot_be_read_hides_no_other(tmp_path):
    rows = [
        ("2020-01-01", "r", 1, '{"loss": "\u0001'),
        ("2020-01-01", "r", None, '{"loss": 2}'),
        (None, b"\xff", 2, b"\xff"),
        ("2020-01-01", "r", "x", '{"loss": 3}'),
        ("2020-01-01", "r", 3, "[" * 100_000),
        ("2020-01-01", "r", 4, '{"loss": 0.5}'),
    ]
    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step, metrics TEXT)"
        )
        database.executemany(
            "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)", rows
        )
    table = MetricTable(None)
    files = ResultFiles(str(tmp_path), [("r", 0)])
    assert files.add_to(table)
    assert [series.last for series in table.by_name()["loss"]] == [0.5]
    assert [problem.partition(" of ")[0] for problem in files.problems] == ["row 1"]
    assert not files.add_to(table)
