"""The commands `sweep` and `points`: what they print, refuse and complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

TRAIN = """\
import sys
values = dict(word.split("=") for word in sys.argv[1:])
print('{"step": 1, "loss": %s}' % (float(values["lr"]) * 10))
sys.exit(values["seed"] == "1")
"""


def test_a_sweep_from_its_start_to_the_best(cli: Cli) -> None:
    (cli.directory / "train.py").write_text(TRAIN)
    found = cli("sweep", "--dryrun", "./train.py", "lr=0.5,0.1,0.3", "seed=0")
    assert [line.split() for line in found.out.splitlines()[1:5]] == [
        ["POINT", "lr"],
        ["0", "0.5"],
        ["1", "0.1"],
        ["2", "0.3"],
    ]
    found = cli("sweep", "--dryrun", "./train.py", "password=hunter2,hunter3", "lr=1", "seed=0")
    assert "hunter2" not in found.out
    assert "hunter3" not in found.out
    words = ("--parallel", "2", "./train.py", "lr=0.5,0.1,0.3", "seed=0,1")
    found = cli("sweep", "--wait", *words, code=1)
    assert "6 points, at most 2 at a time, from lr=0.5 seed=0 to lr=0.3 seed=1" in found.err
    rows = cli("points", "--best", "min:loss", "--json").json
    assert [(row["values"]["lr"], row["metric"]) for row in rows if row["state"] == "SUCCEEDED"] == [
        ("0.1", 1.0),
        ("0.3", 3.0),
        ("0.5", 5.0),
    ]
    lines = cli("plot", "loss", "--best", "min", PYTHONIOENCODING="ascii").out.splitlines()
    assert "lr=0.1 seed=0" in next(line for line in lines if line.startswith("A "))
    cli("rerun", "--failed", "--wait", "-", code=1)
    assert [row["values"]["seed"] for row in cli("points", "--json").json] == ["1"] * 3
    assert len(cli("list", "--json").json) == 2


@pytest.fixture
def one_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


#: Fails if another one runs at the same time.
ALONE = "mkdir {0}/alone && sleep 0.1 && rmdir {0}/alone"


def test_as_many_points_run_at_a_time_as_there_are_cpus(cli: Cli, one_cpu: None) -> None:
    found = cli("sweep", "--wait", "utils.sh", "--", "sh", "-c", ALONE.format(cli.directory), "n=1,2,3,4")
    assert "4 points, at most 1 at a time" in found.err


@pytest.mark.slow
def test_points_of_several_replicas_run_at_a_time_as_cpus_allow(cli: Cli, one_cpu: None) -> None:
    """The replicas of a point need each other; the points do not."""
    (cli.directory / "pair.sh").write_text(
        f"here={cli.directory}/$1\n"
        'if [ "$TORCHX_REPLICA_IDX" = 0 ]; then mkdir {0}/alone || exit 1; fi\n'.replace(
            "{0}", str(cli.directory)
        )
        + 'touch "$here.$TORCHX_REPLICA_IDX"\n'
        'until [ -e "$here.0" ] && [ -e "$here.1" ]; do sleep 0.02; done\n'
        f'if [ "$TORCHX_REPLICA_IDX" = 0 ]; then rmdir {cli.directory}/alone; fi\n'
    )
    words = ("train.script", "--script", "pair.sh", "--toolkit=false", "--num_replicas", "2", "--", "n=1,2,3")
    found = cli("sweep", "--wait", *words)
    assert "3 points, at most 1 at a time" in found.err


WRITES = """
import helper, sys
print(open("../beside.txt").read(), open("data/x").read(), open("large").read(1))
open("model.pkl", "w").write(sys.argv[1])
open("outputs/model", "w").write(sys.argv[1])
open(helper.__file__ + ".log", "w")
"""


@pytest.mark.parametrize("is_shipped", [False, True])
def test_each_point_keeps_its_own_files(cli: Cli, is_shipped: bool) -> None:
    project = cli.directory / "project"
    cli.directory = project
    for folder in ("data", "outputs"):
        (project / folder).mkdir(parents=True)
    (project.parent / "beside.txt").write_text("beside")
    for name, text in {"train.py": WRITES, "helper.py": "", "data/x": "x", "model.pkl": "old"}.items():
        (project / name).write_text(text)
    (project / "outputs/keep").touch()
    (project / "large").write_bytes(b"l" * (5 << 20))
    if is_shipped:
        (project / "train.py").write_text(WRITES.replace("../beside.txt", "data/x"))
    where = ("--workspace", ".") if is_shipped else ()
    cli("sweep", "--wait", *where, "./train.py", "seed=1,2,3,4")
    rows = cli("points", "--json").json
    folders = [Path(row["directory"]) for row in rows]
    for folder, row in zip(folders, rows, strict=True):
        for name in ("model.pkl", "outputs/model"):
            assert (folder / name).read_text() == f"seed={row['values']['seed']}"
        assert (folder / "helper.py.log").exists()
    assert len(set(folders)) == 4
    assert (project / "model.pkl").read_text() == "old"
    assert [path.name for path in (project / "outputs").iterdir()] == ["keep"]
    assert str(folders[0]) in cli("points").out
    status = cli("status", "--json").json
    assert str(folders[0]).startswith(status["results"])
    found = cli("gc", "-s", "local_cwd", "--older-than", "0s", "--json").json
    assert [item["results"] for item in found["found"]] == [True]


def test_more_gpus_than_this_machine_has_are_refused_before_anything_starts(cli: Cli) -> None:
    said = "asks for 2 GPUs at a time, but this machine has 0"
    (cli.directory / "train.py").write_text("print('up')")
    job = ("train.script", "--script", "train.py", "--gpu", "2")
    for words in (("run",), ("run", "--dryrun"), ("plan",), ("sweep",)):
        more = ("--", "seed=1,2") if words == ("sweep",) else ()
        found = cli(*words, *job, *more, code=None, CUDA_VISIBLE_DEVICES="")
        assert found.code == 3, found
        assert said in found.err
        assert "nvidia-smi -L" in found.err
    assert cli("list", "--all", "--json").json == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", "utils.echo", "--msg", "a"], "nothing varies"),
        (
            ["sweep", "utils.echo", "--msg", "a,b", "--parallel", "2"],
            "--parallel is an option of `shunter sweep`",
        ),
        (["sweep", "utils.echo", "--msg", "a,b", "--num_replicas", "1,x"], "num_replicas=x"),
        (["sweep", "--parallel", "0", "utils.echo", "--msg", "a,b"], "--parallel"),
        (
            ["sweep", "--exit-code-from", "echo/0", "utils.echo", "--msg", "a,b"],
            "its replicas are the points",
        ),
        (["sweep"], "no component given"),
        (["sweep", "--resume", "x", "utils.echo"], "--resume takes no component"),
        (["points", "--best", "loss"], "is not an order and a metric"),
        (["points", "--best", "min:loss"], "there is no latest job"),
    ],
)
def test_what_is_refused(cli: Cli, words: list[str], said: str) -> None:
    found = cli(*words, code=None)
    assert found.code
    assert said in found.err


def test_a_job_that_is_no_sweep(cli: Cli) -> None:
    cli("run", "--wait", "utils.echo")
    for words, said in (
        (["points"], "is not a sweep"),
        (["rerun", "--failed", "-"], "this job is not a sweep"),
        (["sweep", "--resume", "-"], "is a single job, so none of its points can be missing"),
    ):
        found = cli(*words, code=None)
        assert found.code
        assert said in found.err
