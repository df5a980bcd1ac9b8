"""What differs on a terminal: following by default, Ctrl-C, colours, redrawing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable

import pytest

from tests.cli.conftest import Cli, Terminal

Open = Callable[..., Terminal]
CTRL_C = b"\x03"
SLEEP = ("utils.sh", "--entrypoint", "sh", "--", "-c", "echo ready; exec sleep 300")


def latest(cli: Cli) -> str:
    return str(cli("list", "--json").json[0]["handle"])


def state(cli: Cli) -> str:
    return str(cli("status", "--json").json["state"])


def test_a_local_job_is_followed(cli: Cli, terminal: Open) -> None:
    shown = terminal("run", "utils.echo")
    shown.wait_for(b"local_cwd://shunter/echo-")
    shown.wait_for(b"\x1b[36mecho/0\x1b[0m hello world\r\n")
    shown.wait_for(b"SUCCEEDED")
    assert shown.finish() == 0


def test_detach_and_the_configuration_turn_that_off(cli: Cli, terminal: Open) -> None:
    shown = terminal("run", "--detach", "utils.echo")
    assert shown.finish() == 0
    assert b"hello world" not in shown.shown
    (cli.directory / "shunter.toml").write_text("[run]\ndetach = true\n")
    shown = terminal("run", "utils.echo")
    assert shown.finish() == 0
    assert b"hello world" not in shown.shown


def test_ctrl_c_stops_a_local_job(cli: Cli, terminal: Open) -> None:
    shown = terminal("run", *SLEEP)
    shown.wait_for(b"ready")
    shown.type(CTRL_C)
    shown.wait_for(b"stopping the job")
    shown.wait_for(b"CANCELLED")
    assert shown.finish() == 130
    assert state(cli) == "CANCELLED"


def test_a_second_ctrl_c_leaves_the_job_to_itself(cli: Cli, terminal: Open) -> None:
    stubborn = "trap '' TERM INT; echo ready; while :; do sleep 0.1; done"
    words = ("utils.sh", "--entrypoint", "sh", "--", "-c", stubborn)
    shown = terminal("run", "-cfg", "grace_period=300", *words)
    shown.wait_for(b"ready")
    shown.type(CTRL_C)
    shown.wait_for(b"stopping the job")
    shown.type(CTRL_C)
    shown.wait_for(b"the job has been asked to stop")
    assert shown.finish() == 130
    assert state(cli) == "RUNNING"
    # nothing else would end it before its grace period is over
    handle = latest(cli).encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _environment(entry).get(b"TORCHX_JOB_ID") == handle:
            with contextlib.suppress(ProcessLookupError):  # a short one that has just ended
                os.kill(int(entry), signal.SIGKILL)
    assert cli("wait", code=1).out == "CANCELLED\n"


def _environment(pid: str) -> dict[bytes, bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = [item.partition(b"=") for item in file.read().split(b"\0")]
    except OSError:
        return {}
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_elsewhere_a_signal_only_stops_watching(cli: Cli, signum: signal.Signals) -> None:
    process = cli.start("run", *SLEEP)
    assert process.stderr is not None
    assert process.stderr.readline() == b"sh/0 ready\n"
    process.send_signal(signum)
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 128 + signum
    assert f"shunter log -f {stdout.decode().strip()}".encode() in stderr
    assert state(cli) == "RUNNING"


def test_ctrl_c_leaves_a_remote_job_alone(cli: Cli, terminal: Open) -> None:
    cli.plugins()
    shown = terminal("run", "-s", "remote", "-cfg", "queue=q", "--wait", "utils.echo")
    shown.wait_for(b"1 \x1b[36mRUNNING")
    shown.type(CTRL_C)
    shown.wait_for(b"the job keeps running")
    assert shown.finish() == 130
    assert state(cli) == "RUNNING"


def test_a_remote_job_is_not_waited_for_by_itself(cli: Cli, terminal: Open) -> None:
    cli.plugins()
    shown = terminal("run", "-s", "remote", "-cfg", "queue=q", "utils.echo")
    assert shown.finish() == 0
    assert shown.shown.startswith(b"remote://shunter/echo-")
    assert shown.shown.count(b"\n") == 1


def test_status_lines_are_redrawn(cli: Cli, terminal: Open) -> None:
    cli.plugins()
    shown = terminal("run", "-s", "remote", "-cfg", "queue=q", "--wait", "utils.echo", "--num-replicas", "2")
    handle = shown.wait_for(b"\r\n").strip().decode()
    shown.wait_for(b"echo: 2 \x1b[36mRUNNING")
    cli.set_remote_state(handle.rpartition("/")[2], "FAILED")
    shown.wait_for(b"\x1b[2F\x1b[J")  # both lines are gone before the result is printed
    shown.wait_for(b"FAILED")
    assert shown.finish() == 1


REPORTS = """
import json, os, time
print(json.dumps({"step": 7, "loss": 0.125}), flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_the_live_line_has_the_last_metrics(cli: Cli, terminal: Open) -> None:
    (cli.directory / "reports.py").write_text(REPORTS)
    shown = terminal("run", "--wait", "./reports.py")
    shown.wait_for(b"step 7, loss 0.125")
    handle = shown.shown.split()[0].decode()
    watched = terminal("status", "--watch", handle)
    watched.wait_for(b"Metrics of reports: step 7, loss 0.125")
    (cli.directory / "go").touch()
    assert shown.finish() == watched.finish() == 0


def test_no_colour_on_request(cli: Cli, terminal: Open) -> None:
    shown = terminal("run", "utils.echo", NO_COLOR="1")
    shown.wait_for(b"echo/0 hello world\r\n")
    assert shown.finish() == 0
    assert b"\x1b[3" not in shown.shown


def test_watching_ends_with_the_whole_status(cli: Cli, terminal: Open) -> None:
    cli("run", "--wait", "utils.echo", "--num_replicas", "40")
    shown = terminal("status", "--watch")
    assert shown.finish() == 0
    assert b"[39]" in shown.shown
    assert b" more" not in shown.shown


#: A title, colours, the cursor, a bell, C1's own CSI, text that runs backwards, and lines of their own.
HOSTILE = "a\x1b]0;pwned\x07\x1b[31m\x1b[2J\x9b31m\u202e\u2066\ufdd031\ufdd1\nState: SUCCEEDED\rerror: b"
#: What we send ourselves: colours, erasing, going up.
OURS = re.compile(rb"\x1b\[(?:[0-9]*[FJK]|(?:[012]|3[1-6]|9[1-6])m)|\r\n|\r(?=\x1b)")


def check_harmless(shown: bytes) -> None:
    rest = OURS.sub(b"\n", shown).decode()
    assert rest.replace("\n", "").isprintable(), shown
    lines = rest.splitlines()
    assert not any(line.startswith(("State: SUCCEEDED", "error: b")) for line in lines), lines


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("status",), ("list",), ("wait",), ("describe",), ("log", "-"), ("run", "--dryrun", HOSTILE)]
)
def test_names_and_messages_of_others_do_nothing_to_the_terminal(
    cli: Cli, terminal: Open, words: tuple[str, ...]
) -> None:
    cli.plugins()
    handle = cli("run", "-s", "remote", "-cfg", "queue=q", "utils.echo").out.strip()
    path = cli.remote_job(handle.rpartition("/")[2])
    job = json.loads(path.read_text())
    path.write_text(json.dumps({**job, "name": HOSTILE, "roles": {HOSTILE: 1}, "state": "FAILED"}))
    shown = terminal(*words)
    shown.finish()
    assert shown.shown
    check_harmless(shown.shown)


@pytest.mark.parametrize("name", ["shunter.toml", ".torchxconfig"])
def test_names_in_a_hostile_configuration_do_nothing_to_the_terminal(
    cli: Cli, terminal: Open, name: str
) -> None:
    key = json.dumps(HOSTILE)
    texts = {
        "shunter.toml": f"[scheduler.{key}]\n{key} = {key}\n[{key}]\n",
        ".torchxconfig": "[cli:list]\n" + HOSTILE.replace("\n", "") + " = 1\n",
    }
    (cli.directory / name).write_text(texts[name], newline="")
    for words in (["list"], ["config", "show"], ["run", "utils.echo"], ["status", HOSTILE]):
        shown = terminal(*words)
        shown.finish()
        check_harmless(shown.shown)
    (cli.directory / name).unlink()
