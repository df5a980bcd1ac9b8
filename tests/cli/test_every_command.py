"""Every command on a terminal with colours: what reaches the terminal is text, and colours that it knows."""

from __future__ import annotations

import re

import pytest

from shunter.cli import main
from shunter.cli.command_line import COMMANDS, OTHER_NAMES
from tests.cli.conftest import Cli

TRAIN = """\
import json, sys
lr, seed = (float(word.split("=")[1]) for word in sys.argv[1:])
for step in range(3):
    print(json.dumps({"step": step, "loss": lr / (step + 1)}))
sys.exit(seed == 1)
"""
# The jobs by their names: `fine` has succeeded, `bad` has failed, `train` is a sweep of which a point failed.
LINES = {
    "run": [("run --dryrun utils.echo", 0), ("run --wait utils.echo --msg hi", 0), ("run utils.no", 3)],
    "sweep": [("sweep --dryrun ./train.py lr=1,2 seed=0", 0)],
    "plan": [("plan ./train.py lr=1 seed=0", 0)],
    "status": [("status fine", 0), ("status bad", 0), ("status train", 0), ("status --watch train", 0)],
    "why": [("why fine", 0), ("why bad", 0), ("why train", 0)],
    "points": [("points train", 0), ("points train --best min:loss", 0), ("points fine", 3)],
    "log": [("log fine", 0), ("log bad --first-error", 0), ("log train --collapse", 0)],
    "metrics": [
        ("metrics train", 0),
        ("metrics train --replicas", 0),
        ("metrics train fine", 0),
        ("metrics -w train", 0),
    ],
    "plot": [("plot loss train --height 8", 0), ("plot loss train/train/0", 0), ("plot los train", 2)],
    "dev": [("dev --dryrun", 0), ("dev fine", 3)],
    "exec": [("exec fine -- true", 3)],
    "forward": [("forward fine 6006", 3)],
    "result": [("result fine", 3)],
    "fetch": [("fetch --list fine", 0), ("fetch fine", 0), ("fetch fine nothing", 3)],
    "wait": [("wait fine", 0), ("wait bad", 1)],
    "list": [("list", 0), ("list --all", 0)],
    "ui": [("ui --port x", 2)],
    "export": [("export fine --force", 0), ("export train --force", 0), ("export fine --to no/x.html", 3)],
    "describe": [("describe train", 0)],
    "cancel": [("cancel fine", 0)],
    "diff": [("diff fine bad", 0), ("diff --stat fine train", 0)],
    "rerun": [("rerun --dryrun bad", 0), ("rerun --failed --dryrun train", 0)],
    "resume": [("resume --dryrun train", 3)],
    "delete": [("delete 'fine*'", 0)],
    "workspace": [("workspace show", 0)],
    "components": [("components", 0), ("components utils.echo", 0)],
    "schedulers": [("schedulers", 0)],
    "runopts": [("runopts", 0), ("runopts slurm", 0)],
    "tracker": [("tracker list jobs", 3)],
    "doctor": [("doctor -s local_cwd", 0)],
    "config": [("config show", 0), ("config init --print", 0)],
    "drill": [("drill spot fine", 3)],
    "sagemaker-local": [("sagemaker-local serve --port x", 2)],
    "gc": [("gc", 0)],
    "completion": [("completion bash", 0)],
    "init": [("init train.py --dry-run", 0)],
    "lab": [("lab", 3), ("lab start x", 2)],
    "skill": [("skill show", 0), ("skill install --to skills", 0)],
    "trust": [("trust --list", 0)],
}
#: Colours, and what redraws lines.
SEQUENCE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
UNFIT = re.compile(r"[^\n\t -~\u00a0-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]|\\u[0-9a-f]{4}|\\x[0-9a-f]{2}")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A state directory with the jobs above."""
    base = tmp_path_factory.mktemp("commands")
    directory = base / "work"
    directory.mkdir()
    (directory / "train.py").write_text(TRAIN)
    cli = Cli(directory)
    cli.environ |= {"HOME": str(base), "SHUNTER_HOME": str(base / "home"), "COLUMNS": "100"}
    (directory / "fine.py").write_text("print('done')")
    (directory / "bad.py").write_text("raise SystemExit('no luck')")
    cli("run", "--wait", "./fine.py")
    cli("run", "--wait", "./bad.py", code=1)
    cli("sweep", "--wait", "./train.py", "lr=0.5,0.1", "seed=0,1", code=1)
    return cli


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_fits_eighty_columns(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(words) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(("word", "command"), OTHER_NAMES.items())
def test_words_of_other_tools_are_commands(
    word: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "--help"]) == 0
    assert f"usage: shunter {command.split()[0]} " in capsys.readouterr().out


def test_every_command_is_looked_at() -> None:
    assert LINES.keys() == COMMANDS.keys(), "give the new command a line"


@pytest.mark.parametrize(
    ("line", "code"), [pytest.param(*line, id=line[0]) for lines in LINES.values() for line in lines]
)
def test_a_terminal_gets_text_and_colours(jobs: Cli, line: str, code: int) -> None:
    shown = jobs.on_terminal(*(word.strip("'") for word in line.split()))
    try:
        assert shown.finish() == code, shown.shown
    finally:
        shown.kill()
    text = shown.shown.decode().replace("\r\n", "\n")
    unfit = [
        text[max(match.start() - 40, 0) : match.end() + 40]
        for match in UNFIT.finditer(SEQUENCE.sub("", text))
    ]
    assert not unfit


def test_a_sweep_is_coloured(jobs: Cli) -> None:
    shown = jobs.on_terminal("points", "train")
    assert shown.finish() == 0
    assert b"train/0  \x1b[32mSUCCEEDED\x1b[0m  " in shown.shown
    assert b"train/1  \x1b[31mFAILED\x1b[0m     " in shown.shown
