"""`shunter lab`: experiments under a budget that the launcher enforces."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import BudgetSpentError, UsageError
from shunter.lab import lab_file
from shunter.lab.budget import Budget
from shunter.lab.experiments import attempt, look, share
from shunter.lab.lab_file import KEPT, RUNNING, Experiment, Lab
from shunter.runner import Runner, get_runner
from tests.cli.conftest import Cli
from tests.schedulers.slurm.conftest import slurm  # noqa: F401 - a fixture

TRAIN = """\
import os, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rate = float(options.get("--lr", 0.1))
while "--until" in options and not os.path.exists(options["--until"]):
    time.sleep(0.05)
penalty = 1.0
print(f"loss={penalty - rate:.3f} accuracy={rate:.3f}" if rate < 1 else "diverged")
assert rate < 2, "the rate is too high"
"""


@pytest.fixture
def lab(cli: Cli) -> Cli:
    (cli.directory / "train.py").write_text(TRAIN)
    return cli


def begin(cli: Cli, *words: str, code: int = 0) -> Any:
    words = words or ("--budget", "12")
    line = ["lab", "start", "tune", "--json", "--best", "min:loss", *words, "./train.py", "--lr", "0.1"]
    result = cli(*line, code=code)
    return result.json if code < 2 else result


def change(cli: Cli, *words: str, code: int = 0) -> Any:
    result = cli("lab", "try", "tune", "to see", "--json", "--", *words, code=code)
    return result.json if code < 2 else result


def wait_until_it_runs(cli: Cli) -> str:
    """Return the job of the last experiment, once it has one."""
    for _ in range(600):
        last = cli("lab", "tune", "--json").json["experiments"][-1]
        if last["number"] and last["job"]:
            return str(last["job"])
        time.sleep(0.1)
    raise AssertionError("no experiment was submitted")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twelve_experiments_of_an_agent(lab: Cli) -> None:
    script = lab.directory / "train.py"
    begin(lab)
    for number in range(1, 13):
        if number % 3 == 0:  # a change of code
            script.write_text(re.sub(r"penalty = [\d.]+", f"penalty = 0.{number}", script.read_text()))
            outcome = change(lab)
            assert outcome["changes"] == ["train.py +1 -1"]
        else:
            outcome = change(lab, "--lr", f"0.{number % 5 + 1}")
        if outcome["outcome"] == "discarded":
            lab("lab", "restore", "tune")
    assert outcome["left"]["experiments"] == 0
    assert change(lab, "--lr", "0.6", code=6).err.startswith(
        "error: the budget of tune is spent: 12 experiments"
    )
    data = lab("lab", "journal", "tune", "--json").json
    assert [each["number"] for each in data["experiments"]] == list(range(13))
    kept = [each["value"] for each in data["experiments"] if each["outcome"] == "kept"]
    assert kept == sorted(kept, reverse=True)
    assert all(
        each["outcome"] == ("kept" if each["change"] < 0 else "discarded") for each in data["experiments"][1:]
    )
    book = lab("lab", "journal").out
    assert [line for line in book.splitlines() if line.startswith("## ")][1:] == [
        f"## {number}. to see" for number in range(1, 13)
    ]
    assert len(lab("list", "--json").json) == 13


def test_arguments_build_on_the_best_and_a_failure_says_why(lab: Cli) -> None:
    assert begin(lab)["value"] == 0.9
    kept = change(lab, "--lr", "0.3")
    assert (kept["outcome"], kept["before"], kept["left"]["experiments"]) == ("kept", 0.9, 11)
    missing = change(lab, "--lr", "1", code=1)
    assert missing["outcome"] == "failed"
    assert missing["reason"] == "it reported no metric 'loss'; it reported none"
    failed = change(lab, "--lr", "3", code=1)
    assert "the rate is too high" in failed["reason"]
    again = change(lab)
    assert (again["outcome"], again["value"], again["base"]) == ("discarded", 0.7, 1)
    assert again["command"] == "python ./train.py --lr 0.3"
    assert f"It ran `{again['command']}` as the job" in lab("lab", "journal").out
    assert again["left"]["experiments"] == 8


@pytest.mark.slow
def test_a_metric_that_nobody_prints_names_those_that_are_there(lab: Cli) -> None:
    line = ["lab", "start", "tune", "--best", "min:los", "--budget", "3", "./train.py"]
    assert "it reported no metric 'los'; it reported accuracy, loss" in lab(*line, code=1).out
    assert "baseline of tune failed" in change(lab, code=3).err
    begin(lab)  # in place of the one that failed
    assert "there is a lab 'tune'" in begin(lab, code=3).err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["lab", "start", "tune", "--budget", "3", "./train.py"], 2, "--best min:METRIC"),
        (
            ["lab", "start", "tune", "--best", "min:loss", "./train.py"],
            2,
            "before the script what may be spent",
        ),
        (
            ["lab", "start", "tune", "--best", "loss", "./train.py"],
            2,
            "Write --best min:loss or --best max:loss.",
        ),
        (
            ["lab", "start", "tune", "--bets", "min:l", "./train.py"],
            2,
            "shunter lab start tune ./train.py --bets",
        ),
        (["lab", "trie", "tune", "why", "--", "--lr", "3"], 2, "trie is not an action"),
        (["lab", "try", "a higher rate", "--", "--lr", "3"], 2, "the name of the lab, and why"),
        (
            ["lab", "start", "--best", "min:loss", "--budget", "3", "./train.py"],
            2,
            "name of the lab comes first",
        ),
        (
            ["lab", "start", "a/b", "--best", "min:loss", "--budget", "3", "./train.py"],
            2,
            "cannot be the name",
        ),
        (
            ["lab", "start", "t", "--best", "min:l", "--budget", "1gpu-hour", "./train.py"],
            3,
            "asks for no GPUs",
        ),
        (["lab", "start", "t", "--best", "min:l", "--budget", "1", "./absent.py"], 3, "absent.py"),
        (["lab", "try", "tune", "why"], 3, "there is no lab 'tune'"),
        (["lab", "try", "tune", "why", "--lr", "3"], 2, "shunter lab try tune why -- --lr 3"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    lab: Cli, words: list[str], code: int, message: str
) -> None:
    result = lab(*words, code=code)
    assert message in result.err
    assert lab("list", "--json").json == []
    assert lab_file.labs() == []


@pytest.mark.slow
def test_time_that_is_over_ends_experiments_and_refuses_others(lab: Cli) -> None:
    begin(lab, "--budget", "20s")
    data = lab("lab", "tune", "--json").json
    over = change(lab, "--until", "never", code=1)
    assert over["limit"] <= 20 - data["experiments"][0]["seconds"]
    assert "time" in over["reason"]
    assert "the budget of tune is spent: 20 s" in change(lab, code=6).err


@pytest.mark.slow
def test_two_at_once_cannot_overdraw(lab: Cli) -> None:
    begin(lab, "--budget", "1", "--parallel", "2")
    gate = lab.directory.parent / "gate"
    words = ("lab", "try", "tune", "at once", "--detach", "--", "--until", str(gate))
    several = [lab.start(*words, stdin=subprocess.DEVNULL) for _ in range(3)]
    for process in several:
        process.communicate()
    codes = sorted(process.returncode for process in several)
    assert codes == [0, 6, 6]
    gate.touch()


@pytest.mark.slow
def test_one_at_a_time_unless_more_are_allowed(lab: Cli) -> None:
    begin(lab)
    gate = lab.directory.parent / "gate"
    lab("lab", "try", "tune", "the first", "--detach", "--", "--until", str(gate))
    assert "1 of at most 1 experiments" in change(lab, code=3).err
    gate.touch()
    lab("wait", "tune")
    assert change(lab)["number"] == 2


@pytest.mark.slow
def test_a_client_that_is_killed_loses_nothing(lab: Cli) -> None:
    begin(lab)
    gate = lab.directory.parent / "gate"
    client = lab.start("lab", "try", "tune", "killed", "--", "--lr", "0.4", "--until", str(gate))
    job = wait_until_it_runs(lab)
    client.send_signal(signal.SIGKILL)
    client.communicate()
    gate.touch()
    lab("wait", job)
    last = lab("lab", "tune", "--json").json["experiments"][-1]
    assert (last["outcome"], last["value"], last["job"]) == ("kept", 0.6, job)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["before", "after"])
def test_killed_around_the_submission(lab: Cli, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    begin(lab)
    monkeypatch.chdir(lab.directory)
    child = os.fork()
    if child == 0:
        schedule = Runner.schedule

        def killed(self: Runner, info: Any) -> str:
            if stage == "after":
                schedule(self, info)
            os._exit(9)

        Runner.schedule = killed  # type: ignore[method-assign]
        with get_runner() as runner:
            attempt(runner, "tune", "killed", ["--lr", "0.4"])
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert lab_file.read("tune").running[0].handle == ""
    with get_runner() as runner:
        if stage == "before":
            assert len(look(runner, "tune").experiments) == 1
            return
        handle = next(each.handle for each in look(runner, "tune").experiments if each.number)
        runner.wait(handle)
        assert look(runner, "tune").experiments[-1].value == 0.6


@pytest.mark.slow
def test_restore_brings_the_best_code_back_and_loses_nothing(lab: Cli) -> None:
    script = lab.directory / "train.py"
    begin(lab)
    script.write_text(TRAIN.replace("penalty = 1.0", "penalty = 2.0"))
    (lab.directory / "helper.py").write_text("")
    worse = change(lab)
    assert (worse["outcome"], worse["changes"]) == ("discarded", ["helper.py added +0 -0", "train.py +1 -1"])
    (lab.directory / "notes.txt").write_text("mine")
    done = lab("lab", "restore", "tune")
    assert done.out == "wrote train.py\nremoved helper.py\n"
    assert "notes.txt" in done.err
    assert script.read_text() == TRAIN
    assert (lab.directory / "notes.txt").read_text() == "mine"
    script.write_text("half an idea")
    refused = lab("lab", "restore", "tune", code=3)
    assert "the present content of train.py; nothing was changed" in refused.err
    assert script.read_text() == "half an idea"
    forced = lab("lab", "restore", "tune", "--force")
    assert script.read_text() == TRAIN
    lab("lab", "restore", "tune", forced.err.split()[-1])
    assert script.read_text() == "half an idea"
    lab("lab", "restore", "tune", "1", "--force")
    assert "penalty = 2.0" in script.read_text()


@pytest.mark.slow
def test_another_directory_gets_the_code_before_it_has_experiments(lab: Cli, tmp_path: Path) -> None:
    begin(lab)
    started_in, lab.directory = lab.directory, tmp_path / "elsewhere"
    lab.directory.mkdir()
    assert f"Run the command in {started_in}" in change(lab, code=3).err
    assert lab("lab", "restore", "tune").out == "wrote train.py\n"
    assert change(lab, "--lr", "0.2")["outcome"] == "kept"


def test_gpu_hours_are_shared_among_those_that_may_run() -> None:
    def experiment(number: int, outcome: str, seconds: float) -> Experiment:
        return Experiment(number, "", [], None, "", 2, 1800, 0, "", "", outcome=outcome, seconds=seconds)

    lab = Lab("x", "k", "min", "loss", Budget(gpu_hours=4), 3, None, "", "", "", time.time())
    lab.experiments = [experiment(0, KEPT, 900), experiment(1, RUNNING, 0)]
    assert lab.left().gpu_hours == 4 - 0.5 - 1.0  # the running one has its share reserved
    assert share(lab, 2, time.time()) == 2.5 * 3600 / 2 / 2
    lab.limit = 600
    assert share(lab, 2, time.time()) == 600
    lab.experiments += [experiment(2, KEPT, 4500)]
    with pytest.raises(BudgetSpentError, match=r"1 GPU-hours are reserved"):
        share(lab, 2, time.time())


@pytest.mark.parametrize("text", ["0", "-1", "0h", "12,13", "soon", "", "3 hours", "0gpu-hours"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Budget.of_texts([text])


def test_budgets_as_people_write_them() -> None:
    assert Budget.of_texts(["12 experiments, 1h30m", "2 GPU-hours"]) == Budget(12, 2.0, 5400.0)
    assert json.loads(json.dumps(str(Budget(1, 0.5, 60)))) == "1 experiment, 0.5 GPU-hours, 1:00 min"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_lab_on_slurm(slurm, lab: Cli, tmp_path: Path) -> None:  # noqa: F811
    shared = f"shared_dir={tmp_path}/shared,partition=cpu"
    baseline = begin(lab, "--budget", "2,30m", "-s", "slurm", "-cfg", shared)
    assert baseline["job"].startswith("slurm://")
    assert baseline["limit"] <= 1800
    assert change(lab, "--lr", "0.3")["outcome"] == "kept"
    (lab.directory / "train.py").write_text(TRAIN.replace("penalty = 1.0", "penalty = 2.0"))
    assert change(lab)["outcome"] == "discarded"
    assert change(lab, code=6)
    lab("lab", "restore", "tune")
    assert (lab.directory / "train.py").read_text() == TRAIN
