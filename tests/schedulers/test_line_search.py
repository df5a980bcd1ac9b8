from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from shunter.schedulers.lines import LineSearch, TimedLine, blocks_of, iter_lines, last_lines
from shunter.schedulers.responses import LogBlock

HERE, ELSEWHERE = LineSearch("a+"), LineSearch("a+b*|ÿ+")


@given(st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r\n", b"\r", b"\xff", "ÿ".encode()])).map(b"".join))
def test_lines_are_those_that_a_search_of_each_finds(block: bytes) -> None:
    for search, regex in ((HERE, "a+"), (ELSEWHERE, "a+b*|ÿ+")):
        wanted = [
            line
            for line in iter_lines(block)
            if re.search(regex, line.decode("utf-8", "replace").rstrip("\r\n"))
        ]
        assert search.select(block) == b"".join(wanted)


def test_blocks_have_one_time() -> None:
    blocks = [LogBlock("r", 0, b"a\nb\n", 1), LogBlock("r", 0, b"c\n", 2), LogBlock("r", 0, b"d\n")]
    assert list(last_lines(blocks, 3, [("r", 0)])) == [LogBlock("r", 0, b"b\n", 1), *blocks[1:]]
    assert list(blocks_of(("r", 0), [TimedLine.at(1, b"a\n"), TimedLine.at(1, b"b\n"), b""])) == blocks[:1]
