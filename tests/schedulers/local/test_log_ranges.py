"""Parts of a log, by their place in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.schedulers.responses import LogPart, LogRange, Stream
from shunter.schedulers.supervisor.log_index import Record
from shunter.schedulers.supervisor.log_ranges import (
    AttemptRanges,
    LogRanges,
    NoFile,
    NoIndex,
    read_part,
)
from shunter.schedulers.supervisor.log_reader import GrowingFile

LINES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 300)), max_size=60)


class Log:
    """A replica's log as its supervisor leaves it; the index may end before the files do."""

    def __init__(self, folder: Path, writes: list[tuple[int, int]], batch: int, unrecorded: int) -> None:
        self.folder = folder
        self.files = [b"", b""]
        index = b""
        unread = 0
        for number, (stream, length) in enumerate(writes):
            self.files[stream] += f"{number} {'x' * length}\n".encode()
            unread += 1
            if unread == batch and number < len(writes) - unrecorded:
                ends = (len(self.files[0]), len(self.files[1]))
                index += Record(number, ends).pack()
                unread = 0
        (folder / "stdout.log").write_bytes(self.files[0])
        (folder / "stderr.log").write_bytes(self.files[1])
        (folder / "index").write_bytes(index)

    def read(self, count: int, **wanted: object) -> LogPart:
        return read_part(str(self.folder), str(self.folder / "index"), LogRange(count, **wanted))  # type: ignore[arg-type]

    def lines(self, stream: Stream) -> list[bytes]:
        which = {Stream.STDOUT: (0,), Stream.STDERR: (1,), Stream.COMBINED: (0, 1)}[stream]
        return sorted(line for i in which for line in self.files[i].splitlines(keepends=True))


@settings(max_examples=40)
@given(
    writes=LINES,
    batch=st.integers(1, 9),
    unrecorded=st.integers(0, 20),
    count=st.integers(20, 2000),
    stream=st.sampled_from(Stream),
)
def test_parts_that_touch_are_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[tuple[int, int]],
    batch: int,
    unrecorded: int,
    count: int,
    stream: Stream,
) -> None:
    log = Log(tmp_path_factory.mktemp("log"), writes, batch, unrecorded)
    # forwards, from the beginning
    data, part = b"", log.read(count, at=0, streams=stream)
    while part.data:
        data += part.data
        part = log.read(count, start=part.end, streams=stream)
    assert sorted(data.splitlines(keepends=True)) == log.lines(stream)
    # backwards, from the end
    data, part = b"", log.read(count, streams=stream)
    while True:
        data = part.data + data
        if not part.before:
            break
        earlier = log.read(count, end=part.start, streams=stream)
        assert earlier.before < part.before
        part = earlier
    assert sorted(data.splitlines(keepends=True)) == log.lines(stream)


def test_the_order_is_that_of_the_index(tmp_path: Path) -> None:
    writes = [(number % 3 == 0, 20) for number in range(400)]
    log = Log(tmp_path, [(int(stream), length) for stream, length in writes], 1, 0)
    part = log.read(2000, at=4000)
    numbers = [int(line.split()[0]) for line in part.data.splitlines()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert 100 < numbers[0] < 220
    assert part.size == sum(map(len, log.files))


def test_a_line_without_an_end_waits_for_it(tmp_path: Path) -> None:
    log = Log(tmp_path, [(0, 3)], 1, 0)
    with open(tmp_path / "stdout.log", "ab") as file:
        file.write(b"half")
    part = log.read(100)
    assert part.data == b"0 xxx\n"
    assert log.read(100, start=part.end).data == b""
    assert log.read(100, start=part.end, is_complete=True).data == b"half"
    assert log.read(100, is_complete=True).data == b"0 xxx\nhalf"
    with open(tmp_path / "stdout.log", "ab") as file:
        file.write(b" a line\n")
    assert log.read(100, start=part.end).data == b"half a line\n"


@pytest.mark.parametrize(
    "position", ["x", "1", "9.9.9", "-1.0.0", "999999.999999.999999", "0.0.7", "../../x"]
)
def test_a_position_from_elsewhere_gives_no_other_bytes(tmp_path: Path, position: str) -> None:
    log = Log(tmp_path, [(0, 10), (1, 10)] * 10, 3, 0)
    for part in (log.read(50, start=position), log.read(50, end=position)):
        assert set(part.data) <= set(b"0123456789 x\n")
        assert len(part.data) <= sum(map(len, log.files))


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    part = read_part(str(tmp_path / "none"), str(tmp_path / "index"), LogRange(100))
    assert (part.data, part.before, part.size) == (b"", 0, 0)


# ---- attempts that have files of their own


def attempts(folder: Path, *texts: bytes) -> AttemptRanges:
    logs = {}
    for number, text in enumerate(texts):
        (folder / f"{number}.out").write_bytes(text)
        logs[2 * number] = LogRanges((GrowingFile(str(folder / f"{number}.out")), NoFile()), NoIndex(), None)
    return AttemptRanges(logs)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    texts=st.lists(st.lists(st.integers(0, 200), max_size=20), min_size=1, max_size=5),
    count=st.integers(1, 999),
)
def test_parts_of_several_attempts_are_the_whole(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], count: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    written = [b"".join(b"x" * length + b"\n" for length in lengths)[:-1] for lengths in texts]  # torn off
    whole = b"".join(written)

    def read(**wanted: Any) -> LogPart:
        return attempts(folder, *written).read(LogRange(count, is_complete=True, **wanted))

    data, part = b"", read(at=0)
    while part.data:
        assert part.before == len(data)
        data += part.data
        part = read(start=part.end)
    assert data == whole
    data, part = b"", read()
    while True:
        data = part.data + data
        if not part.before:
            break
        part = read(end=part.start)
    assert data == whole


def test_an_attempt_is_found_by_its_number(tmp_path: Path) -> None:
    texts = (b"first\n", b"second\nhalf", b"third\n")
    for number, line in ((0, b"first\n"), (1, b"second\nhalf"), (2, b"second\nhalf"), (4, b"third\n")):
        found = attempts(tmp_path, *texts).read(LogRange(100, start=f"{number}:0.0.0"))
        assert found.data == line
    assert attempts(tmp_path, *texts).read(LogRange(100, at=8)).data == b"half"
    for position in ("x", "1", ":", "-1:0.0.0", "999999:0.0.0", "0:9.9.9", "../../x", "0:../x"):
        for wanted in (LogRange(50, start=position), LogRange(50, end=position)):
            assert attempts(tmp_path, *texts).read(wanted).data in b"first\nsecond\nhalfthird\n"
    assert AttemptRanges({}).read(LogRange(10)) == LogPart(b"", "", "", 0, 0)
