"""Finding lines in blocks of logs."""

from __future__ import annotations

import pytest

from shunter.schedulers import lines
from shunter.schedulers.lines import LineSearch

BLOCK = "step 1\r\nstep 2 é\rstep 3\nno \ufffd end".encode()


@pytest.mark.parametrize("text", ["step", "p 2", "3", "end", "é", "nothing", "", " ", "\ufffd"])
def test_a_literal_finds_what_the_same_expression_finds(text: str) -> None:
    assert LineSearch(text).select(BLOCK) == LineSearch(f"(?:{text})").select(BLOCK)


def test_a_block_without_a_literal_is_not_cut_into_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    search = LineSearch("batch 7 of user@host:")
    assert search.select(b"x\nbatch 7 of user@host: 1\n") == b"batch 7 of user@host: 1\n"
    monkeypatch.delattr(lines, "iter_lines")
    assert search.select(BLOCK) == b""
