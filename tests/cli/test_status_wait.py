from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import DEADLINE, Cli


def remote(cli: Cli, *words: str) -> str:
    return cli("run", "-s", "remote", "-cfg", "queue=q", "utils.echo", *words).out.strip()


def test_status_as_text_and_json(cli: Cli) -> None:
    handle = cli("run", "--wait", "utils.echo").out.strip()
    text = cli("status", handle).out
    assert text.startswith(f"Job: {handle}\nState: SUCCEEDED\n")
    assert "[0] SUCCEEDED" in text
    data = cli("status", handle, "--json").json
    assert (data["handle"], data["state"]) == (handle, "SUCCEEDED")
    assert data["roles"][0]["replicas"][0]["exit_code"] == 0
    short = handle.rpartition("/")[2]
    for name in (short, short[:-3], "-", ""):
        assert cli("status", *([name] if name else [])).out == text


def test_roles(cli: Cli) -> None:
    handle = cli("run", "--wait", "utils.echo").out.strip()
    assert cli("status", "--json", "--roles", "echo", handle).json["roles"]
    assert "no role 'ecoh'" in cli("status", "--roles", "ecoh", handle, code=2).err


def test_an_ambiguous_beginning_lists_the_candidates(cli: Cli) -> None:
    handles = [cli("run", "--wait", "utils.echo").out.strip() for _ in range(2)]
    result = cli("status", "echo-", code=2)
    assert all(handle in result.err for handle in handles)


def test_unknown_handles(cli: Cli) -> None:
    assert "the history is empty" in cli("status", code=5).err
    assert "`shunter list`" in cli("status", "local_cwd://shunter/echo-bbbbbbbbbb", code=5).err
    assert "no scheduler 'nowhere'" in cli("status", "nowhere://x/y", code=3).err


def test_a_job_that_cannot_be_seen_is_unreachable_and_nothing_worse(cli: Cli) -> None:
    cli.plugins()
    handle = remote(cli)
    cli.cluster(up=False)
    result = cli("status", handle, code=4)
    assert "State: UNREACHABLE" in result.out
    assert "does not answer" in result.out
    assert cli("status", handle, "--json", code=4).json["state"] == "UNREACHABLE"
    assert cli("list", "--json").json[0]["state"] == "UNREACHABLE"
    cli.cluster(up=True)
    assert cli("status", handle, "--json").json["state"] == "RUNNING"
    assert cli("list", "--json").json[0]["state"] == "RUNNING"


@pytest.mark.slow
def test_watching_outlasts_an_unreachable_scheduler(cli: Cli) -> None:
    cli.plugins()
    handle = remote(cli)
    process = cli.start("status", "--watch", handle)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, b"")
    assert next(lines).endswith(b" echo/0 RUNNING\n")
    assert next(lines).endswith(b" job RUNNING\n")
    cli.cluster(up=False)
    assert next(lines).endswith(b" job UNREACHABLE (the cluster does not answer)\n")
    cli.cluster(up=True)
    assert b"RUNNING" in next(lines)
    cli.set_remote_state(handle.rpartition("/")[2], "SUCCEEDED")
    rest, _ = process.communicate(timeout=DEADLINE)
    assert rest.endswith(b" job SUCCEEDED\n")
    assert process.returncode == 0


def test_watch_as_json_lines(cli: Cli) -> None:
    handle = cli("run", "--wait", "utils.echo").out.strip()
    lines = cli("status", "--watch", "--json", handle).out.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["SUCCEEDED"]


def test_wait_ends_with_the_job(cli: Cli) -> None:
    gate = cli.directory / "gate"
    os.mkfifo(gate)
    handle = cli.shell("cat gate; exit 3")
    process = cli.start("wait", handle)
    with gate.open("w"):
        assert process.poll() is None
    stdout, _ = process.communicate(timeout=DEADLINE)
    assert (process.returncode, stdout) == (1, b"FAILED\n")
    for source in ("sh/0", "sh"):
        assert cli("wait", "--exit-code-from", source, code=3).out == "FAILED\n"
    assert cli("wait", "--exit-code-from", "any", "--json", code=3).json["state"] == "FAILED"
    assert "no such replica" in cli("wait", "--exit-code-from", "sh/1", code=2).err


@pytest.mark.slow
def test_wait_gives_up(cli: Cli) -> None:
    cli.plugins()
    for handle in (cli.shell("exec sleep 300"), remote(cli)):
        result = cli("wait", "--timeout", "100ms", handle, code=124)
        assert result.out == "RUNNING\n"
        assert "has not ended after 100ms" in result.err
    assert "is not a duration" in cli("wait", "--timeout", "1x", code=2).err


def test_ctrl_c_ends_the_waiting_only(cli: Cli) -> None:
    handle = cli.shell("exec sleep 300")
    process = cli.start("status", "--watch", handle)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(2)
    assert process.communicate(timeout=DEADLINE)[1].decode().strip() == f"no longer watching {handle}"
    assert process.returncode == 130
    assert cli("status", handle, "--json").json["state"] == "RUNNING"


def test_a_job_that_its_scheduler_has_lost_is_not_waited_for(cli: Cli, home: Path) -> None:
    handle = cli("run", "--detach", "utils.echo").out.strip()
    cli("log", "-f", handle)  # until it has ended, which the history does not learn from this
    shutil.rmtree(home / "state" / "jobs" / handle.rpartition("/")[2])
    for words in (["wait"], ["status", "--watch"]):
        result = cli(*words, handle, code=5)
        assert "its scheduler no longer knows the job" in result.err


def test_a_job_whose_state_is_damaged_is_not_waited_for(cli: Cli) -> None:
    handle = cli("run", "--wait", "utils.echo").out.strip()
    state = Path(os.environ["SHUNTER_HOME"], "state", "jobs", handle.rpartition("/")[2], "state.json")
    state.write_text("{")
    assert "cannot wait for the end" in cli("wait", handle, code=4).err
    assert "UNKNOWN" in cli("status", handle, code=None).out


@pytest.mark.slow
def test_waiting_ends_when_the_credentials_are_refused(cli: Cli) -> None:
    cli.plugins()
    handle = remote(cli)
    expired = Path(cli.environ["REMOTE_JOBS"]) / "expired"
    process = cli.start("wait", handle)
    assert cli("status", handle, "--json").json["state"] == "RUNNING"
    expired.touch()
    _, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (4, b"error: the credentials have expired\nLog in again.\n")
    for command in (["wait", handle], ["status", "--watch", handle], ["wait", "--timeout", "5m", handle]):
        assert "Log in again" in cli(*command, code=4).err
    assert "State: UNREACHABLE" in cli("status", handle, code=4).out
    expired.unlink()
    # a job that is known to have ended needs nobody to say so
    cli.set_remote_state(handle.rpartition("/")[2], "SUCCEEDED")
    assert cli("wait", handle).out == "SUCCEEDED\n"
    for trouble in ("expired", "down"):
        (expired.parent / trouble).touch()
        assert cli("wait", handle).out == "SUCCEEDED\n"
        assert "cannot be asked now" in cli("status", handle).out


def test_waiting_for_an_unreachable_scheduler_says_so(cli: Cli) -> None:
    cli.plugins()
    handle = remote(cli)
    cli.cluster(up=False)
    process = cli.start("wait", handle)
    assert process.stderr is not None
    assert b"still waiting: the cluster does not answer" in process.stderr.readline()
    cli.cluster(up=True)
    cli.set_remote_state(handle.rpartition("/")[2], "SUCCEEDED")
    assert process.wait(DEADLINE) == 0
    process.communicate()
