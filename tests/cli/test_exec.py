"""`shunter exec` in real replicas: processes and containers, with a terminal and with pipes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shunter.schedulers.joined_terminal import run_joined
from tests.backends import lacks
from tests.cli.conftest import DEADLINE, Cli, Terminal

Open = Callable[..., Terminal]
CTRL_C = b"\x03"
#: Says that it runs, and waits.
READY = "export MINE=of-the-job; mkdir -p here; cd here; echo ready; exec sleep 300"


def follow_until_ready(cli: Cli, handle: str) -> None:
    follower = cli.start("log", "-f", handle)
    assert follower.stdout is not None
    assert b"ready" in follower.stdout.readline()
    follower.kill()
    follower.communicate()


@pytest.fixture(params=["local_cwd", pytest.param("local_docker", marks=pytest.mark.slow)])
def job(request: pytest.FixtureRequest, cli: Cli) -> Iterator[str]:
    """A job that runs, on each scheduler that has replicas here."""
    words = ["-s", request.param]
    component = ["utils.sh", "--entrypoint", "sh"]
    if request.param == "local_docker":
        component += ["--image", request.getfixturevalue("image")]
        words += ["--workspace", ""]
    done = cli("run", "--detach", *words, *component, "--", "-c", READY)
    handle = done.out.strip()
    follow_until_ready(cli, handle)
    yield handle
    cli("cancel", "--wait", handle)
    cli("delete", handle)


def test_output_and_exit_code_come_through(cli: Cli, job: str) -> None:
    done = cli("exec", job, "sh/0", "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7)
    assert (done.out, done.err) == ("out\n", "err\n")
    assert cli("exec", job, "--", "sh", "-c", "kill -9 $$", code=137).out == ""


def test_stdin_is_piped_to_its_end_and_large_output_back(cli: Cli, job: str) -> None:
    text = "".join(f"line {number}\n" for number in range(60_000))
    assert cli("exec", job, "sh/0", "--", "cat", stdin=text).out == text


def test_a_shell_without_a_terminal_reads_commands(cli: Cli, job: str) -> None:
    assert cli("exec", job, stdin="echo $((20 + 22))\nexit 3\n", code=3).out == "42\n"


def test_the_place_is_that_of_the_replica(cli: Cli, job: str) -> None:
    done = cli("exec", job, "--", "sh", "-c", "echo $TORCHX_ROLE_NAME; pwd; hostname")
    role, directory, host = done.out.splitlines()
    assert role == "sh"
    if job.startswith("local_cwd"):
        # the process's own directory; what it has exported since its start is its own too
        assert directory == str(cli.directory / "here")
    else:
        assert host != os.uname().nodename


def test_a_terminal_is_passed_on(cli: Cli, terminal: Open, job: str) -> None:
    shown = terminal(
        "exec", job, "sh/0", "--", "sh", "-c", "tty; stty size; echo type; read line; echo got $line"
    )
    shown.wait_for(b"/dev/")
    shown.wait_for(b"type\r\n")
    shown.type(b"hello\r")
    shown.wait_for(b"got hello\r\n")
    assert shown.finish() == 0


def test_ctrl_c_reaches_the_command_and_not_the_job(cli: Cli, terminal: Open, job: str) -> None:
    script = "trap 'echo caught; exit 9' INT; echo waiting; while :; do sleep 0.05; done"
    shown = terminal("exec", job, "--", "sh", "-c", script)
    shown.wait_for(b"waiting")
    shown.type(CTRL_C)
    shown.wait_for(b"caught")
    assert shown.finish() == 9
    assert cli("status", "--json", job).json["state"] == "RUNNING"


def test_the_window_size_follows(cli: Cli, terminal: Open, job: str) -> None:
    script = 'trap "stty size" WINCH; echo waiting; until [ "$(stty size)" = "33 101" ]; do sleep 0.05; done'
    script += "; echo it is 33 101"
    shown = terminal("exec", job, "--", "sh", "-c", script)
    shown.wait_for(b"waiting")
    fcntl.ioctl(shown._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    shown.wait_for(b"it is 33 101")
    assert shown.finish() == 0


def test_the_terminal_is_restored(cli: Cli, terminal: Open, job: str) -> None:
    # a shell runs the client, so that the terminal outlives it
    words = " ".join(cli.command("exec", job, "--", "sh", "-c", "'stty raw -echo; exit 5'"))
    shown = Terminal(
        ["/bin/sh", "-c", f"stty -g; {words}; echo code $?; stty -g"], cli.directory, dict(cli.environ)
    )
    try:
        before = shown.wait_for(b"\n").strip()
        shown.wait_for(b"code 5")
        shown.wait_for(b"\n")
        assert shown.wait_for(b"\n").strip() == before
        assert shown.finish() == 0
    finally:
        shown.kill()


def test_a_client_that_is_ended_leaves_the_terminal_as_it_was(cli: Cli, job: str) -> None:
    words = " ".join(cli.command("exec", job, "--", "sh", "-c", "'echo pid $$; exec sleep 300'"))
    shown = Terminal(
        ["/bin/sh", "-mc", f"stty -g; {words}; echo code $?; stty -g"], cli.directory, {**cli.environ}
    )
    try:
        before = shown.wait_for(b"\n").strip()
        shown.wait_for(b"pid ")
        shown.wait_for(b"\n")
        foreground = os.tcgetpgrp(shown._fd)
        os.kill(foreground, signal.SIGTERM)
        shown.wait_for(b"code ")
        shown.wait_for(b"\n")
        assert shown.wait_for(b"\n").strip() == before
        assert shown.finish() == 0
    finally:
        shown.kill()


def test_a_client_that_is_ended_while_the_program_starts_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        """A program whose starter gets a signal before it knows of the program."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    try:
        with pytest.raises(SystemExit) as ended:
            run_joined(["sleep", "300"])
        assert ended.value.code == 128 + signal.SIGTERM
        assert [program.poll() for program in started] == [-signal.SIGTERM]
    finally:
        for program in started:
            program.kill()
            program.wait()


def test_what_cannot_be_entered_is_refused(cli: Cli, job: str) -> None:
    assert "there is no program 'no-such-program'" in cli("exec", job, "--", "no-such-program", code=3).err
    assert "sh/0" in cli("exec", job, "sh/1", "--", "true", code=2).err
    assert "does not name a replica" in cli("exec", job, "sh", "--", "true", code=2).err
    assert "comes after `--`" in cli("exec", job, "sh/0", "ls", code=2).err
    cli("cancel", "--wait", job)
    assert "is not running" in cli("exec", job, "--", "true", code=3).err


def test_a_job_with_several_replicas_wants_one_named(cli: Cli) -> None:
    handle = cli(
        "run", "--detach", "utils.sh", "--num_replicas", "2", "--entrypoint", "sh", "--", "-c", READY
    ).out
    refused = cli("exec", handle.strip(), "--", "true", code=2)
    assert "has 2 replicas" in refused.err
    assert "sh/0, sh/1" in refused.err
    script = "echo $TORCHX_REPLICA_IDX"
    assert cli("exec", handle.strip(), "sh/1", "--", "sh", "-c", script).out == "1\n"


def test_a_closed_reader_ends_it_quietly(cli: Cli) -> None:
    handle = cli.shell(READY)
    process = cli.start("exec", handle, "--", "sh", "-c", "echo first; exec cat", stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):  # it may end before it has read all
        process.stdin.write(b"x" * 100_000)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.wait(DEADLINE)
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nsenter") is None, reason="needs nsenter")
def test_a_script_under_the_toolkit_is_entered_with_its_view(cli: Cli) -> None:
    (cli.directory / "train.py").write_text(
        "import os, time\n"
        "open(os.environ['SM_MODEL_DIR'] + '/mine', 'w').close()\n"
        "print('ready', flush=True)\ntime.sleep(300)\n"
    )
    has_namespaces = not lacks("namespaces")
    wanted = "1" if has_namespaces else "0"
    words = ["--script", "train.py", "--env", f"SHUNTER_OPT_ML={wanted}"]
    handle = cli("run", "--detach", "train.script", *words).out.strip()
    follow_until_ready(cli, handle)
    done = cli("exec", handle, "--", "sh", "-c", 'echo $SM_CURRENT_HOST; ls "$SM_MODEL_DIR"')
    host, found = done.out.splitlines()
    assert host.startswith("127.")
    assert found == "mine"
    if has_namespaces:
        assert cli("exec", handle, "--", "ls", "/opt/ml/model").out == "mine\n"
