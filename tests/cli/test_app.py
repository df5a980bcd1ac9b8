from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from shunter import __version__
from shunter.cli import main
from shunter.cli.command_line import COMMANDS, OTHER_NAMES, load_command
from shunter.cli.parser import Parser
from shunter.errors import UsageError
from tests.cli.conftest import DEADLINE, Cli


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version").out == f"shunter {__version__}\n"
    text = cli("--help").out
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert cli("help").out == text
    assert cli("help", "status").out == cli("status", "--help").out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_on_stdout(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: shunter {name}")
    assert not captured.err
    summary = load_command(name).__doc__.splitlines()[0]
    assert summary in " ".join(captured.out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no command given"),
        (["lits"], "Did you mean list"),
        (["--wat"], "unknown option --wat"),
        (["--verson"], "Did you mean --version?"),
        (["--log_level"], "expected one argument"),
        (["--log_level", "loud", "list"], "'loud' is not a log level"),
        (["status", "--wach"], "Did you mean --watch?"),
        (["status", "a", "b"], "unexpected argument 'b'"),
        (["run", "--wiat", "utils.echo"], "Did you mean --wait?"),
        (["run", "-s"], "expected one argument"),
        (["completion", "tcsh"], "invalid choice"),
    ],
)
def test_usage_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert not captured.out


def test_other_tools_names_lead_to_commands_that_exist() -> None:
    assert {name.split()[0] for name in OTHER_NAMES.values()} <= set(COMMANDS)
    assert not set(OTHER_NAMES) & set(COMMANDS)


def test_commands_of_plugins_add_and_never_hide(cli: Cli) -> None:
    cli.plugins()
    assert cli("greet", "you").out == "hello you\n"
    assert "greet" in cli("--help").out
    assert cli("old", code=1).err == "no thanks\n"
    assert "Did you mean greet" in cli("gree", code=2).err
    assert cli("status", code=5).err.startswith("error: there is no latest job")


def test_a_defect_is_a_message_and_a_traceback_on_request(cli: Cli) -> None:
    cli.plugins()
    result = cli("broken", code=70)
    assert "error: unexpected RuntimeError: kaputt" in result.err
    for words in (["--debug", "broken"], ["broken", "--debug"]):
        process = cli.start(*words)
        _, stderr = process.communicate(timeout=DEADLINE)
        assert process.returncode == 70
        assert b"Traceback" in stderr
        assert b"error: unexpected RuntimeError: kaputt" in stderr


def test_log_messages_are_shown_on_request(cli: Cli) -> None:
    assert cli("list", LOGLEVEL="nonsense").err.startswith("warning: 'nonsense' is not a log level")
    assert cli("list", "--log_level", "debug").err == cli("list", LOGLEVEL="DEBUG").err


def test_a_closed_stdout_and_a_full_one(cli: Cli) -> None:
    command = " ".join(cli.command("--version"))
    closed = subprocess.run(
        ["sh", "-c", f"{command} >&-"],
        env=cli.environ,
        cwd=cli.directory,
        stderr=subprocess.PIPE,
        timeout=DEADLINE,
    )
    assert (closed.returncode, closed.stderr) == (0, b"")
    full = subprocess.run(
        ["sh", "-c", f"{command} >/dev/full"],
        env=cli.environ,
        cwd=cli.directory,
        stderr=subprocess.PIPE,
        timeout=DEADLINE,
    )
    assert full.returncode == 4
    assert full.stderr == b"error: cannot write the output: No space left on device\n"


def test_a_reader_that_has_gone_ends_the_command_quietly(cli: Cli) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        cli.command("--help"), stdout=writer, stderr=subprocess.PIPE, env=cli.environ, cwd=cli.directory
    )
    os.close(writer)
    _, stderr = process.communicate(timeout=DEADLINE)
    assert (process.returncode, stderr) == (0, b"")


def test_the_state_directory_cannot_be_used(cli: Cli) -> None:
    (cli.directory / "file").write_text("")
    result = cli("run", "utils.echo", code=4, SHUNTER_HOME=str(cli.directory / "file"))
    assert "SHUNTER_HOME" in result.err
    assert not result.out


def test_main_leaves_the_process_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    import signal
    import warnings

    before = (warnings.showwarning, signal.getsignal(signal.SIGINT), sys.argv)
    assert main(["list"]) == 0
    assert (warnings.showwarning, signal.getsignal(signal.SIGINT), sys.argv) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["run", "utils.sh", "--env", "WANDB_API_KEY=pl4nted,B=1,B=2", "--", "true"],
        ["run", "utils.sh", "--env", "B=1,WANDB_API_KEY='pl4nted", "--", "true"],
        ["run", "login.py:typed", "--api-key", "pl4nted"],
        ["run", "login.py:fails", "--token=pl4nted"],
        ["--debug", "run", "login.py:fails", "--token", "pl4nted"],
        ["run", "utils.echo", "--password", "pl4nted"],
        ["run", "-cfg", "timeout=1,api_key=pl4nted", "utils.echo"],
    ],
)
def test_no_error_shows_a_secret_of_the_command_line(words: list[str], cli: Cli) -> None:
    (cli.directory / "login.py").write_text(
        "from shunter.specs import AppDef\n\n"
        "def typed(api_key: int) -> AppDef:\n    return AppDef('a')\n\n"
        "def fails(token: str) -> AppDef:\n    raise ValueError('cannot log in with ' + token)\n"
    )
    process = cli.start(*words, stdin=subprocess.PIPE)
    _, stderr = process.communicate(timeout=DEADLINE)
    assert process.returncode in (2, 3)
    assert b"error:" in stderr
    assert b"pl4nted" not in stderr


def test_a_current_directory_that_has_been_removed_is_named(cli: Cli) -> None:
    gone = cli.directory / "gone"
    gone.mkdir()
    words = " ".join(shlex.quote(word) for word in cli.command("run", "--dryrun", "utils.echo"))
    result = subprocess.run(
        ["sh", "-c", f"rmdir ../gone; exec {words}"],
        cwd=gone,
        env={**cli.environ, "PWD": str(gone)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 3, result
    assert "the current directory" in result.stderr
    assert "has been removed" in result.stderr


@pytest.mark.slow
def test_a_plugin_that_ends_the_process_is_an_error_that_names_it(cli: Cli) -> None:
    """SystemExit, and what else is no Exception, would end a command without a word or with a traceback."""
    site = cli.directory / "site"
    (site / "torchx_plugins" / "named_resources").mkdir(parents=True)
    (site / "torchx_plugins" / "named_resources" / "ends.py").write_text("raise SystemExit(4)\n")
    (site / "ends.py").write_text("raise SystemExit(4)\n")
    (site / "made.py").write_text(
        "class Odd(BaseException):\n    pass\n\n\n"
        "def nothing(*args, **more):\n    return 42\n\n\n"
        "def ends(*args, **more):\n    raise SystemExit(4)\n\n\n"
        "def odd(*args, **more):\n    raise Odd('away')\n"
    )
    cli.plugins()
    (site / "ends-1.0.dist-info").mkdir()
    (site / "ends-1.0.dist-info" / "entry_points.txt").write_text(
        "[shunter.schedulers]\nwithout = made:nothing\nodd = made:odd\n"
        "[torchx.schedulers]\nends = ends:create\nfactory = made:ends\n"
        "[shunter.cmds]\nending = ends:Command\n"
        "[shunter.events]\nending = made:ends\n"
        "[shunter.failure_rules]\nending = made:ends\nnone = made:nothing\n"
        "[torchx.named_resources]\ntiny = made:ends\n"
    )
    for scheduler, text in {
        "without": "made 'int', which is not a scheduler",
        "odd": "Odd: away",
        "ends": "cannot be loaded: SystemExit: 4",
        "factory": "failed: SystemExit: 4",
    }.items():
        assert text in cli("run", "-s", scheduler, "utils.echo", code=3).err
        assert text in cli("list", "-s", scheduler, code=3).err
    assert "the plugin 'ending'" in cli("ending", code=3).err
    result = cli("run", "--dryrun", "utils.sh", "-h", "tiny", "true", code=3)
    assert "the plugin 'tiny'" in result.err
    assert "torchx_plugins.named_resources.ends cannot be loaded: SystemExit: 4" in result.err
    failed = cli("run", "--wait", "utils.sh", "false", code=1)
    assert "the event receiver 'ending' failed" in failed.err
    assert "failure rules of the plugin 'ending' are left out" in failed.err
    assert "why: sh/0 exited with an error" in failed.err


def test_a_plugin_may_have_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("shunter fleet", "Look after machines.")
    parser.add_subparsers(dest="what").add_parser("list", help="list them").add_argument("--count", type=int)
    args = parser.parse_arguments(["list", "--count", "2"])
    assert (args.what, args.count) == ("list", 2)
    with pytest.raises(SystemExit) as ended:
        parser.parse_arguments(["list", "--help"])
    assert (ended.value.code, "--count" in capsys.readouterr().out) == (0, True)
    with pytest.raises(UsageError, match="invalid choice: 'shut'"):
        parser.parse_arguments(["shut"])


def test_the_working_directory_is_gone(cli: Cli) -> None:
    script = f"mkdir gone && cd gone && rmdir ../gone && exec {' '.join(cli.command('list'))}"
    result = subprocess.run(
        ["sh", "-c", script], env=cli.environ, cwd=cli.directory, stderr=subprocess.PIPE, timeout=DEADLINE
    )
    assert b"Traceback" not in result.stderr
    assert result.stderr.startswith(b"error: ") or result.returncode == 0
