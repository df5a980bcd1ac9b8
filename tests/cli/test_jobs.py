"""cancel, delete, describe, rerun, gc."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_cancel_takes_several_jobs_and_goes_on_after_a_mistake(cli: Cli) -> None:
    running = [cli.shell("exec sleep 300") for _ in range(2)]
    result = cli("cancel", "--wait", running[0], "nothing", running[1], code=5)
    assert f"asked {running[0]} to stop" in result.err
    assert "no job in the history" in result.err
    assert not result.out
    for handle in running:
        assert cli("status", handle, "--json").json["state"] == "CANCELLED"
    again = cli("cancel", running[0])
    assert again.err == f"{running[0]} has already ended: CANCELLED\n"


def test_a_pattern_that_the_shell_has_expanded_is_answered_once(cli: Cli) -> None:
    running = cli.shell("exec sleep 300")
    for name in ("train.py", "model.pkl"):
        (cli.directory / name).touch()
    for command in ("cancel", "delete"):
        error = cli(command, "train.py", "model.pkl", code=2).err
        assert error.splitlines()[0].endswith("no jobs, but files are named train.py and model.pkl")
        assert "Quote it: 'exp-*'" in error
    assert cli("status", running, "--json").json["state"] == "RUNNING"


def test_single_replicas_are_cancelled_of_an_array_alone(cli: Cli) -> None:
    handle = cli.shell("exec sleep 300")
    role = cli("status", handle, "--json").json["roles"][0]["role"]
    refused = cli("cancel", f"{handle}/{role}/0", code=3).err
    assert f"{handle.rpartition('/')[2]} is not an array" in refused
    assert "no replica 5" in cli("cancel", f"{handle}/{role}/5", code=2).err
    assert cli("status", handle, "--json").json["state"] == "RUNNING"
    words = ["utils.sh", "--", "sh", "-c", "test $0 = n=1 || exec sleep 300", "n=1,2,3"]
    sweep = cli("sweep", "--detach", "--parallel", "3", *words).out.split()[0]
    assert cli("cancel", f"{sweep}/sh/1,2").err == f"asked sh/1, sh/2 of {sweep} to stop\n"
    assert cli("wait", sweep, code=1).out == "CANCELLED\n"
    assert [row["state"] for row in cli("points", sweep, "--json").json] == [
        "SUCCEEDED",
        "CANCELLED",
        "CANCELLED",
    ]


@pytest.mark.slow
def test_cancel_without_a_name_means_the_latest(cli: Cli) -> None:
    first, second = cli.shell("exec sleep 300"), cli.shell("exec sleep 300")
    cli("cancel", "--wait")
    assert cli("status", second, "--json").json["state"] == "CANCELLED"
    assert cli("status", first, "--json").json["state"] == "RUNNING"


def test_cancel_of_what_cannot_be_cancelled(cli: Cli) -> None:
    cli.plugins()
    handle = cli("run", "-s", "remote", "-cfg", "queue=q", "utils.echo").out.strip()
    assert "remote cannot cancel jobs" in cli("cancel", handle, code=4).err


@pytest.mark.slow
def test_delete(cli: Cli) -> None:
    ended = cli("run", "--wait", "utils.echo").out.strip()
    running = cli.shell("exec sleep 300")
    result = cli("delete", ended, running, code=3)
    assert f"deleted {ended}" in result.err
    assert [row["handle"] for row in cli("list", "--json").json] == [running]
    cli("status", ended, code=5)
    assert cli("status", running, "--json").json["state"] == "RUNNING"
    assert "required: HANDLE" in cli("delete", code=2).err


def test_describe_masks_secrets(cli: Cli) -> None:
    cli("run", "--wait", "utils.sh", "--env", "API_TOKEN=s3cr3tvalue,COLOUR=blue", "true")
    text = cli("describe").out
    assert "command: sh -c true" in text
    assert "COLOUR=blue" in text
    data = cli("describe", "--json")
    assert data.json["app"]["roles"][0]["env"]["COLOUR"] == "blue"
    assert "s3cr3tvalue" not in text + data.out
    assert "does not know the job" in cli("describe", "local_cwd://shunter/nothing", code=5).err


def test_rerun_repeats_a_job(cli: Cli) -> None:
    first = cli("run", "--wait", "-cfg", "timeout=77", "utils.echo", "--msg", "again").out.strip()
    result = cli("rerun", "--log", first)
    second = result.out.strip()
    assert second != first
    assert "echo/0 again\n" in result.err
    assert cli("rerun", "--json", "--wait", "-cfg", "timeout=500", second).json["state"] == "SUCCEEDED"
    assert "no option 'timeuot'" in cli("rerun", "-cfg", "timeuot=5", first, code=3).err
    assert "no such replica" in cli("rerun", "--exit-code-from", "x/0", first, code=2).err
    assert len(cli("list", "--json").json) == 3


@pytest.mark.slow
def test_gc_shows_first_and_removes_on_request(cli: Cli, home: Path) -> None:
    cli.environ["DOCKER_HOST"] = "unix:///nonexistent"  # other tests' containers are none of our business
    handle = cli("run", "--wait", "utils.echo").out.strip()
    app_id = handle.rpartition("/")[2]
    assert cli("gc").err == "no job ended more than 30d ago\n"
    shown = cli("gc", "--older-than", "0")
    assert app_id in shown.out
    assert "nothing is removed without --yes" in shown.err
    data = cli("gc", "--older-than", "0", "--json").json
    assert (data["found"][0]["app_id"], data["removed"]) == (app_id, 0)
    assert Path(data["found"][0]["path"]).exists()
    assert "removed 1 leftover," in cli("gc", "--older-than", "0s", "--yes").err
    assert not Path(data["found"][0]["path"]).exists()
    assert cli("list", "--json").json[0]["state"] == "SUCCEEDED"
    assert "is not a duration" in cli("gc", "--older-than", "old", code=2).err
