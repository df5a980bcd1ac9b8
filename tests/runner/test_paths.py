"""Where things are kept on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard import paths


@pytest.mark.parametrize(("value", "expected"), [("/x", "/x/trainyard"), ("x", ""), ("", ""), ("./x", "")])
def test_relative_xdg_directories_are_ignored(
    monkeypatch: pytest.MonkeyPatch, home: Path, value: str, expected: str
) -> None:
    monkeypatch.delenv("TRAINYARD_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", value)
    monkeypatch.setenv("XDG_CONFIG_HOME", value)
    user = Path("~").expanduser()
    assert paths.state_dir() == (expected or str(user / ".local/state/trainyard"))
    assert paths.config_dir() == (expected or str(user / ".config/trainyard"))
    assert paths.xdg("XDG_RUNTIME_DIR", {"XDG_RUNTIME_DIR": value}) == expected.removesuffix("/trainyard")
