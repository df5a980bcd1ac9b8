"""`shunter skill`: the instructions for coding agents, where agents look for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shunter.cli.commands import skill
from tests.cli.conftest import Cli


@pytest.fixture
def home(cli: Cli, tmp_path: Path) -> Path:
    cli.environ["HOME"] = str(tmp_path / "user")
    return tmp_path / "user"


def test_agents_find_a_valid_skill(cli: Cli, home: Path) -> None:
    shown = cli("skill", "install").out
    for folder in (".claude", ".agents"):
        path = home / folder / "skills" / "shunter" / "SKILL.md"
        assert f"installed {path}\n" in shown
        head = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", path.read_text())
        assert head is not None
        assert head[1] == path.parent.name
        assert len(head[2]) <= 1024
        assert ": " not in head[2], "YAML would read a mapping"
        assert path.read_text().startswith(cli("skill", "show").out.rstrip())
    assert cli("skill", "install").out.count("up to date:") == 2


def test_an_older_version_is_replaced_and_a_changed_file_is_not(cli: Cli, tmp_path: Path) -> None:
    cli("skill", "install", "--project")
    path = cli.directory / ".claude/skills/shunter/SKILL.md"
    current = path.read_text()
    path.write_bytes(skill._marked("an older text"))
    assert "updated" in cli("skill", "install", "--project").out
    path.write_text("mine\n" + current)
    refused = cli("skill", "install", "--project", code=3)
    assert str(path.relative_to(cli.directory)) in refused.err
    assert path.read_text() == "mine\n" + current
    cli("skill", "install", "--project", "--force")
    assert path.read_text() == current


def test_places_that_contradict_are_refused(cli: Cli, tmp_path: Path) -> None:
    cli("skill", "install", "--to", str(tmp_path), "--project", code=2)
    cli("skill", "install", "--to", str(tmp_path / "skills"))
    assert (tmp_path / "skills" / "shunter" / "SKILL.md").exists()
