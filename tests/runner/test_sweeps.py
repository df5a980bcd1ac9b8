"""Sweeps: what words mean, that one job runs every point, and what is done with those that failed."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.components.finder import get_component
from shunter.errors import ComponentArgumentError, ConfigError, UsageError
from shunter.runner import get_runner
from shunter.specs.submission import Submission
from shunter.specs.sweep_points import SELECT, Point, label_of, own_command, points_of
from shunter.sweeps import run_sweep
from shunter.sweeps.grids import grid, points_from_words, values_of
from shunter.sweeps.planning import plan_sweep

SCRIPT = """\
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr")
parser.add_argument("--note", default="")
parser.add_argument("--seed", type=int)
args = parser.parse_args()
print(f"lr={args.lr} seed={args.seed} note={args.note!r}")
sys.exit(3 if args.seed == 1 else 0)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("train.py").write_text(SCRIPT)
    return "./train.py"


def points(component: str, *words: str, sample: int | None = None, seed: int = 0) -> list[Point]:
    return points_from_words(get_component(component), words, sample, seed)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3,1e-4", ["1e-3", "1e-4"]),
        ("0..3", ["0", "1", "2", "3"]),
        ("3..1,7", ["3", "2", "1", "7"]),
        ("0..10..5", ["0", "5", "10"]),
        ("-1..1", ["-1", "0", "1"]),
        ("../data", ["../data"]),
        ('"a,b",c', ["a,b", "c"]),
        ("'0..9'", ["0..9"]),
        ("[64,64],[128]", ["[64,64]", "[128]"]),
        ('{"a": 1, "b": "x]"}', ['{"a": 1, "b": "x]"}']),
        ("a,,b", ["a", "", "b"]),
        ("it's,fine", ["it's", "fine"]),
        ("(a,b", ["(a,b"]),
        ("@there-is-no-such-file", ["@there-is-no-such-file"]),
    ],
)
def test_values_of_a_text(text: str, values: list[str]) -> None:
    assert values_of(text) == values


def test_values_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "values"
    path.write_text("# rates\n1e-3\n\n a,b \n")
    assert values_of(f"@{path},0") == ["1e-3", "a,b", "0"]
    path.write_text("\n")
    with pytest.raises(UsageError, match="there are no values"):
        values_of(f"@{path}")


@given(st.lists(st.text("ab.19-", min_size=1).filter(lambda t: ".." not in t), min_size=2, max_size=5))
def test_what_has_nothing_special_is_split_at_commas(values: list[str]) -> None:
    assert values_of(",".join(values)) == values


def test_all_combinations_in_order(script: str) -> None:
    found = points(script, "--lr", "a,b", "--note=x,y", "--fixed", "1", "lr.decay=1,2")
    assert [label_of(vars(point)) for point in found] == [
        f"lr={lr} note={note} lr.decay={decay}" for lr, note, decay in itertools.product("ab", "xy", "12")
    ]
    assert found[-1].args == ["--lr", "b", "--note=y", "--fixed", "1", "lr.decay=2"]


def test_lists_of_the_component_are_left_alone() -> None:
    words = "--env A=1,B=2 --cpu 1,2 --script train.py -- --env x,y a,b -c 1,2"
    found = points("train.script", *words.split())
    assert [point.values for point in found] == [{"cpu": cpu, "env": env} for cpu in "12" for env in "xy"]
    assert " ".join(found[0].args) == "--env A=1,B=2 --cpu 1 --script train.py -- --env x a,b -c 1,2"


def test_a_sample_is_the_same_for_the_same_seed(script: str) -> None:
    words = ("--lr", "0..999", "--seed", "0..999999")
    with pytest.raises(UsageError, match="a range has from 1 to"):
        points(script, *words)
    words = ("--lr", "0..999", "--seed", "0..999")
    with pytest.raises(UsageError, match="1,000,000 points"):
        points(script, *words)
    first, again, other = (points(script, *words, sample=5, seed=seed) for seed in (1, 1, 2))
    assert len(first) == 5
    assert first == again != other


def test_nothing_varies(script: str) -> None:
    with pytest.raises(UsageError, match="nothing varies"):
        points(script, "--lr", '"1,2"', "a,b")


def test_values_that_are_given_twice(script: str) -> None:
    with pytest.raises(UsageError, match="values of seed are given 2 times"):
        points(script, "--seed", "1,2", "--lr", "1,2", "--seed", "3,4")


def test_the_grid_of_python() -> None:
    found = grid({"msg": ["a", "b"], "num_replicas": [1]}, image="x")
    assert found[1] == Point({"msg": "b", "num_replicas": "1"}, {"image": "x", "msg": "b", "num_replicas": 1})


def test_one_job_runs_each_point_and_the_failed_ones_again(script: str) -> None:
    note = """it's "$HOME" `id`; $$"""
    with get_runner() as runner:
        found = [
            Point({"seed": str(seed)}, ["--seed", str(seed), "--lr", "1e-3", "--note", note])
            for seed in range(3)
        ]
        handle = run_sweep(runner, script, found, "local_cwd", parallel=2)
        status = runner.wait(handle)
        assert [each.exit_code for each in status.replicas()] == [0, 3, 0]
        lines = ["".join(runner.log_lines(handle, "train", k)).splitlines()[0] for k in range(3)]
        assert lines == [f"lr=1e-3 seed={seed} note={note.replace('$$', '$')!r}" for seed in range(3)]
        again = runner.rerun(handle, only_failed=True)
        assert [each.exit_code for each in runner.wait(again).replicas()] == [3]
        assert points_of(runner.describe(again).roles[0].metadata)[0]["values"] == {"seed": "1"}
        other = run_sweep(runner, "utils.echo", grid({"msg": ["a", "b"]}), "local_cwd")
        runner.wait(other)
        assert [line for k in (0, 1) for line in runner.log_lines(other, "echo", k)] == ["a\n", "b\n"]
        with pytest.raises(ConfigError, match="no point of the sweep has failed"):
            runner.rerun(other, only_failed=True)


def test_the_shell_that_stands_for_a_point_runs_its_command(script: str, tmp_path: Path) -> None:
    """What clusters run: the table by the variable of the replica."""
    import subprocess

    with get_runner() as runner:
        words = [["a b", "$x", "'"], ["--flag", ""]]
        found = [
            Point({"n": str(n)}, ["sh", "-c", 'printf "%s|" "$@"', "sh", *each])
            for n, each in enumerate(words)
        ]
        plan = plan_sweep(runner, Submission(component="utils.sh", scheduler="local_cwd"), found)
        role = plan.info.app.roles[0]
        assert (role.entrypoint, role.args[1]) == ("sh", SELECT)
        for index, each in enumerate(words):
            done = subprocess.run(
                ["sh", *role.args], env={"TORCHX_REPLICA_IDX": str(index), "PATH": "/usr/bin:/bin"},
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert done.stdout == "".join(f"{word}|" for word in each)
            own = own_command(role.entrypoint, role.args, index)
            assert subprocess.check_output(own, text=True) == done.stdout


def test_every_point_is_checked_before_anything_is_submitted(script: str) -> None:
    with get_runner() as runner:
        wrong = [Point({"cpu": "1"}, {"msg": "a"}), Point({"cpu": "x"}, {"cpus": 1})]
        with pytest.raises(ConfigError, match=r"cpu=x: utils.echo: .*cpus"):
            run_sweep(runner, "utils.echo", wrong, "local_cwd")
        with pytest.raises(ComponentArgumentError, match="missing: --script"):
            run_sweep(runner, "train.script", grid({"cpu": [1, 2]}), "local_cwd")
        assert runner.jobs() == []


@pytest.mark.parametrize("scheduler", ["slurm", "lsf", "sge", "aws_batch", "kubernetes"])
def test_backends_with_arrays_get_one(scheduler: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if scheduler == "aws_batch":
        pytest.importorskip("botocore")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    cfg = {"aws_batch": {"queue": "q"}}.get(scheduler, {})
    parallel = None if scheduler == "aws_batch" else 2
    with get_runner() as runner:
        found = grid({"msg": ["one", "two", "three"]}, image="busybox:1")
        submission = Submission(component="utils.echo", scheduler=scheduler, options=cfg)
        text = repr(plan_sweep(runner, submission, found, parallel).info)
    words = {
        "slurm": ["#SBATCH --array=0-2%2", "sweep 'echo one'"],
        "lsf": ["[1-3]%2", "sweep 'echo one'"],
        "sge": ["-t 1-3", "-tc 2", "sweep 'echo one'"],
        "aws_batch": ["arrayProperties", "echo one"],
        "kubernetes": ["backoffLimitPerIndex", "echo one"],
    }
    assert [word for word in words[scheduler] if word not in text] == []


def test_points_under_the_toolkit_store_apart(script: str, tmp_path: Path) -> None:
    Path("save.py").write_text(
        "import os, sys; open(os.path.join(os.environ['SM_MODEL_DIR'], 'm'), 'w').write(sys.argv[2])\n"
    )
    with get_runner() as runner:
        output = f"file://{tmp_path}/out"
        words = ["--output", output, "--script", "save.py", "--", "--n"]
        found = [Point({"n": n}, [*words, n]) for n in "12"]
        handle = run_sweep(runner, "train.script", found, "local_cwd")
        status = runner.wait(handle)
        assert status.state.name == "SUCCEEDED", status
        app_id = handle.rpartition("/")[2]
        assert status.results == f"file://{tmp_path}/out/{app_id}-*/output"
    assert len(list((tmp_path / "out").glob(f"{app_id}-[01]/output/*"))) == 2


def test_a_sample_of_more_points_than_a_machine_counts(script: str) -> None:
    words = [word for number in range(6) for word in (f"--a{number}", "0..9999")]
    assert len(points(script, *words, sample=3)) == 3


def test_the_label_of_a_point_masks_secrets() -> None:
    label = label_of({"values": {"password": "hunter2hunter2", "lr": "1"}})
    assert label == "password=<redacted:password> lr=1"
