"""`resume`, and `rerun` with other arguments, as people type them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

SCRIPT = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
print("has", sorted(path.name for path in folder.iterdir()), *sys.argv[1:], flush=True)
(folder / f"ck{len(list(folder.iterdir()))}").write_text("x")
if "--wait" in sys.argv:
    print("waits", flush=True)
    while not os.path.exists(sys.argv[-1]):
        pass
"""


@pytest.fixture
def project(cli: Cli) -> Cli:
    (cli.directory / "train.py").write_text(SCRIPT)
    (cli.directory / "plain.py").write_text("print(1)")
    return cli


def printed(cli: Cli, *words: str) -> list[str]:
    """Run a command that follows a job; return what the job printed."""
    return [line.partition(" ")[2] for line in cli(*words).err.splitlines() if "/" in line.split(" ")[0]]


def test_a_name_a_change_and_the_checkpoints_of_the_latest_job(project: Cli) -> None:
    assert "has [] --lr 1" in printed(project, "run", "./train.py", "--lr", "1")
    again = project("resume", "train", "--name", "next", "--", "--lr", "2")
    assert "has ['ck0'] --lr 2" in again.err
    assert "next-" in again.out
    assert "goes on from the checkpoints of local_cwd://shunter/train-" in again.err
    assert "has ['ck0'] --lr 2" in project("rerun", "next").err  # which began with those of the first
    assert "shunter rerun -- --lr 3" in project("rerun", "--lr", "3", code=2).err
    assert "--lr 3" in project("rerun", "--", "--lr", "3").err


@pytest.mark.slow
def test_a_job_that_runs_is_refused(project: Cli, tmp_path: Path) -> None:
    go = tmp_path / "go"
    handle = project("run", "--detach", "./train.py", "--wait", str(go)).out.strip()
    try:
        refused = project("resume", "train", code=3).err
        assert "which has not ended" in refused
        assert f"shunter cancel {handle.rpartition('/')[2]}" in refused
    finally:
        go.touch()
    project("wait", handle)
    assert "has ['ck0']" in project("resume", "train").err


def test_without_checkpoints_nothing_is_submitted(project: Cli) -> None:
    project("run", "./plain.py")
    project("run", "utils.echo")
    refused = project("resume", "plain", code=3).err
    assert "no files in" in refused
    assert "ml/plain-0/checkpoints" in refused
    assert "role 'echo' runs without the toolkit" in project("resume", "echo", code=3).err
    assert len(project("list", "--json").json) == 2


@pytest.mark.slow
def test_two_jobs_never_write_to_one_place(project: Cli, tmp_path: Path) -> None:
    go, place = tmp_path / "go", str(tmp_path / "place")
    project("run", "--checkpoints", place, "./train.py")
    second = project("resume", "--detach", "train", "--", "--wait", str(go)).out.strip()
    try:
        first = project("list", "--json").json[-1]["app_id"]
        refused = project("resume", first, code=3).err
        assert f"{second}, which has not ended, writes its checkpoints to the same place" in refused
    finally:
        go.touch()
    project("wait", second)
    assert sorted(path.name for path in Path(place).iterdir()) == ["ck0", "ck1"]


@pytest.mark.slow
def test_a_deleted_job_has_left_a_copy_or_the_new_one_says_so(project: Cli) -> None:
    project("run", "--name", "old", "./train.py")
    old = project("list", "--json").json[0]["app_id"]
    new = project("resume", "old", "--name", "new").out.strip()
    project("delete", old)
    assert "has ['ck0', 'ck1']" in project("resume", new).err
    failed = project("rerun", new, code=1).err  # begins with the checkpoints of `old`, as `new` did
    assert "Was the earlier job deleted?" in failed


@pytest.mark.slow
def test_the_points_of_a_sweep(project: Cli) -> None:
    sweep = project("sweep", "./train.py", "--lr", "1,2").out.strip().rpartition("/")[2]
    assert "has [] --lr 7" in project("rerun", f"{sweep}/train/1", "--", "--lr", "7").err
    assert "is what the sweep varies" in project("rerun", sweep, "--", "--lr", "7", code=2).err
    assert "has [] --lr 1 --seed 3" in project("rerun", sweep, "--", "--seed", "3").err
    both = project("resume", sweep).err
    assert "has ['ck0'] --lr 1" in both
    assert "has ['ck0'] --lr 2" in both
    one = project("resume", f"{sweep}/train/1")
    assert "has ['ck0'] --lr 2" in one.err
    assert "--lr 1" not in one.err
    assert "the points 0 to 1" in project("rerun", f"{sweep}/train/9", code=3).err


@pytest.mark.slow
def test_functions_components_and_commands_take_other_arguments(project: Cli) -> None:
    (project.directory / "lessons.py").write_text("def half(x: float) -> float:\n    return x / 2\n")
    project("run", "lessons:half", "--x", "3")
    project("rerun", "half", "--", "--x", "5")
    assert project("result", "-").out.strip() == "2.5"
    assert "unknown option --y" in project("rerun", "half", "--", "--y", "5", code=2).err
    project("run", "utils.echo", "--msg", "one")
    assert "echo/0 two" in project("rerun", "echo", "--", "--msg", "two").err
    project("run", "--", "echo", "--lr", "1")
    assert "--lr 2" in project("rerun", "-", "--", "--lr", "2").err


@pytest.mark.slow
def test_secrets_among_the_new_arguments_are_masked(project: Cli) -> None:
    project("run", "./train.py", "--api-key", "first-secret-value")
    again = project("rerun", "train", "--", "--api-key", "second-secret-value")
    shown = project("describe", "train").out + project("list", "--json").out
    assert "secret-value" not in shown
    assert "second-secret-value" not in again.err.replace("has [] --api-key second-secret-value", "")


@pytest.mark.slow
def test_which_job_a_name_means(project: Cli) -> None:
    ids = [project("run", "utils.echo", "--msg", str(k)).out.strip().rpartition("/")[2] for k in range(3)]
    log = project("log", "echo")
    assert log.out == "echo/0 2\n"
    assert log.err == f"echo: {ids[2]}, the latest of 3\n"
    assert project("log", ids[0]).err == ""
    for command in ("cancel", "delete"):
        refused = project(command, "echo", code=2).err
        assert "matches 3 jobs" in refused
        assert ids[0] in refused
    running = project("run", "--detach", "--name", "echo", "--", "sleep", "60").out.strip()
    assert f"asked {running} to stop" in project("cancel", "echo").err


def test_a_failure_shows_its_cause_once_below_the_log(project: Cli) -> None:
    (project.directory / "bad.py").write_text("raise SystemExit('no such luck')")
    shown = project("run", "./bad.py", code=1).err
    below = shown[shown.index(" FAILED after ") :]
    assert below.count("no such luck") == 1
    assert "why: bad/0" in below
