"""The beginning of the failure report where the platform keeps it longer than files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shunter_toolkit.failure import REASON_LIMIT, Report, Writer
from shunter_toolkit.layout import Layout


@pytest.mark.parametrize("reason", ["loss is nan", "x" * 5000, "ü" * 5000])
def test_the_report_begins_in_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    message = tmp_path / "termination-log"
    monkeypatch.setenv("SHUNTER_TERMINATION_MESSAGE", str(message))
    Writer(Layout(str(tmp_path))).fail(Report("user", reason, 3), None)
    assert len(message.read_bytes()) <= REASON_LIMIT
    found = json.loads(message.read_text(encoding="utf-8"))
    assert found["message"][:100] == reason[:100]


def test_without_such_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHUNTER_TERMINATION_MESSAGE", raising=False)
    Writer(Layout(str(tmp_path))).fail(Report("user", "no", 3), None)
    assert [path.name for path in tmp_path.iterdir()] == ["output"]
