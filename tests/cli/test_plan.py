"""`shunter plan`: everything that a run would do, and nothing done."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_a_plan_says_what_a_run_would_do(cli: Cli) -> None:
    (cli.directory / "train.py").write_text("print(1)\n")
    (cli.directory / ".env").write_text("TOKEN=1\n")
    (cli.directory / "shunter.toml").write_text("[scheduler.local_cwd]\ntimeout = 60\n")
    first = cli("run", "--workspace", ".", "./train.py", "--lr", "1").out.strip()
    (cli.directory / "train.py").write_text("print(2)\n")
    text = cli("plan", "--workspace", ".", "-cfg", "fail_fast=True", "./train.py", "--lr", "2").out
    assert "local_cwd: nothing is submitted" in text
    assert "command: python ./train.py --lr 2" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["fail_fast", "True", "command", "line"] in lines
    assert any(words[:2] == ["timeout", "60.0"] and "shunter.toml" in words[2] for words in lines if words)
    assert "left out, since they look like secrets: .env" in text
    assert f"Changed since {first.rpartition('/')[2]}" in text
    assert "code: train.py" in text
    assert '-> ["--lr", "2"]' in text
    assert len(cli("list", "--json").json) == 1


def test_a_plan_as_json(cli: Cli) -> None:
    plan = cli("plan", "--json", "-s", "local_cwd", "utils.echo", "--msg", "hi").json
    assert plan["last"] == ""
    assert plan["changes"] == []
    assert plan["app"]["roles"][0]["args"] == ["hi"]
    assert plan["options"]["timeout"] == {"value": None, "source": "default"}
    assert "elastic" in plan["lacking"]
    assert "checks" not in plan
    live = cli("plan", "--json", "--live", "utils.echo").json
    assert {check["name"]: check["ok"] for check in live["checks"]}["the job"] is True


def test_a_plan_hides_secrets(cli: Cli) -> None:
    assert "hunter2" not in cli("plan", "utils.sh", "--", "x", "--password", "hunter2hunter2").out


def test_a_plan_of_nonsense_is_refused_as_a_run(cli: Cli) -> None:
    assert (
        cli("plan", "utils.echo", "--nonsense", code=2).err
        == cli("run", "utils.echo", "--nonsense", code=2).err
    )


def test_an_option_behind_the_component_is_pointed_out(cli: Cli) -> None:
    text = cli("plan", "utils.echo", "-s", "local_docker", code=2).err
    assert "-s is an option of `shunter plan`: put it before the component." in text
