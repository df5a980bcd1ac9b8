from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.cli.console import OutputClosed, OutputError
from trainyard.cli.logwriter import LogWriter
from trainyard.schedulers.base import LogBlock

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
