"""`shunter rerun run.html`: what an exported file holds is a stranger's word."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shunter.runner.exported_run import read_exported, secrets_needed
from tests.cli.conftest import Cli

DATA = re.compile(r'(id="shunter-job">)([^<]*)(<)')


def changed(path: Path, **fields: object) -> str:
    """Change what a file says of its job; returns the name of the new file."""
    data = json.loads(DATA.search(path.read_text()).group(2))
    for name, value in fields.items():
        if isinstance(value, dict) and name == "role":
            data["app"]["roles"][0] |= value
        else:
            data[name] = value
    text = json.dumps(data).replace("<", "\\u003c")
    other = path.with_name("changed.html")
    other.write_text(DATA.sub(lambda match: match[1] + text + match[3], path.read_text()))
    return other.name


@pytest.fixture
def run_html(cli: Cli) -> Path:
    (cli.directory / "train.py").write_text("import os; print('ran with', os.environ.get('API_TOKEN'))\n")
    cli.environ["API_TOKEN"] = "not-for-the-file"
    cli("run", "--workspace", ".", "--env", "API_TOKEN=not-for-the-file", "./train.py")
    cli("export", "--to", "run.html")
    return cli.directory / "run.html"


def test_a_file_starts_its_job_again_once_the_user_agrees(cli: Cli, run_html: Path) -> None:
    assert "not-for-the-file" not in run_html.read_text()
    assert secrets_needed(read_exported(str(run_html))) == ["API_TOKEN"]
    asked = cli("rerun", "run.html", code=2)
    assert "no terminal to ask on" in asked.err
    assert "train.py" in asked.err
    assert "get from your environment API_TOKEN" in asked.err
    assert len(cli("list", "--json").json) == 1
    (cli.directory / "train.py").unlink()  # the code comes from the store
    repeated = cli("rerun", "--yes", "--log", "run.html")
    assert "ran with not-for-the-file" in repeated.err
    assert '"API_TOKEN"' in cli("rerun", "--dryrun", "run.html").out
    del cli.environ["API_TOKEN"]
    assert "API_TOKEN is not set" in cli("rerun", "--yes", "run.html", code=3).err


def test_code_that_is_not_here_has_to_be_named(cli: Cli, run_html: Path) -> None:
    other = changed(run_html, fingerprint="a" * 64)
    assert "--workspace DIR" in cli("rerun", "--yes", other, code=3).err
    assert "ran with" in cli("rerun", "--yes", "--workspace", ".", "--log", other).err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"fingerprint": "../../etc"}, "fingerprint"),
        ({"app": {"name": "x", "roles": [{"name": 3}]}}, "not a valid AppDef"),
        ({"app": []}, "damaged"),
        ({"cfg": "all"}, "damaged"),
        ({"scheduler": 7}, "damaged"),
        ({"scheduler": "nowhere"}, "there is no scheduler"),
        ({"cfg": {"no_option": 1}}, "no option"),
        ({"format": 99}, "needs another shunter"),
        ({"role": {"workspace": "/root/.ssh"}}, "names the workspace /root/.ssh"),
        ({"role": {"metadata": {"function_call": {"digest": "../../secret"}}}}, "calls a function"),
        ({"role": {"num_replicas": -1}}, "num_replicas"),
    ],
)
def test_hostile_files_start_nothing(cli: Cli, run_html: Path, fields: dict, words: str) -> None:
    refused = cli("rerun", "--yes", changed(run_html, **fields), code=3)
    assert words in refused.err
    assert len(cli("list", "--json").json) == 1


def test_what_is_no_such_file(cli: Cli) -> None:
    (cli.directory / "page.html").write_text("<html>")
    assert "holds no job" in cli("rerun", "page.html", code=3).err
    assert "cannot read" in cli("rerun", "none.html", code=3).err
    (cli.directory / "page.html").write_text('<script type="application/json" id="shunter-job">{"a"</script>')
    assert "damaged" in cli("rerun", "page.html", code=3).err
    assert "--failed" in cli("rerun", "--failed", "page.html", code=2).err
