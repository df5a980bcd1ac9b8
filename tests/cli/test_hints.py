"""What newcomers type wrongly: when they type what the answer says, it works."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.conftest import Cli

SCRIPT = """
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=1)
arguments = parser.parse_args()
print("loss=0.5", arguments)
pathlib.Path(os.environ["SM_MODEL_DIR"], "weights.pt").write_text("w")
"""

#: A command line, and what its answer leads to: what is typed next; a `*` stands for the hint's own words.
CASES = [
    # ---- the script
    ("run trian.py", "run train.py"),
    ("run ./trian.py", "run ./train.py"),
    ("run train", "run ./train.py"),
    ("run 'my scirpt.py'", "run 'my script.py'"),
    ("train.py --lr 1", "run train.py --lr 1"),
    ("python train.py", "run python train.py"),
    ("run true", "run -- true"),
    ("run train.script train.py", "run train.py"),
    ("run bash -c 'echo $A; exit 0'", "run -- bash -c 'echo $A; exit 0'"),
    ("run --env A=1 bash -c 'echo $A'", "run --env A=1 -- bash -c 'echo $A'"),
    ("run nothere.sh", "run train.py"),
    ("run ./data", "run ./train.py"),
    ("run train.py:main", None),
    ("run functions.add --a 1", "run functions.py:add --a 1"),
    ("run functions.py:ad --a 1", "run functions.py:add --a 1"),
    ("run", "run utils.echo --msg hello"),
    ("run --image ./train.py", None),
    ("init trian.py --dry-run", "init train.py --dry-run"),
    # ---- commands
    ("runn ./train.py", "run ./train.py"),
    ("sttaus hello", "status hello"),
    ("lgo hello", "log hello"),
    ("lits", "list"),
    ("list --sort time", None),
    ("plot fit", "metrics fit"),
    ("gc --older 3d", "gc --older-than 3d"),
    ("exec hello ls", None),
    # ---- options at the wrong place, or misspelt
    ("run --lr 1 ./train.py", "run ./train.py --lr 1"),
    ("run --cpu 1 --lr 1 ./train.py --epochs 2", "run --cpu 1 ./train.py --lr 1 --epochs 2"),
    ("run ./train.py --dryrun", "run --dryrun ./train.py"),
    ("run ./train.py --lr 1 --dry-run", "run --dry-run ./train.py --lr 1"),
    ("sweep ./train.py --lr 1,2 --dryrun", "sweep --dryrun ./train.py --lr 1,2"),
    ("run --gpus 0 ./train.py", "run --gpu 0 ./train.py"),
    ("run --memory 1G ./train.py", "run --mem 1G ./train.py"),
    ("run --cores 1 ./train.py", "run --cpu 1 ./train.py"),
    ("run --ram 1G ./train.py", "run --mem 1G ./train.py"),
    ("run --follow ./train.py", "run --log ./train.py"),
    ("run --enviroment none ./train.py", "run --environment none ./train.py"),
    ("run utils.echo --mgs hi", "run utils.echo --msg hi"),
    ("run util.echo --msg hi", "run utils.echo --msg hi"),
    ("log --taill 5 hello", "log --tail 5 hello"),
    ("rerun fit --lr 3", "rerun fit -- --lr 3"),
    ("resume fit --lr 3", None),
    ("run -n x ./train.py", "run --name x ./train.py"),
    ("run -e A=1 ./train.py", "run --env A=1 ./train.py"),
    # ---- values
    ("run --mem 16X ./train.py", "run --mem 16G ./train.py"),
    ("run --time 1 ./train.py", "run --time 1h ./train.py"),
    ("run --time 1hour ./train.py", "run --time 1h ./train.py"),
    ("run --cpu two ./train.py", "run --cpu 2 ./train.py"),
    ("run --retries x ./train.py", "run --retries 2 ./train.py"),
    ("run --env A ./train.py", "run --env A=1 ./train.py"),
    ("run --channel data ./train.py", "run --channel training=./data ./train.py"),
    ("run --distribution torch ./train.py", None),
    ("run --metric loss=[ ./train.py", "run --metric loss ./train.py"),
    ("wait --timeout 10x hello", "wait --timeout 10m hello"),
    ("list --since yesterday", "list --since 10m"),
    ("list --state done", "list --state SUCCEEDED"),
    ("sweep --dryrun ./train.py --lr 1", "sweep --dryrun ./train.py --lr 1e-3,1e-4"),
    # ---- schedulers
    ("run -s dokcer --dryrun utils.echo", "run -s docker --dryrun utils.echo"),
    ("run -s loacl utils.echo", "run -s local utils.echo"),
    ("runopts slrum", "runopts slurm"),
    ("schedulers slrum", "schedulers slurm"),
    (
        "run --dryrun --partition gpu ./train.py --lr 1",
        "run --dryrun -s slurm -cfg partition=gpu ./train.py --lr 1",
    ),
    (
        "run --dryrun -s sge --queue=all.q ./train.py",
        "run --dryrun -s sge -cfg queue=all.q ./train.py",
    ),
    ("run -s docker --dryrun ./train.py", "run -s docker --image python:3.12 --dryrun ./train.py"),
    # ---- jobs
    ("status helo", "status hello"),
    ("log fti", "log fit"),
    ("cancel hello", "cancel 'hello*'"),
    ("delete hello", "delete 'hello*'"),
    ("log hello/trainer", "log hello/echo"),
    ("fetch --list hello", None),
    ("fetch fit nofile", "fetch --list fit"),
    ("resume fit", None),
    ("points hello", None),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A project with a script, data, and a history of two jobs named hello and one named fit."""
    base = tmp_path_factory.mktemp("hints")
    directory = base / "work"
    (directory / "data").mkdir(parents=True)
    (directory / "functions.py").write_text("def add(a: int, b: int = 2) -> int:\n    return a + b\n")
    for name in ("train.py", "my script.py"):
        (directory / name).write_text(SCRIPT)
    cli = Cli(directory)
    cli.environ |= {"HOME": str(base), "SHUNTER_HOME": str(base / "home")}
    for _ in range(2):
        cli("run", "--name", "hello", "utils.echo")
    cli("run", "--name", "fit", "./train.py")
    return cli


def missing_words(typed: str, next_line: str, answer: str) -> list[str]:
    """Return the words of the next line that are neither in the first one nor in the answer."""
    known = set(re.split(r"[\s`,;()]+", answer)) | set(shlex.split(typed))
    known |= {word.strip("'\".?:") for word in known}
    return [
        word
        for word in shlex.split(next_line)
        if not {word, *word.split("/")[1:]} & known and shlex.quote(word) not in answer
    ]


def commands_in(answer: str) -> list[str]:
    """Return the complete command lines of an answer."""
    quoted = re.findall(r"`shunter ([^`]+)`", answer)
    whole = re.findall(r"(?m)^[^`\n]*?: shunter (.+)$", answer)
    return [line for line in [*quoted, *whole] if "JOB" not in line and line != "fetch"]


@pytest.mark.parametrize(("typed", "then"), CASES, ids=[case[0] for case in CASES])
def test_what_an_answer_says_works(project: Cli, typed: str, then: str | None) -> None:
    answer = project(*shlex.split(typed), code=None)
    assert answer.code in (2, 3, 5), answer
    if then is not None:
        assert missing_words(typed, then, answer.err) == [], answer
        project(*shlex.split(then))
    for line in commands_in(answer.err):
        if line != then:
            result = project(*shlex.split(line), code=None)
            assert not (result.code == 2 and "unknown" in result.err), (line, result)


def test_there_are_forty() -> None:
    assert len(CASES) >= 40
