from __future__ import annotations

import pytest

from tests.cli.conftest import Cli, Terminal


def names(cli: Cli, *words: str) -> list[str]:
    return [row["name"] for row in cli("list", "--json", *words).json]


def test_a_table_of_jobs_the_latest_first(cli: Cli) -> None:
    first = cli("run", "--wait", "utils.echo").out.strip()
    second = cli.shell("exit 1")
    cli("wait", second, code=1)
    lines = cli("list").out.splitlines()
    assert lines[0].split() == ["HANDLE", "STATE", "NAME", "SUBMITTED", "TIME", "ARGUMENTS"]
    assert [line.split()[0] for line in lines[1:]] == [second, first]
    assert [line.split()[1] for line in lines[1:]] == ["FAILED", "SUCCEEDED"]
    assert len({line.index("SUCC" if "SUCC" in line else "FAILED") for line in lines[1:]}) == 1


def test_nothing_to_list(cli: Cli) -> None:
    result = cli("list")
    assert (result.out, result.err) == ("", "no jobs yet\n")
    assert cli("list", "--json").json == []
    assert cli("list", "--name", "x").err == "no such jobs\n"
    assert "shunter list --state running\n" in cli("list", "running").err


def test_arguments_tell_jobs_apart(cli: Cli) -> None:
    for text in ("one", "two " * 50):
        cli("run", "--wait", "utils.echo", "--msg", text)
    assert [row["arguments"] for row in cli("list", "--json").json] == [f"--msg '{'two ' * 50}'", "--msg one"]
    sized = ["/bin/sh", "-c", 'stty cols 80 rows 24; exec "$@"', "sh", *cli.command("list", "-n", "2")]
    shown = Terminal(sized, cli.directory, {**cli.environ, "NO_COLOR": "1"})
    assert shown.finish() == 0
    lines = shown.shown.decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].endswith("...")
    assert "--msg 'two two" in lines[1]
    assert lines[2].endswith("  --msg one")


def test_filters(cli: Cli) -> None:
    cli("run", "--wait", "utils.echo")
    cli("wait", cli.shell("exit 1"), code=1)
    assert names(cli) == ["sh", "echo"]
    assert names(cli, "--state", "failed,running") == ["sh"]
    assert names(cli, "--name", "ech") == ["echo"]
    assert names(cli, "--name", "s?-*") == ["sh"]
    assert names(cli, "--since", "1h") == ["sh", "echo"]
    assert names(cli, "--since", "now") == []
    assert names(cli, "--limit", "1") == ["sh"]
    shortened = cli("list", "--limit", "1")
    assert len(shortened.out.splitlines()) == 2
    assert shortened.err == "1 of 2 jobs; --limit 0 shows all\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--state", "runing"], "Did you mean RUNNING"),
        (["--limit", "x"], "is not a whole number"),
        (["--limit", "-1"], "is less than 0"),
        (["--since", "then"], "is not a time"),
        (["-cfg", "a=b"], "-cfg needs -s"),
    ],
)
def test_mistakes(cli: Cli, words: list[str], said: str) -> None:
    assert said in cli("list", *words, code=2).err


@pytest.mark.slow
def test_a_scheduler_is_asked_for_jobs_that_others_started(cli: Cli) -> None:
    cli.plugins()
    cli("run", "--wait", "utils.echo")
    ours = cli("run", "-s", "remote", "-cfg", "queue=q", "utils.echo").out.strip()
    theirs = cli(
        "run", "-s", "remote", "-cfg", "queue=q", "utils.touch", "--file", "f", SHUNTER_HOME="elsewhere"
    )
    rows = cli("list", "--json", "-s", "remote").json
    # the latest first, independently of the user
    assert [row["handle"] for row in rows] == [theirs.out.strip(), ours]
    assert {row["scheduler"] for row in rows} == {"remote"}
    assert len(cli("list", "--json").json) == 2
    cli.cluster(up=False)
    result = cli("list", "--json", "-s", "remote", code=4)
    assert [(row["handle"], row["state"]) for row in result.json] == [(ours, "UNREACHABLE")]
    assert "does not answer" in result.err
    assert "no scheduler 'remot'" in cli("list", "-s", "remot", code=3).err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["queue=q"], 1),
        (["queue=arn:aws:batch:here:1:job-queue/q"], 1),
        (["queue=*"], 2),
        (["queue=none"], 0),
        (["queue=q", "login=word"], 1),  # the job that has a login is in the other queue
        (["login=word"], 2),  # a secret is not recorded, and a job may have no recorded value
    ],
)
def test_options_of_the_scheduler_restrict_its_jobs(cli: Cli, options: list[str], count: int) -> None:
    cli.plugins()
    cli("run", "-s", "remote", "-cfg", "queue=q", "utils.echo")
    cli("run", "-s", "remote", "-cfg", "queue=other,login=hunter2hunter2", "utils.echo")
    assert len(cli("list", "--json", "-s", "remote", "-cfg", ",".join(options)).json) == count


@pytest.mark.slow
@pytest.mark.parametrize("columns", [130, 80, 60])
def test_a_table_fits_the_terminal_and_is_whole_when_piped(cli: Cli, columns: int) -> None:
    name = "a-name-of-quite-some-length-that-says-it-all"
    words = ["run", "--wait", "utils.binary", "--entrypoint", "true", "--name", name]
    handles = [cli(*words).out.strip(), cli("run", "--wait", "utils.echo").out.strip()]
    sized = ["/bin/sh", "-c", f'stty cols {columns} rows 24; exec "$@"', "sh", *cli.command("list")]
    shown = Terminal(sized, cli.directory, {**cli.environ, "NO_COLOR": "1"})
    assert shown.finish() == 0
    lines = shown.shown.decode().splitlines()
    assert max(map(len, lines)) <= columns, lines
    ids = [line.split()[0].rstrip(".") for line in lines[1:]]
    assert [cli("status", "--json", beginning).json["handle"] for beginning in ids] == handles[::-1]
    assert all(handle in cli("list").out for handle in handles)


@pytest.mark.slow
def test_refused_submissions_are_listed_on_request(cli: Cli) -> None:
    cli.plugins()
    cli("run", "-s", "remote", "-cfg", "queue=full", "utils.echo", code=4)
    assert names(cli) == []
    assert names(cli, "--all") == ["echo"]
    assert "REFUSED" in cli("list", "-a").out
    assert names(cli, "--state", "refused,running") == ["echo"]
    assert names(cli, "--state", "running") == names(cli, "-s", "remote", "--state", "succeeded") == []


@pytest.mark.slow
def test_the_configuration_may_set_scheduler_and_limit(cli: Cli) -> None:
    cli("run", "--wait", "utils.echo")
    cli("run", "--wait", "utils.echo")
    file = cli.directory / "shunter.toml"
    file.write_text("[cli.list]\nlimit = 1\n")
    assert len(names(cli)) == 1
    assert len(names(cli, "--limit", "0")) == 2
    file.write_text("[cli.list]\nlimt = 1\n")
    assert "shunter.toml: " in cli("list", code=3).err
    file.write_text('[cli.list]\nlimit = "few"\n')
    assert "shunter.toml: " in cli("list", code=3).err
    file.unlink()
