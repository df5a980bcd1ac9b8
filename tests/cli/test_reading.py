"""components, runopts, config."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

FAULTY = """from shunter.specs import AppDef, Role


def good(msg: str = "x") -> AppDef:
    '''Fine.'''
    return AppDef("a", [Role("r", "i", entrypoint="echo")])


def bad(a, b) -> AppDef:
    '''Not fine.'''
    return AppDef("a")
"""


def test_components(cli: Cli) -> None:
    lines = cli("components").out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)
    assert any(line.startswith("utils.echo ") and line.split(None, 1)[1] for line in lines)
    rows = cli("components", "--json").json
    assert {"name": "utils.echo", "origin": "builtin", "error": ""}.items() <= next(
        row for row in rows if row["name"] == "utils.echo"
    ).items()
    assert cli("components", "utils.echo").out == cli("run", "utils.echo", "--help").out
    assert "--msg" in cli("components", "--json", "utils.echo").json["help"]
    assert "Did you mean" in cli("components", "utils.ech", code=3).err
    assert "unexpected argument" in cli("components", "utils.echo", "x", code=2).err


def test_lint_reports_every_problem_with_its_place(cli: Cli) -> None:
    (cli.directory / "c.py").write_text(FAULTY)
    result = cli("components", "lint", "c.py", code=3)
    assert result.out.count("c.py:9:") == 2
    assert result.err == "2 problems\n"
    assert cli("components", "lint", "c.py:good").err == "no problems\n"
    found = cli("components", "lint", "--json", "c.py:bad", code=3).json
    assert {row["line"] for row in found} == {9}
    assert "no file" in cli("components", "lint", "nothing.py", code=3).err
    assert "nothing to lint" in cli("components", "lint", code=2).err
    (cli.directory / "broken.py").write_text("def f(:\n")
    assert "broken.py:1:" in cli("components", "lint", "broken.py", code=3).out
    (cli.directory / "empty.py").write_text("x = 1\n")
    assert "has no component" in cli("components", "lint", "empty.py", code=3).err


def test_runopts(cli: Cli) -> None:
    cli.plugins()
    text = cli("runopts").out
    assert "local_cwd:\n" in text
    assert "remote:\n" in text
    data = cli("runopts", "--json", "remote").json
    assert data["remote"]["queue"]["required"] is True
    assert data["remote"]["login"]["secret"] is True
    assert "Did you mean remote?" in cli("runopts", "remot", code=3).err


def test_one_scheduler_that_cannot_be_loaded_does_not_hide_the_others(cli: Cli) -> None:
    cli.plugins()
    points = cli.directory / "site" / "remote-1.0.dist-info" / "entry_points.txt"
    points.write_text("[shunter.schedulers]\nlost = nowhere.at_all:create\n")
    result = cli("runopts")
    assert "local_cwd:\n" in result.out
    assert "warning: lost: " in result.err


@pytest.mark.slow
def test_config_shows_each_value_and_where_it_is_from(cli: Cli) -> None:
    cli.plugins()
    file = cli.directory / "shunter.toml"
    file.write_text(
        '[run]\nlog = true\n[scheduler.remote]\nqueue = "gpu"\nlogin = "hunter2"\n'
        '[component."utils.echo"]\nmsg = "hi"\n'
    )
    result = cli("config", "show", SHUNTER_LOCAL_CWD_TIMEOUT="9")
    assert 'queue = "gpu"' in result.out
    assert f"# {file}" in result.out
    assert "# SHUNTER_LOCAL_CWD_TIMEOUT" in result.out
    assert "hunter2" not in result.out
    data = cli("config", "show", "--json").json
    assert data["run"]["log"] == {"value": True, "origin": f"{file}"}
    assert data["component.utils.echo"]["msg"]["value"] == "hi"
    assert data["scheduler.local_cwd"]["prepend_cwd"]["origin"] == "default"
    assert list(cli("config", "show", "remote", "--json").json) == ["scheduler.remote"]
    assert "Did you mean" in cli("config", "show", "remot", code=2).err
    assert "'show', 'init'" in cli("config", "shwo", code=2).err
    file.write_text("[scheduler.remote]\nqeue = 1\n")
    assert f"{file}" in cli("config", "show", code=3).err
    file.write_text("[run\n")
    assert f"{file}" in cli("config", "show", code=3).err
    file.unlink()


def test_a_required_option_that_nobody_sets_is_named(cli: Cli) -> None:
    cli.plugins()
    assert "(required, not set)" in cli("config", "show", "remote").out


@pytest.mark.slow
def test_config_init_writes_a_file_that_sets_nothing(cli: Cli, home: Path) -> None:
    cli.plugins()
    before = cli("config", "show", "--json").json
    printed = cli("config", "init", "--print").out
    assert cli("config", "init").out == "shunter.toml\n"
    file = cli.directory / "shunter.toml"
    assert file.read_text() == printed
    assert cli("config", "show", "--json").json == before
    tables = tomllib.loads(printed.replace("\n# queue = ", "\nqueue = "))
    assert "queue" in tables["scheduler"]["remote"]
    assert "--force overwrites it" in cli("config", "init", code=3).err
    cli("config", "init", "--force")
    path = Path(cli("config", "init", "--user").out.strip())
    assert path == home / "config" / "config.toml"
    assert path.exists()
