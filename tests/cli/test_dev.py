"""`shunter dev`: an interactive job in real replicas, its sessions, and its end when nobody uses it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Terminal
from tests.dev_sessions import handle_of
from tests.web_server_job import PROGRAM, Forwarding

Open = Callable[..., Terminal]
CTRL_C = b"\x03"
pytestmark = pytest.mark.slow


@pytest.fixture(params=["local_cwd", "local_docker"])
def place(request: pytest.FixtureRequest) -> list[str]:
    """Options of a job on each scheduler that has replicas here."""
    words = ["-s", request.param]
    return [*words, "--image", request.getfixturevalue("image")] if words[1] == "local_docker" else words


def end(cli: Cli, handle: str) -> None:
    cli("cancel", "--wait", handle)
    cli("delete", handle)


def test_a_shell_has_what_a_script_has_and_leaving_it_leaves_the_job(
    cli: Cli, terminal: Open, place: list[str]
) -> None:
    data = cli.directory / "data"
    data.mkdir()
    (cli.directory / "mine.py").write_text("print('code', 'of', 'mine')")
    # what a start-up file of the shell does to PATH must not hide the environment
    Path(cli.environ["HOME"], ".bashrc").write_text("PATH=/usr/bin:/bin; mine=rc\n")
    shown = terminal("dev", *place, "--env", "A=1", "--channel", f"training={data}", "--idle", "10m")
    handle = handle_of(shown, place[1])
    shown.type(b"echo A=$A channel=$SM_CHANNEL_TRAINING; python3 mine.py; tty; exit 5\r")
    shown.wait_for(b"A=1 channel=/")
    shown.wait_for(b"code of mine")
    shown.wait_for(b"/dev/pts/")
    shown.wait_for(b"runs on until nobody uses it")
    assert shown.finish() == 5
    assert cli("status", "--json", handle).json["state"] == "RUNNING"
    for command in ("dev", "exec"):  # both enter it again
        done = cli(command, handle, "--", "sh", "-c", "echo $SM_CHANNEL_TRAINING; exit 6", code=6)
        assert done.out.startswith("/")
    end(cli, handle)


def test_it_ends_when_nobody_types_and_nothing_runs_although_a_shell_is_open(
    cli: Cli, terminal: Open, place: list[str]
) -> None:
    shown = terminal("dev", *place, "--idle", "4s")
    handle = handle_of(shown, place[1])
    shown.type(b"sleep 1000\r")
    shown.wait_for(b"this job is idle, and ends in")
    shown.wait_for(b"SUCCEEDED")
    assert shown.finish() == 0
    for command in ("why", "status"):
        assert "it ended because it was idle: for 4 s nobody typed" in cli(command, handle).out
    assert "has ended: SUCCEEDED" in cli("dev", handle, code=3).err
    cli("delete", handle)


def test_work_keeps_it_and_what_a_killed_session_left_does_not(cli: Cli, place: list[str]) -> None:
    handle = cli("dev", "--detach", *place, "--idle", "4s").out.strip()
    work = "import time; end = time.monotonic() + 8\nwhile time.monotonic() < end: pass"
    session = cli.start("dev", handle, "--", "sh", "-c", f"echo busy; python3 -c '{work}'; exec sleep 1000")
    assert session.stdout is not None
    assert session.stdout.readline() == b"busy\n"
    began = time.monotonic()
    session.kill()
    cli("wait", handle)
    assert time.monotonic() - began > 8
    session.communicate()
    assert "it was idle" in cli("log", handle).out
    cli("delete", handle)


def test_a_server_that_a_session_started_is_reached(cli: Cli, place: list[str]) -> None:
    handle = cli("dev", "--detach", *place).out.strip()
    (cli.directory / "server.py").write_text(PROGRAM)
    session = cli.start("dev", handle, "--", "python3", "-uc", PROGRAM)
    assert session.stdout is not None
    found = re.search(rb"port (\d+)", session.stdout.readline())
    assert found
    with Forwarding(handle, int(found[1]), cli.environ) as forwarding:
        forwarding.check()
    end(cli, handle)
    session.communicate()


@pytest.mark.parametrize("answer", [b"y\r", b"n\r"])
def test_ctrl_c_before_the_start_asks_what_becomes_of_the_job(
    cli: Cli, terminal: Open, answer: bytes
) -> None:
    before = cli.shell("sleep 1000")
    shown = terminal("dev", "--after", before)
    handle = handle_of(shown, "local_cwd")
    shown.wait_for(b"PENDING")
    shown.type(CTRL_C)
    shown.wait_for(b"has not started. Cancel it? [y/N]")
    shown.type(answer)
    shown.wait_for(b"is cancelled" if answer == b"y\r" else b"still waits to start")
    assert shown.finish() == 130
    state = cli("status", "--json", handle, code=None).json["state"]
    assert state == ("CANCELLED" if answer == b"y\r" else "PENDING")
    cli("cancel", handle, before)


def test_a_job_that_fails_before_it_can_be_entered_shows_its_cause(cli: Cli) -> None:
    before = cli.shell("exit 1")
    cli("wait", before, code=1)
    ended = cli("dev", "--after", before, "--", "true", code=None)
    assert ended.code != 0
    assert "CANCELLED" in ended.err or "FAILED" in ended.err


def test_what_cannot_be_is_refused_before_anything_starts(cli: Cli) -> None:
    cli.plugins()
    assert "nobody could enter it" in cli("dev", "-s", "remote", code=3).err
    assert "there can be no shell" in cli("dev", "-s", "ray", code=3).err
    assert "takes no script" in cli("dev", "./train.py", code=2).err
    assert "--gpu is an option of a new one" in cli("dev", "--gpu", "1", "mine", code=2).err
    assert "not a duration" in cli("dev", "--idle", "soon", code=2).err
    other = cli.shell("sleep 1000")
    assert f"shunter exec {other}" in cli("dev", other, code=3).err
    cli("cancel", other)
