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
    ("run 'python train.py --lr 1'", "run python train.py --lr 1"),
    ("run 'echo a; echo b'", "run -- sh -c 'echo a; echo b'"),
    ("run 'lambda x: x'", "run -- python -c 'lambda x: x'"),
    ("run 'functions.py:<lambda>' --a 1", "run functions.py:add --a 1"),
    ("run .", "run train.py"),
    ("run package", "run package/__main__.py"),
    ("run notebook.ipynb", None),
    ("run ./notes.txt", "run -- cat ./notes.txt"),
    ("init 'my script.py' --cpu 1", "run --cpu 1 'my script.py'"),
    ("init trian.py --dry-run", "init train.py --dry-run"),
    # ---- commands
    ("runn ./train.py", "run ./train.py"),
    ("sttaus hello", "status hello"),
    ("lgo hello", "log hello"),
    ("lits", "list"),
    ("list --sort time", None),
    ("gc --older 3d", "gc --older-than 3d"),
    ("exec hello ls", None),
    ("exec -it hello ls", "exec hello ls"),
    ("delete -f spare", "delete spare"),
    ("stop -t 5 over", "cancel over"),
    ("status hello fit", "status hello"),
    ("list --running", "list"),
    # ---- at another place
    ("forward 6006 hello", "forward hello 6006"),
    ("forward hello", "forward hello 6006"),
    ("plot fit loss", "plot loss fit"),
    ("fetch weights.pt fit", "fetch fit weights.pt"),
    ("fetch fit weights.pt", "fetch fit model/weights.pt"),
    ("log echo hello", "log hello echo"),
    ("metrics fit loss", "metrics fit --name loss"),
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
    ("run -J x ./train.py", "run --name x ./train.py"),
    ("run -N 1 ./train.py", "run --nodes 1 ./train.py"),
    ("run -d ./train.py", "run --detach ./train.py"),
    ("run -v ./data:/data ./train.py", "run --mounts ./data:/data ./train.py"),
    (
        "run --mounts ./data:/data:ro ./train.py",
        "run --mounts type=bind,src=./data,dst=/data,readonly ./train.py",
    ),
    ("run --rm ./train.py", "run ./train.py"),
    ("run -it ./train.py", "run ./train.py"),
    ("run --rm utils.echo", "run utils.echo"),
    ("run --exclusive 1 utils.echo", "run utils.echo"),
    ("run --ntasks-per-node=2 ./train.py", "run --processes=2 ./train.py"),
    ("run --processes=2 ./train.py", "run --processes=2 --distribution torchrun ./train.py"),
    ("run --depends-on fit ./train.py", "run --after fit ./train.py"),
    ("run --backend local ./train.py", "run --scheduler local ./train.py"),
    # ---- values
    ("run --mem 16X ./train.py", "run --mem 16G ./train.py"),
    ("run --time 1 ./train.py", "run --time 1h ./train.py"),
    ("run --time 1hour ./train.py", "run --time 1h ./train.py"),
    ("run --cpu two ./train.py", "run --cpu 2 ./train.py"),
    ("run --retries x ./train.py", "run --retries 2 ./train.py"),
    ("run --env A ./train.py", "run --env A=1 ./train.py"),
    ("run --cpu -1 ./train.py", "run --cpu 2 ./train.py"),
    ("run -s slurm --dryrun --gpu all ./train.py", "run -s slurm --dryrun --gpu 2 ./train.py"),
    ("run --mem 16 ./train.py", "run --mem 16G ./train.py"),
    ("run --retry oom ./train.py", "run --retry oom=2 ./train.py"),
    ("run --retry 3 ./train.py", "run --retries 3 ./train.py"),
    ("run --after fit:anny ./train.py", "run --after fit:any ./train.py"),
    ("run --after afterok:fit ./train.py", "run --after fit ./train.py"),
    ("log --follow=true hello", "log --follow hello"),
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
    ("cancel all", "cancel '*'"),
]

#: What comes next only leads to a further hint, which has its own case or test.
NEXT_HINTS = {
    "exec hello ls",
    "fetch fit weights.pt",
    "forward hello 6006",
    "run --mounts ./data:/data ./train.py",
    "run --processes=2 ./train.py",
    "run --processes=2 --distribution torchrun ./train.py",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A project with a script, data, and a history of two jobs named hello and one named fit."""
    base = tmp_path_factory.mktemp("hints")
    directory = base / "work"
    (directory / "data").mkdir(parents=True)
    (directory / "functions.py").write_text("def add(a: int, b: int = 2) -> int:\n    return a + b\n")
    for name in ("train.py", "my script.py"):
        (directory / name).write_text(SCRIPT)
    (directory / "package").mkdir()
    (directory / "package" / "__main__.py").write_text("")
    for name in ("notebook.ipynb", "notes.txt"):
        (directory / name).write_text("")
    cli = Cli(directory)
    cli.environ |= {"HOME": str(base), "SHUNTER_HOME": str(base / "home")}
    for _ in range(2):
        cli("run", "--name", "hello", "utils.echo")
    for name in ("fit", "spare", "over"):
        cli("run", "--name", name, "./train.py")
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


@pytest.mark.parametrize(
    ("typed", "then"),
    [
        pytest.param(*case, id=case[0], marks=[pytest.mark.slow] if number % 4 else [])
        for number, case in enumerate(CASES)
    ],
)
def test_what_an_answer_says_works(project: Cli, typed: str, then: str | None) -> None:
    answer = project(*shlex.split(typed), code=None)
    assert answer.code in (2, 3, 5), answer
    if then is not None:
        assert missing_words(typed, then, answer.err) == [], answer
        if then not in NEXT_HINTS:
            project(*shlex.split(then))
    for line in commands_in(answer.err):
        if line != then:
            result = project(*shlex.split(line), code=None)
            assert not (result.code == 2 and "unknown" in result.err), (line, result)


def test_there_are_forty() -> None:
    assert len(CASES) >= 40
