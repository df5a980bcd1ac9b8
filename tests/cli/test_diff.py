"""`shunter diff`, on jobs that really ran with code of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def project(cli: Cli) -> Path:
    project = cli.directory / "project"
    project.mkdir()
    (project / "train.py").write_text("import sys\n\nprint('one')\n")
    (project / "data.bin").write_bytes(b"\0\1")
    return project


def run(cli: Cli, *words: str) -> str:
    return cli("run", "--wait", "--workspace", "project", *words).out.strip()


def test_code_arguments_and_nothing_else(cli: Cli, project: Path) -> None:
    first = run(cli, "train.script", "--script", "train.py", "--", "--lr", "0.1")
    (project / "train.py").write_text("import sys\n\nprint('two')\n")
    (project / "data.bin").write_bytes(b"\0\2")
    (project / "new.py").write_text("x = 1\n")
    second = run(cli, "train.script", "--script", "train.py", "--", "--lr", "0.3")
    shown = cli("diff", first, second).out.splitlines()
    assert shown[:2] == [f"- {first}", f"+ {second}"]
    assert "  M data.bin" in shown
    assert "  A new.py" in shown
    assert "-print('one')" in shown
    assert "+print('two')" in shown
    assert "+x = 1" in shown
    assert "    - python train.py --lr 0.1" in shown
    assert "    + python train.py --lr 0.3" in shown
    assert not any(line.startswith(("options", "environment", "job")) for line in shown)
    assert cli("diff").out == cli("diff", first, second).out  # the latest against the one before it
    assert "print" not in cli("diff", "--stat").out.partition("arguments")[0]
    data = cli("diff", first, second, "--json").json
    assert {file["path"]: file["change"] for file in data["code"]["files"]} == {
        "data.bin": "modified",
        "new.py": "added",
        "train.py": "modified",
    }
    cli("diff", "--exit-code", code=1)


@pytest.mark.slow
def test_the_same_twice(cli: Cli, project: Path) -> None:
    for _ in range(2):
        run(cli, "train.script", "--script", "train.py")
    result = cli("diff", "--exit-code")
    assert "code: same" in result.out
    assert "nothing differs" in result.out


@pytest.mark.slow
def test_options_and_environment(cli: Cli, project: Path) -> None:
    run(cli, "-cfg", "timeout=50", "train.script", "--script", "train.py", "--env", "A=1")
    run(cli, "-cfg", "timeout=60", "train.script", "--script", "train.py", "--env", "A=2,B=3")
    values = cli("diff", "--json").json
    assert values["options"] == {"timeout": [50.0, 60.0]}
    assert values["environment"] == {"train: A": ["1", "2"], "train: B": [None, "3"]}


@pytest.mark.slow
def test_repeating_runs_the_code_that_was_frozen(cli: Cli, project: Path) -> None:
    first = run(cli, "train.script", "--script", "train.py")
    (project / "train.py").write_text("raise SystemExit(3)\n")
    again = cli("rerun", "--wait", first).out.strip()
    assert cli("log", again).out == "train/0 one\n"
    assert "code: same" in cli("diff", first, again).out
    plan = cli("rerun", "--dryrun", first).out
    assert "# code" in plan
    fingerprint = cli("diff", first, again, "--json").json["code"]["fingerprints"][0]
    cli("run", "--wait", "--workspace", f"@{fingerprint[:10]}", "train.script", "--script", "train.py")
    cli("rerun", "--wait", "--workspace", "project", first, code=1)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 5, "the history is empty"),
        (("nobody",), 5, "nobody"),
        (("local_cwd://a/b-c",), 5, "not in the history"),
    ],
)
def test_what_there_is_not(cli: Cli, words: tuple[str, ...], code: int, said: str) -> None:
    result = cli("diff", *words, code=code)
    assert said in result.err
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_a_first_job_has_no_predecessor(cli: Cli, project: Path) -> None:
    run(cli, "train.script", "--script", "train.py")
    assert "before" in cli("diff", code=2).err
