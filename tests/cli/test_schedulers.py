"""`shunter schedulers`: the matrix as the schedulers' code has it."""

from __future__ import annotations

from shunter.schedulers.capabilities import COLUMNS
from shunter.schedulers.registry import DEFAULT_SCHEDULER_MODULES
from tests.cli.conftest import Cli


def test_json_has_every_scheduler_and_capability(cli: Cli) -> None:
    found = cli("schedulers", "--json").json
    assert list(found)[: len(DEFAULT_SCHEDULER_MODULES)] == list(DEFAULT_SCHEDULER_MODULES)
    assert all(list(row) == list(COLUMNS) for row in found.values())
    assert found["local_cwd"]["exec"] is True
    assert found["local_cwd"]["mounts"] is False
    assert found["local_docker"]["mounts"] == "bind, volume, device"
    assert found["local_docker"]["chain"] is False


def test_the_table_has_a_line_for_each_capability(cli: Cli) -> None:
    lines = cli("schedulers", "local_cwd", "local_docker").out.splitlines()
    assert lines[0].split() == ["local_cwd", "local_docker"]
    rows = dict(line.split(maxsplit=1) for line in lines[1 : 1 + len(COLUMNS)])
    assert rows["chain"].split() == ["yes", "-"]
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines[len(COLUMNS) + 1 :]).split())
    assert all(f"{column} {meaning}" in text for column, meaning in COLUMNS.items())


def test_a_scheduler_of_a_plugin_that_declares_nothing(cli: Cli) -> None:
    cli.plugins()
    found = cli("schedulers", "--json", "remote").json["remote"]
    assert found["exec"] is found["after"] is False
    assert "unknown" not in cli("schedulers").err


def test_an_unknown_scheduler(cli: Cli) -> None:
    assert "local_cwd" in cli("schedulers", "local_cwdd", code=3).err


def test_what_a_scheduler_lacks_is_reported_before_submission(cli: Cli) -> None:
    (cli.directory / "jobs.py").write_text(
        "from shunter.specs import AppDef, Role\n\n\n"
        "def job() -> AppDef:\n"
        "    return AppDef('j', [Role('r', '', entrypoint='true', num_replicas=2, min_replicas=1)])\n"
    )
    planned = cli("run", "--dryrun", "jobs.py:job")
    assert "role 'r': local_cwd ignores min_replicas=1" in planned.err
    assert "role 'r': local_cwd ignores min_replicas=1" in cli("run", "jobs.py:job").err
    refused = cli("run", "-cfg", "chain=3", "-s", "local_docker", "utils.echo", code=3)
    assert "local_docker has no option 'chain'" in refused.err
    assert "`shunter schedulers` shows which" in refused.err
