"""Scripts with channels and results: the toolkit is started for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shunter.components.train import script
from shunter.errors import ConfigError
from shunter.runner import Runner
from shunter.schedulers.api import Scheduler
from shunter.schedulers.capabilities import Capabilities
from shunter.schedulers.toolkit_start import start_toolkits
from shunter.specs import AppDef, BindMount, Role
from shunter.workspace.toolkit_files import ToolkitPlace
from tests.runner.fake_scheduler import FakeScheduler


class Containers(FakeScheduler):
    """Runs containers on this machine."""

    capabilities = Capabilities(is_local=True)

    def _toolkit_place(self, role: Role) -> ToolkitPlace | None:
        return ToolkitPlace(("python3", "/opt/t.pyz"))


class Elsewhere(Containers):
    capabilities = Capabilities()


class Native(FakeScheduler):
    capabilities = Capabilities(reads_training_specs=True)


def started(app: AppDef, scheduler: Scheduler[object]) -> tuple[Role, dict[str, object]]:
    start_toolkits(app, scheduler.backend, scheduler.capabilities, scheduler._toolkit_place)
    (role,) = app.roles
    return role, json.loads(role.env.get("SHUNTER_JOB", "{}"))


def training() -> AppDef:
    return script(
        "--lr",
        "0.1",
        "a b",
        script="train.py",
        num_replicas=2,
        channel={"training": "/data/set", "testing": "s3://b/p"},
        output="out",
        metric={"loss": "loss ([0-9.]+)$", "acc": None},
        distribution="mpi",
        nproc=3,
    )


def test_the_document_says_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    role, document = started(training(), Elsewhere("s"))
    assert (role.entrypoint, role.args) == ("python3", ["/opt/t.pyz", "train"])
    assert document == {
        "version": 1,
        "name": "${app_id}",
        "code": ".",
        "program": "train.py",
        "arguments": ["--lr", "0.1", "a b"],
        "host_count": 2,
        "channels": {"training": "/data/set", "testing": "s3://b/p"},
        "output": {"uri": str(tmp_path / "out")},
        "metrics": [{"name": "loss", "regex": "loss ([0-9.]+)$"}, {"name": "acc"}],
        "distribution": {"kind": "mpi", "processes_per_host": 3},
    }
    assert role.mounts == []


def test_containers_of_this_machine_see_its_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = training()
    app.roles[0].mounts = [BindMount("/elsewhere", "/data", True)]
    role, _ = started(app, Containers("s"))
    out = str(tmp_path / "out")
    assert role.mounts == [BindMount("/elsewhere", "/data", True), BindMount(out, out, False)]
    role, _ = started(training(), Containers("s"))
    assert role.mounts == [BindMount("/data/set", "/data/set", True), BindMount(out, out, False)]


def test_a_script_runs_under_the_toolkit_unless_that_is_turned_off() -> None:
    role, document = started(script("--lr", "1", script="train.py"), Elsewhere("s"))
    assert (role.args, document["arguments"]) == (["/opt/t.pyz", "train"], ["--lr", "1"])
    assert role.env["SHUNTER_PYTHON"] == "python"
    role, document = started(script("--lr", "1", script="train.py", toolkit=False), FakeScheduler("s"))
    assert (role.entrypoint, role.args, document) == ("python", ["train.py", "--lr", "1"], {})


@pytest.mark.parametrize(
    ("first_line", "program"), [("#!/bin/bash -e", ["/bin/bash", "-e"]), ("echo", ["sh"]), (None, ["sh"])]
)
def test_a_shell_script_is_no_python(
    first_line: str | None, program: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if first_line is not None:
        Path("run.sh").write_text(f"{first_line}\n")
    (role,) = script("a b", script="run.sh", toolkit=False).roles
    assert [role.entrypoint, *role.args] == [*program, "run.sh", "a b"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"toolkit": False, "channel": {"a": "/d"}, "output": "/o"}, "channels and output need the toolkit"),
        ({"metric": {"a": "("}}, "the regular expression '\\(' is not valid: missing"),
        ({"metric": {"a": "x"}}, "no parentheses"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        script(script="train.py", **asked)  # type: ignore[arg-type]


def test_schedulers_that_carry_it_out_themselves_are_left_alone() -> None:
    role, _ = started(training(), Native("s"))
    assert role.entrypoint == "python"
    assert role.metadata["train"]["program"] == "train.py"


def test_what_cannot_be_brought_is_refused(runner: Runner) -> None:
    with pytest.raises(ConfigError, match="cannot provide the toolkit"):
        runner.dryrun(training(), "fake")
    with pytest.raises(ConfigError, match="need a distribution"):
        script(script="train.py", nproc=2)
