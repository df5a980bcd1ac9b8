from __future__ import annotations

import json
import os
import signal

import pytest

from tests.cli.conftest import DEADLINE, Cli

HANDLE = "local_cwd://shunter/"


def test_the_handle_stands_alone_on_stdout(cli: Cli) -> None:
    result = cli("run", "--detach", "utils.echo", "--msg", "hello")
    assert result.out.startswith(HANDLE + "echo-")
    assert result.out.count("\n") == 1
    assert not result.err


def test_a_local_job_is_followed_on_stderr(cli: Cli) -> None:
    logged = cli("run", "utils.echo", "--num-replicas", "2")
    assert logged.out.startswith(HANDLE)
    assert logged.out.count("\n") == 1
    assert "SUCCEEDED" in logged.err
    waited = cli("run", "--wait", "utils.echo").err
    assert "SUCCEEDED" in waited
    assert "hello world" not in waited
    assert "echo/0 hello world\n" in logged.err
    assert "echo/1 hello world\n" in logged.err


def test_a_failed_job_gives_1_or_its_own_code(cli: Cli) -> None:
    script = ("utils.sh", "--entrypoint", "sh", "--", "-c", "exit 7")
    failed = cli("run", *script, code=1)
    assert "FAILED" in failed.err
    assert "exit code 7" in failed.err
    cli("run", "--exit-code-from", "sh/0", *script, code=7)
    cli("run", "--exit-code-from", "any", *script, code=7)
    cli("run", "--exit-code-from", "any", "utils.echo")


def test_configured_without_waiting(cli: Cli) -> None:
    (cli.directory / "shunter.toml").write_text("[run]\nwait = false\n")
    assert not cli("run", "utils.echo").err
    (cli.directory / "shunter.toml").write_text("[run]\nlog = false\n")
    assert "SUCCEEDED" in cli("run", "utils.echo").err


def test_who_closes_the_output_does_not_see_a_success(cli: Cli) -> None:
    process = cli.start("run", "utils.sh", "--", "sh", "-c", "while sleep 0.02; do echo more; done")
    assert process.stderr is not None
    assert process.stdout is not None
    process.stderr.close()
    with process.stdout as output:
        handle = output.read().decode().strip()
    assert process.wait(DEADLINE) == 130
    assert cli("status", "--json", handle).json["state"] == "RUNNING"


def test_who_closes_the_output_of_the_handle_learns_how_the_job_ended(cli: Cli) -> None:
    """As ``shunter run ... | head -c0`` does, in a script that looks at the exit code."""
    process = cli.start("run", "utils.sh", "--", "sh", "-c", "exit 7")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as errors:
        assert b"FAILED" in errors.read()
    assert process.wait(DEADLINE) == 1


def test_what_exit_code_from_names_is_checked_before_anything_starts(cli: Cli) -> None:
    for source in ("echo/1", "nobody/0", "echo/x"):
        result = cli("run", "--exit-code-from", source, "utils.echo", code=2)
        assert "--exit-code-from" in result.err
        assert not result.out
    assert cli("list", "--json").json == []


def test_everything_after_the_component_is_its_own(cli: Cli) -> None:
    text = cli("run", "utils.echo", "--help").out
    assert "usage: shunter run utils.echo" in text
    assert "--msg" in text
    assert "Start a job." in cli("run", "--help").out
    result = cli("run", "--log", "utils.sh", "echo", "-s", "--wait", "--json", "x")
    assert "sh/0 -s --wait --json x\n" in result.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["utils.ecoh"], 3, "utils.echo"),
        (["./nothing.py"], 3, "does not exist"),
        (["nothing.py:fn"], 3, "nothing.py"),
        (["utils.echo", "--mgs", "x"], 2, "--msg"),
        (["utils.echo", "--num-replicas", "many"], 2, "integer"),
        (["-s", "local_cw", "utils.echo"], 3, "Did you mean local_cwd"),
        (["-cfg", "log_dri=x", "utils.echo"], 3, "Did you mean log_dir?"),
        (["-cfg", "timeout=soon", "utils.echo"], 3, "not a number"),
        (["-cfg", "timeout", "utils.echo"], 2, "holds no '='"),
        (["--detach", "--wait", "utils.echo"], 2, "--detach cannot be combined"),
        (["utils.echo", "--log"], 2, "--log is an option of `shunter run`: put it before"),
        (["--stdin", "utils.echo"], 2, "--stdin already specifies the component"),
        ([], 2, "no component given"),
    ],
)
def test_mistakes(cli: Cli, words: list[str], code: int, said: str) -> None:
    result = cli("run", *words, code=code)
    assert said in result.err
    assert not result.out


def test_a_component_with_several_faults_reports_all_of_them(cli: Cli) -> None:
    (cli.directory / "bad.py").write_text(
        "from shunter.specs import AppDef\n\ndef f(a, b, **c) -> AppDef:\n    '''F.'''\n    return None\n"
    )
    result = cli("run", "bad.py:f", code=3)
    assert result.err.count("bad.py:3") == 3


def test_a_dry_run_prints_the_plan_without_its_secrets_and_touches_nothing(cli: Cli) -> None:
    cli.plugins()
    before = sorted(path.name for path in cli.directory.rglob("*") if "__pycache__" not in str(path))
    words = (
        "-s",
        "remote",
        "-cfg",
        "queue=q,login=hunter2",
        "utils.sh",
        "--env",
        "API_TOKEN=s3cr3tvalue",
        "ls",
    )
    text = cli("run", "--dryrun", *words)
    assert "# request" in text.out
    data = cli("run", "--dryrun", "--json", *words)
    assert data.json["app"]["roles"][0]["entrypoint"] == "sh"
    assert data.json["request"]["queue"] == "q"
    assert data.json["scheduler"] == "remote"
    for secret in ("hunter2", "s3cr3tvalue"):
        assert secret not in text.out + data.out
    assert sorted(p.name for p in cli.directory.rglob("*") if "__pycache__" not in str(p)) == before
    assert cli("list", "--json").json == []


def test_json_is_one_document(cli: Cli) -> None:
    submitted = cli("run", "--json", "utils.echo").json
    assert submitted["handle"].endswith(submitted["app_id"])
    assert submitted["scheduler"] == "local_cwd"
    assert "state" in submitted
    waited = cli("run", "--json", "--log", "utils.echo")
    assert waited.json["state"] == "SUCCEEDED"
    assert waited.json["ui_url"]
    assert "echo/0 hello world" in waited.err


def test_a_job_from_stdin(cli: Cli) -> None:
    job = {
        "component_name": "utils.echo",
        "scheduler": "local_cwd",
        "scheduler_args": {"timeout": 60},
        "component_args": {"msg": "from stdin"},
        "log": True,
    }
    result = cli("run", "--stdin", stdin=json.dumps(job))
    assert result.out.startswith(HANDLE)
    assert "echo/0 from stdin" in result.err
    dry = cli("run", "--stdin", "--dryrun", "--json", stdin=json.dumps(job)).json
    assert dry["cfg"]["timeout"] == 60.0
    words = {**job, "component_args": {}, "component_args_str": "--msg 'two words'"}
    assert "echo/0 two words" in cli("run", "--stdin", stdin=json.dumps(words)).err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "invalid JSON"),
        ("[]", "must be a JSON object"),
        ('{"component_nam": "x"}', "Did you mean component_name"),
        ('{"component_name": "utils.echo"}', "missing keys: scheduler, scheduler_args"),
        (
            '{"component_name": "a", "scheduler": "b", "scheduler_args": "k=v"}',
            "wrong type of scheduler_args",
        ),
    ],
)
def test_stdin_that_is_no_job(cli: Cli, text: str, said: str) -> None:
    assert said in cli("run", "--stdin", stdin=text, code=2).err


def test_the_configuration_names_component_scheduler_and_arguments(cli: Cli) -> None:
    cli.plugins()
    (cli.directory / "shunter.toml").write_text(
        '[run]\ncomponent = "utils.echo"\nlog = true\n[component."utils.echo"]\nmsg = "configured"\n'
        '[scheduler.remote]\nqueue = "gpu"\n'
    )
    assert "echo/0 configured\n" in cli("run").err
    assert "echo/0 given\n" in cli("run", "--", "--msg", "given").err
    assert cli("run", "--detach", "utils.echo").err == ""
    assert cli("run", "--dryrun", "--json", "-s", "remote").json["request"]["queue"] == "gpu"
    dry = cli("run", "--dryrun", "--json", SHUNTER_SCHEDULER="remote", SHUNTER_REMOTE_QUEUE="other").json
    assert dry["request"]["queue"] == "other"


def test_a_backend_that_refuses(cli: Cli) -> None:
    cli.plugins()
    result = cli("run", "-s", "remote", "-cfg", "queue=full", "utils.echo", code=4)
    assert "the queue is full" in result.err
    assert not result.out
    assert "required" in cli("run", "-s", "remote", "utils.echo", code=3).err


def test_logs_that_cannot_be_read_do_not_end_the_watching(cli: Cli) -> None:
    cli.plugins()
    process = cli.start("run", "-s", "remote", "-cfg", "queue=q", "--log", "utils.echo")
    assert process.stdout is not None
    handle = process.stdout.readline().decode().strip()
    cli.set_remote_state(handle.rpartition("/")[2], "SUCCEEDED")
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 0
    assert b"the logs cannot be followed: remote cannot read logs" in stderr


def test_ctrl_c_while_submitting(cli: Cli) -> None:
    cli.plugins()
    gate = cli.remote_job("gate")
    gate.parent.mkdir()
    os.mkfifo(gate)
    process = cli.start("run", "-s", "remote", "-cfg", "queue=slow", "utils.echo")
    assert gate.read_text() == "submitting"  # blocks until the scheduler is at work
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=DEADLINE)
    assert (process.returncode, stdout) == (130, b"")
    assert b"the submission was interrupted" in stderr
    assert b"Traceback" not in stderr
    gate.unlink()
    rows = cli("list", "--json", "--all").json
    assert [(row["name"], row["state"]) for row in rows] == [("echo", "UNSUBMITTED")]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[component."utils.echo"]\nnum_replicas = "x"', "shunter.toml: num_replicas is set there"),
        ('[component."utils.echo"]\nmsgg = "x"', "shunter.toml: msgg is set there"),
        ('[run]\nscheduler = "nope"', "shunter.toml: there is no scheduler 'nope'"),
    ],
)
def test_what_is_wrong_in_the_configuration_is_found_there(table: str, said: str, cli: Cli) -> None:
    (cli.directory / "shunter.toml").write_text(table + "\n")
    assert said in cli("run", "utils.echo", code=3).err


def test_options_may_be_given_several_times(cli: Cli) -> None:
    result = cli(
        "run", "--dryrun", "--json", "-cfg", "timeout=5", "-cfg", "timeout=7,grace_period=1", "utils.echo"
    )
    assert (result.json["cfg"]["timeout"], result.json["cfg"]["grace_period"]) == (7.0, 1.0)


# ---- several schedulers


def test_the_first_of_several_schedulers_runs_the_job(cli: Cli) -> None:
    (cli.directory / "shunter.toml").write_text('[scheduler."local_cwd:slow"]\ngrace_period = 1.0\n')
    result = cli("run", "-s", "local_cwd,local_cwd:slow", "--log", "utils.echo", "--msg", "once")
    handles = result.out.split()
    assert result.err.count("once\n") == 1
    listed = {row["handle"]: row for row in cli("list", "--json").json}
    assert sorted(listed) == sorted(handles)
    assert len({row["race"] for row in listed.values()} - {None}) == 1
    states = sorted(row["state"] for row in listed.values())
    assert states in (["SUCCEEDED"], ["CANCELLED", "SUCCEEDED"])
    jobs = cli("run", "-s", "local_cwd,local_cwd:slow", "--detach", "--json", "utils.echo").json
    assert {job["scheduler"] for job in jobs} == {"local_cwd"}
    planned = cli("run", "-s", "local_cwd,local_cwd:slow", "--dryrun", "utils.echo")
    assert "would take the lease " in planned.err


def test_what_is_no_race(cli: Cli) -> None:
    assert "different schedulers" in cli("run", "-s", "local_cwd,local_cwd", "utils.echo", code=2).err
    assert "different schedulers" in cli("run", "-s", "local_cwd,", "utils.echo", code=2).err
    refused = cli("run", "-s", "local_cwd,kubernetes", "utils.echo", code=3).err
    assert "kubernetes: jobs there share no folder with others" in refused
    assert "--lease s3://BUCKET/PREFIX" in refused
    alone = cli("run", "-s", "local_cwd", "--lease", "s3://b/p", "utils.echo", code=2).err
    assert "only one scheduler is named" in alone
    cli("run", "-s", "local_cwd,slurm", "--dryrun", "--json", "utils.echo", code=2)
    swept = cli("sweep", "-s", "local_cwd,slurm", "utils.echo", "--msg", "a,b", code=2).err
    assert "only the option -s of `shunter run` takes several" in swept
    unknown = cli("run", "-s", "local_cwd:fast", "utils.echo", code=3).err
    assert "no profile 'fast'" in unknown
    assert '[scheduler."local_cwd:fast"]' in unknown
    assert cli("list", "--json").json == []
