from __future__ import annotations

import io
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.cli.console import OutputClosed, OutputError
from shunter.cli.log_writers import CollapsingLogWriter, LogWriter, bytes_of, time_text
from shunter.schedulers.api import LogBlock

END = rb"\r\n|\n|\r"


def written(*blocks: tuple[str, int, bytes], prefixes: bool = True, colour: bool = False) -> bytes:
    stream = io.BytesIO()
    writer = LogWriter(stream, colour, prefixes)
    writer.write_all(LogBlock(*block) for block in blocks)
    writer.finish()
    return stream.getvalue()


def lines_of(data: bytes) -> list[bytes]:
    return [line for line in re.split(rb"(?<=\n)|(?<=\r)(?!\n)", data) if line]


content = st.lists(st.sampled_from([b"a", b"b c", b"r/0 ", b"\xff", b"\n", b"\r", b"\r\n", b""])).map(
    b"".join
)
whole = content.map(lambda data: data if data.endswith(b"\n") else data + b"\n")


@given(st.lists(st.tuples(st.sampled_from("rs"), st.integers(0, 1), whole)))
def test_every_line_gets_its_prefix(blocks: list[tuple[str, int, bytes]]) -> None:
    expected = b"".join(f"{role}/{k} ".encode() + line for role, k, data in blocks for line in lines_of(data))
    assert written(*blocks) == expected


@given(content, st.integers(0, 20))
def test_one_replicas_blocks_may_be_cut_anywhere(data: bytes, at: int) -> None:
    whole_text = written(("r", 0, data))
    assert written(("r", 0, data[:at]), ("r", 0, data[at:])) == whole_text


@given(st.lists(content))
def test_without_prefixes_one_replica_is_written_as_it_is(contents: list[bytes]) -> None:
    assert written(*[("r", 0, data) for data in contents], prefixes=False) == b"".join(contents)


def test_an_unfinished_line_is_ended_before_another_replicas_line() -> None:
    assert written(("a", 0, b"half"), ("b", 0, b"x\n")) == b"a/0 half\nb/0 x\n"
    assert written(("a", 0, b"10%\r"), ("b", 0, b"x\n"), ("a", 0, b"20%\r")) == b"a/0 10%\r\nb/0 x\na/0 20%\r"
    assert written(("a", 0, b"last words")) == b"a/0 last words\n"


def test_colours_differ_by_replica_and_names_cannot_draw() -> None:
    text = written(("a", 0, b"x\n"), ("a", 1, b"y\n"), ("e\x1b[2J", 0, b"z\n"), colour=True)
    assert b"\x1b[36ma/0\x1b[0m x\n\x1b[32ma/1\x1b[0m y\n" in text
    assert b"\x1b[2J" not in text


def collapsed(blocks, replicas, window=None):
    stream = io.BytesIO()
    writer = CollapsingLogWriter(stream, replicas, window)
    writer.write_all(LogBlock(*block) for block in blocks)
    writer.finish()
    return stream.getvalue().decode().splitlines()


FOUR = [("r", k) for k in range(4)]


def test_equal_lines_of_replicas_are_written_once():
    blocks = [("r", k, b"step 1\nstep 2\n") for k in range(4)]
    assert collapsed(blocks, FOUR) == ["r[0-3] step 1", "r[0-3] step 2"]


def test_lines_that_some_replicas_have_name_them():
    blocks = [("r", 0, b"a\nb\n"), ("r", 1, b"a\nc"), ("r", 3, b"a\n")]
    assert collapsed(blocks, FOUR) == ["r[0-1,3] a", "r/0 b", "r/1 c"]


def test_a_line_that_a_replica_repeats_is_written_as_often():
    blocks = [("r", 0, b".\n.\n"), ("r", 1, b".\n.\n.\n")]
    assert collapsed(blocks, FOUR[:2]) == ["r[0-1] .", "r[0-1] .", "r/1 ."]


def test_lines_cut_between_blocks_are_whole_and_roles_apart():
    blocks = [("r", 0, b"he"), ("s", 0, b"hello\n"), ("r", 0, b"llo\r\n")]
    assert collapsed(blocks, [("r", 0), ("s", 0)]) == ["s/0 hello", "r/0 hello"]


def test_what_is_held_back_is_bounded(monkeypatch):
    monkeypatch.setattr(CollapsingLogWriter, "MOST_HELD", 10)
    stream = io.BytesIO()
    writer = CollapsingLogWriter(stream, FOUR, None)
    writer.write_all([LogBlock("r", 0, b"".join(b"%d\n" % n for n in range(1000)))])
    assert stream.getvalue().count(b"\n") == 990
    writer.finish()
    assert stream.getvalue().count(b"\n") == 1000


def test_a_line_that_others_do_not_have_is_written_after_the_window():
    written = threading.Event()

    class Stream(io.BytesIO):
        def write(self, data):
            count = super().write(data)
            written.set()
            return count

    stream = Stream()
    writer = CollapsingLogWriter(stream, FOUR, 0.05)
    writer.write_all([LogBlock("r", 2, b"alone\n")])
    assert written.wait(30)
    assert stream.getvalue() == b"r/2 alone\n"
    writer.finish()


def test_a_stream_that_takes_text_only() -> None:
    stream = io.StringIO()
    writer = LogWriter(bytes_of(stream))
    text = "naïve\n".encode()
    writer.write_all([LogBlock("r", 0, text[:3]), LogBlock("r", 0, text[3:])])
    writer.finish()
    assert stream.getvalue() == "r/0 naïve\n"
    binary = io.BytesIO()
    assert bytes_of(io.TextIOWrapper(binary)) is binary


def test_times_are_shown_to_the_millisecond() -> None:
    assert time_text(1_700_000_000_123_999_999, utc=True) == "2023-11-14T22:13:20.123Z"
    assert time_text(1_700_000_000_000_000_000.0, utc=True) == "2023-11-14T22:13:20.000Z"
    assert time_text(0, utc=True) == "-"


class Failing(io.BytesIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, data: object) -> int:
        raise self.error


def test_a_reader_that_has_gone_and_a_full_disk() -> None:
    with pytest.raises(OutputClosed):
        LogWriter(Failing(BrokenPipeError())).write(LogBlock("r", 0, b"x\n"))
    with pytest.raises(OutputError, match="No space"):
        LogWriter(Failing(OSError(28, "No space left on device"))).write(LogBlock("r", 0, b"x\n"))
