"""`cancel`, `delete` and `list` with several jobs and patterns."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli

COMPONENT = """
from shunter.specs import AppDef, Role


def job(name: str, script: str) -> AppDef:
    return AppDef(name, [Role("r", "", entrypoint="sh", args=["-c", script])])
"""


def start(cli: Cli, name: str, script: str = "exec sleep 300") -> str:
    (cli.directory / "jobs.py").write_text(COMPONENT)
    return cli("run", "--detach", "jobs.py:job", "--name", name, "--script", script).out.strip()


def states(cli: Cli, *words: str) -> dict[str, str]:
    return {row["handle"]: row["state"] for row in cli("list", "--json", *words).json}


def test_a_pattern_cancels_what_runs_and_no_other_job(cli: Cli) -> None:
    first, second, other = start(cli, "exp-a"), start(cli, "exp-b"), start(cli, "base")
    ended = start(cli, "exp-c", "true")
    cli("wait", ended)
    done = cli("cancel", "--wait", "exp-*")
    assert {f"asked {handle} to stop" for handle in (first, second)} <= set(done.err.splitlines())
    assert "1 of the jobs that match have ended already" in done.err
    assert states(cli) == {first: "CANCELLED", second: "CANCELLED", other: "RUNNING", ended: "SUCCEEDED"}
    assert "no job in the history" in cli("cancel", "nothing-*", code=5).err


@pytest.mark.slow
def test_results_and_exit_codes_are_per_job(cli: Cli) -> None:
    running, ended = start(cli, "a"), start(cli, "b", "true")
    cli("wait", ended)
    done = cli("cancel", "local_cwd://shunter/gone-bcdfghjkmn", running, ended, code=5)
    assert f"asked {running} to stop" in done.err
    assert f"{ended} has already ended: SUCCEEDED" in done.err
    assert "gone-bcdfghjkmn" in done.err
    cli("wait", running, code=1)


def test_a_pattern_deletes_only_with_yes_and_only_what_has_ended(cli: Cli) -> None:
    ended = [start(cli, f"exp-{name}", "true") for name in "ab"]
    for handle in ended:
        cli("wait", handle)
    running = start(cli, "exp-r")
    shown = cli("delete", "exp-*")
    assert {line.split()[0] for line in shown.out.splitlines()} == set(ended)
    assert "nothing is deleted by a pattern without --yes" in shown.err
    assert "1 of the jobs that match have not ended" in shown.err
    assert len(states(cli)) == 3
    done = cli("delete", "--yes", "local_cwd://*/exp-*")
    assert {f"deleted {handle}" for handle in ended} <= set(done.err.splitlines())
    assert states(cli) == {running: "RUNNING"}
    assert "cannot be deleted" in cli("delete", "--yes", running, code=3).err


def test_a_job_that_is_named_twice_is_one(cli: Cli) -> None:
    handle = start(cli, "once")
    done = cli("cancel", "--wait", handle, "once*", handle.rpartition("/")[2])
    assert done.err.count("asked") == 1


@pytest.mark.slow
def test_list_takes_names_ids_and_patterns(cli: Cli) -> None:
    first, second, other = (start(cli, name, "true") for name in ("exp-a", "exp-b", "base"))
    assert set(states(cli, "exp-*")) == {first, second}
    assert set(states(cli, "exp-a", other)) == {first, other}
    assert set(states(cli, "local_cwd://*/base-*")) == {other}
    assert set(states(cli, first.rpartition("/")[2][:8], "nothing")) == {first}
    assert set(states(cli, "exp-*", "--name", "xp-b")) == {second}
    assert set(states(cli, "exp")) == {first, second}  # the beginning of their ids
    assert cli("list", "nothing-*").err == "no such jobs\n"
    assert set(states(cli, "-s", "local_cwd", "exp-b*")) == {second}
    for handle in (first, second, other):
        cli("wait", handle)


def test_cancel_without_a_name_means_the_latest_job(cli):
    handle = cli("run", "--detach", "utils.sh", "--", "sleep", "60").out.strip()
    assert f"asked {handle} to stop" in cli("cancel", "--wait").err
