from __future__ import annotations

import json
import os
import re
import sys
from datetime import datetime

import pytest

from tests.cli.conftest import DEADLINE, Cli


def job(cli: Cli, program: str, *options: str, replicas: int = 1) -> str:
    """Run a Python program to its end; returns the handle."""
    (cli.directory / "program.py").write_text(program)
    words = ("utils.binary", "--name", "job", "--entrypoint", sys.executable, "--num-replicas", str(replicas))
    return cli("run", "--wait", *options, *words, "--", "program.py").out.strip()


@pytest.mark.slow
def test_all_replicas_or_those_that_are_named(cli: Cli) -> None:
    handle = job(cli, "import os; print('I am', os.environ['TORCHX_REPLICA_IDX'])", replicas=3)
    role = cli("log", handle).out.split("/")[0]
    everything = {f"{role}/{k} I am {k}" for k in range(3)}
    assert set(cli("log", handle).out.splitlines()) == everything
    assert set(cli("log").out.splitlines()) == everything
    assert set(cli("log", "-f", "-").out.splitlines()) == everything
    one = f"{role}/1 I am 1\n"
    short = handle.rpartition("/")[2]
    for words in (
        [f"{handle}/{role}/1"],
        [handle, f"{role}/1"],
        [handle, "-f", f"{role}/1"],
        [f"-/{role}/1"],
        [f"{short}/{role}/1"],
    ):
        assert cli("log", *words).out == one
    assert len(cli("log", f"{handle}/{role}/0,2").out.splitlines()) == 2
    assert "no replica 3" in cli("log", f"{handle}/{role}/3", code=2).err
    assert "no role 'x'" in cli("log", handle, "x", code=2).err


@pytest.mark.slow
def test_tail_regex_and_streams(cli: Cli) -> None:
    handle = job(cli, "import sys\nfor i in range(20): print(i)\nprint('oops', file=sys.stderr)")
    prefix = cli("log", handle, "--streams", "stderr").out.removesuffix("oops\n")
    assert prefix.endswith("/0 ")
    assert cli("log", handle, "--stream", "stdout", "--tail", "2").out == f"{prefix}18\n{prefix}19\n"
    assert cli("log", handle, "--regex", "^1?3$").out == f"{prefix}3\n{prefix}13\n"
    assert cli("log", handle, "--no-prefix", "--streams", "stdout", "--tail", "1").out == "19\n"
    assert cli("log", handle, "--tail", "0").out == ""
    assert len(cli("log", handle, "--since", "1h").out.splitlines()) == 21
    assert cli("log", handle, "--until", "1h").out == ""
    assert cli("log", handle, "-f", "--since", "now").out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tail", "x"], "To follow a log, use -f"),
        (["--regex", "("], "is not a regular expression"),
        (["--since", "yesterday"], "is not a time"),
        (["--since", "1m", "--until", "2m"], "must be before"),
        (["--streams", "both"], "invalid choice"),
        (["nothing/a/b"], "does not name replicas"),
        (["nothing", "a/"], "does not name replicas"),
    ],
)
def test_mistakes(cli: Cli, words: list[str], said: str) -> None:
    assert said in cli("log", *words, code=2).err


def test_unknown_jobs(cli: Cli) -> None:
    assert "no job in the history" in cli("log", "nothing", code=5).err
    assert "does not know the job" in cli("log", "local_cwd://shunter/nothing", code=5).err


def test_bytes_come_out_as_they_went_in(cli: Cli) -> None:
    text = r"b'\xff\xfe\n' + b'10%\r20%\r\n' + b'x' * 10_000_000 + b'\nend'"
    handle = job(cli, f"import sys\nsys.stdout.buffer.write({text})")
    plain = b"\xff\xfe\n" + b"10%\r20%\r\n" + b"x" * 10_000_000 + b"\nend"
    assert cli("log", handle, "--no-prefix").raw == plain
    prefixed = cli("log", handle).raw
    prefix = prefixed[: prefixed.index(b"\xff")]
    lines = [b"\xff\xfe\n", b"10%\r", b"20%\r\n", b"x" * 10_000_000 + b"\n", b"end\n"]
    assert prefixed == b"".join(prefix + line for line in lines)
    assert prefix.endswith(b"/0 ")


@pytest.mark.slow
def test_many_lines_are_neither_lost_nor_doubled(cli: Cli) -> None:
    handle = job(cli, "import sys\nsys.stdout.writelines(f'line {i}\\n' for i in range(200_000))")
    lines = cli("log", "-f", handle).raw.split(b"\n")
    prefix = lines[0].removesuffix(b"line 0")
    assert lines == [prefix + b"line %d" % i for i in range(200_000)] + [b""]


@pytest.mark.slow
def test_a_reader_that_has_had_enough(cli: Cli) -> None:
    handle = job(cli, "import sys\nsys.stdout.writelines(f'line {i}\\n' for i in range(200_000))")
    process = cli.start("log", handle)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().endswith(b"line 0\n")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(DEADLINE) == 0


def test_a_log_is_followed_while_it_grows(cli: Cli) -> None:
    gate = cli.directory / "gate"
    os.mkfifo(gate)
    handle = cli.shell("echo first; cat gate; echo last")
    process = cli.start("log", "-f", handle)
    assert process.stdout is not None
    assert process.stdout.readline() == b"sh/0 first\n"
    gate.write_text("second\n")  # blocks until the job reads it
    assert process.communicate(timeout=DEADLINE)[0] == b"sh/0 second\nsh/0 last\n"
    assert process.returncode == 0


@pytest.mark.slow
def test_ctrl_c_only_stops_following(cli: Cli) -> None:
    handle = cli.shell("echo first; exec sleep 300")
    process = cli.start("log", "-f", handle)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(2)
    _, stderr = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert stderr.decode().strip() == f"no longer following {handle}"
    assert cli("status", handle, "--json").json["state"] == "RUNNING"


def test_a_scheduler_that_cannot_read_logs(cli: Cli) -> None:
    cli.plugins()
    handle = cli("run", "-s", "remote", "-cfg", "queue=q", "utils.echo").out.strip()
    assert "remote cannot read logs" in cli("log", handle, code=4).err
    cli.cluster(up=False)
    assert "the cluster does not answer" in cli("log", handle, code=4).err


def test_lines_as_json(cli: Cli) -> None:
    handle = job(cli, r"import os; os.write(1, b'a\tb\r\n\n\xff caf\xc3\xa9\nlast')")
    role = cli("log", handle).out.split("/")[0]
    written = cli("log", handle, "--json")
    lines = [json.loads(line) for line in written.out.splitlines()]
    assert [line["line"] for line in lines] == ["a\tb", "", "\ufffd caf\xe9", "last"]
    assert all((line["role"], line["replica"]) == (role, 0) for line in lines)
    assert written.raw.isascii()


def test_collapse_writes_what_replicas_have_in_common_once(cli):
    handle = cli("run", "--wait", "utils.sh", "--num_replicas", "3", "--", "echo", "same").out.strip()
    assert cli("log", handle, "--collapse").out == "sh[0-2] same\n"
    assert cli("log", "-f", handle, "--collapse").out == "sh[0-2] same\n"
    refused = cli("log", handle, "--collapse", "--json", code=2)
    assert "--collapse needs the names of replicas" in refused.err


def test_first_error_shows_the_replica_that_failed(cli):
    script = "echo begin; [ $0 = 0 ] || { echo 'error: no data'; exit 3; }"
    words = ("--num_replicas", "2", "--", "sh", "-c", script, "${replica_id}")
    handle = cli("run", "--wait", "utils.sh", *words, code=1).out.strip()
    assert cli("log", handle, "--first-error").out == "sh/1 begin\nsh/1 error: no data\n"
    handle = cli("run", "--wait", "utils.echo").out.strip()
    assert "has failed" in cli("log", handle, "--first-error", code=2).err


def test_a_role_of_the_latest_job_is_not_one_of_no_job(cli):
    cli("run", "--wait", "utils.echo", "--msg", "hi")
    assert cli("log", "-/echo/0").out == "echo/0 hi\n"
    assert "names no job" in cli("log", "/echo/0", code=2).err


@pytest.mark.slow
def test_lines_of_several_jobs_with_their_times(cli):
    script = "import sys; print('loss 0.31'); print('step 2'); sys.stdout.flush(); print('loss bad', end='')"
    one, two = job(cli, script), job(cli, script)
    ids = [handle.rpartition("/")[2] for handle in (one, two)]
    role = cli("log", one).out.split("/")[0]
    found = cli("log", one, f"{two}/{role}/0", "--grep", r"^loss \d").out
    assert found == "".join(f"{each}/{role}/0 loss 0.31\n" for each in ids)
    by_pattern = cli("log", "job-*", "--regex", r"^loss \d").out
    assert sorted(by_pattern.splitlines()) == sorted(found.splitlines())
    assert set(cli("log", "-f", "job-*", "--grep", "^step").out.splitlines()) == {
        f"{each}/{role}/0 step 2" for each in ids
    }
    rows = [
        json.loads(line) for line in cli("log", one, two, "--grep", "", "--utc", "--json").out.splitlines()
    ]
    for handle in (one, two):
        lines = [(row["role"], row["line"]) for row in rows if row["job"] == handle]
        assert lines == [(role, "loss 0.31"), (role, "step 2"), (role, "loss bad")]
    ended = cli("status", one, "--json").json["roles"][0]["replicas"][0]["ended_at"]
    assert all(abs(datetime.fromisoformat(row["time"]).timestamp() - ended) < 60 for row in rows[:3])
    utc, local = cli("log", one, "--utc").out, cli("log", one, "--timestamps", TZ="UTC").out
    assert utc == local.replace("+00:00", "Z")
    east = cli("log", one, "--timestamps", TZ="XXX-5:30").out
    assert re.match(rf"{role}/0 \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}\+05:30 loss 0.31\n", east)
    said = cli("log", one, "no-such-job", "--grep", "loss", code=None)
    assert said.code != 0
    assert "no-such-job" in said.err
    assert "leave out --timestamps" in cli("log", one, "--collapse", "--utc", code=2).err


@pytest.mark.slow
def test_the_lines_of_one_rank(cli):
    program = "import os; print('I am', os.environ['TORCHX_REPLICA_IDX'])"
    handle = job(cli, program, replicas=2)
    assert cli("log", handle, "--rank", "1").out.endswith("/1 I am 1\n")
    said = cli("log", handle, "--rank", "2", code=2).err
    assert "no rank 2" in said
    assert "highest is 1" in said
    assert "--rank" in cli("log", handle, "--rank", "x", code=2).err
