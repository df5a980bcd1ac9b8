from __future__ import annotations

import io
import os
import pty

import pytest

from shunter.cli import console
from shunter.cli.console import TerminalProgress, format_bytes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_elsewhere_than_on_a_terminal(clock: list[float]) -> None:
    stream = io.StringIO()
    shown = TerminalProgress(stream)
    shown.step("hashing")
    for done in range(100):
        clock[0] += 0.1
        shown.advance("f", done, 100)
    shown.output("Step 1/2 : FROM x\x1b[31m\n")
    shown.done("pushed")
    shown.clear()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "hashing"
    assert lines[-2:] == ["Step 1/2 : FROM x\\x1b[31m", "pushed"]
    assert 1 <= len(lines[1:-2]) <= 2  # one every five seconds
    assert "\x1b" not in stream.getvalue()


def test_one_line_changes_on_a_terminal_and_goes_away(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "terminal_size", lambda: (80, 24))
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as stream:
        shown = TerminalProgress(stream)
        shown.step("uploading")
        shown.advance("a", 0, 1 << 20)  # what is over at once is not worth a line
        clock[0] += 1
        shown.advance("a", 1 << 19, 1 << 20)
        shown.advance("a", 1 << 20, 1 << 20)  # too soon after the last drawing
        clock[0] += 1
        shown.advance("b", 0, 1 << 20)
        shown.clear()
        text = ""
        while text.count("\r\x1b[K") < 3:  # a terminal may give what was written in parts
            text += os.read(master, 10_000).decode()
    os.close(master)
    drawn = [part for part in text.split("\r\x1b[K") if part]
    assert drawn == ["uploading 512.0 KiB of 1.0 MiB (50 %)", "uploading 1.0 MiB of 2.0 MiB (50 %)"]
    assert text.endswith("\r\x1b[K")


def test_a_stream_that_is_closed_does_not_matter() -> None:
    stream = io.StringIO()
    shown = TerminalProgress(stream)
    stream.close()
    shown.step("x")
    shown.done("y")
    TerminalProgress(None).done("z")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5120.0 GiB")],
)
def test_bytes_in_words(count: int, text: str) -> None:
    assert format_bytes(count) == text
