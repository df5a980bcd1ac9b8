"""Jobs that run from a frozen copy of a directory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from shunter.errors import BackendError, ConfigError, StateStoreError
from shunter.paths import view_dir
from shunter.schedulers.local_scheduler.scheduler import create_scheduler
from shunter.schedulers.supervisor import housekeeping, start
from shunter.schedulers.supervisor.housekeeping import SUBMISSION_SECONDS
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs import AppDef, AppState, Role
from shunter.specs.workspace import Workspace
from shunter.workspace import directory_shipment
from tests.workspace.conftest import take, write

from .conftest import Jobs, role


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    write(root, {"a.txt": "one", "train.sh": "#!/bin/sh\ncat a.txt; pwd\n", "sub/x": "", ".env": "A=1"})
    (root / "train.sh").chmod(0o755)
    return root


def run(jobs: Jobs, app: Role, workspace: Path | str, **cfg: object) -> str:
    app_id = jobs.scheduler.submit(AppDef("job", [app]), cfg, str(workspace))
    jobs._ids.append(app_id)
    return app_id


def views() -> list[str]:
    parent = Path(view_dir("x")).parent
    return sorted(path.name for path in parent.iterdir()) if parent.exists() else []


def program(name: str, **fields: object) -> Role:
    return Role("r", "", entrypoint=name, **fields)


def test_a_job_runs_in_a_copy(jobs: Jobs, project: Path) -> None:
    app_id = run(jobs, role("cat a.txt; ls -A; echo more >> a.txt; touch new; pwd"), project)
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED
    assert "".join(jobs.log(app_id)) == f"onea.txt\nsub\ntrain.sh\n{view_dir(app_id)}\n"
    assert (project / "a.txt").read_text() == "one"
    assert not (project / "new").exists()
    assert Path(view_dir(app_id), "a.txt").read_text() == "onemore\n"


def test_what_ran_is_what_was_submitted(jobs: Jobs, project: Path) -> None:
    fifo = project.parent / "go"
    os.mkfifo(fifo)
    app_id = run(jobs, role(f"read x < {fifo}; cat a.txt"), project)
    write(project, {"a.txt": "two"})
    fifo.write_text("go\n")
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED
    assert jobs.log(app_id) == ["one"]


def test_jobs_do_not_see_each_others_files(jobs: Jobs, project: Path) -> None:
    write(project, {"big": b"x" * 100_000})
    app_id = run(jobs, role("printf poison | dd of=big conv=notrunc 2>/dev/null; echo 2 > a.txt"), project)
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED
    app_id = run(jobs, role("head -c 6 big; cat a.txt"), project)
    jobs.end_of(app_id)
    assert jobs.log(app_id) == ["xxxxxxone"]


def test_programs_of_the_workspace(jobs: Jobs, project: Path) -> None:
    (project / "link").symlink_to("sub/../train.sh")
    (project / "bin").symlink_to("sub")
    write(project, {"sub/tool": "#!/bin/sh\necho tool\n"})
    (project / "sub" / "tool").chmod(0o755)
    for name, first in {
        "./train.sh": "one",
        "train.sh": "one",
        "link": "one",
        "./link": "one",
        "bin/tool": "tool\n",
    }.items():
        app_id = run(jobs, program(name), project, prepend_cwd=name == "link")
        assert jobs.end_of(app_id).state == AppState.SUCCEEDED
        assert jobs.log(app_id)[0].startswith(first)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("./missing.sh", "the workspace has no ./missing.sh"),
        ("./a.txt", r"./a.txt is not executable \(chmod \+x\?\)"),
        ("./sub", "./sub is a directory"),
        ("missing.sh", "there is no program 'missing.sh'"),
        ("a.txt", r"a.txt is not executable \(chmod \+x\?\)"),
        ("../project/train.sh", "the workspace has no ../project/train.sh"),
    ],
)
def test_programs_that_cannot_be_started(jobs: Jobs, project: Path, name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        run(jobs, program(name), project)
    assert views() == []


def test_a_dry_run_writes_nothing(jobs: Jobs, project: Path, home: Path) -> None:
    app = AppDef("job", [role("pwd", env={"ROOT": "${img_root}"})])
    info = jobs.scheduler.submit_dryrun(app, {}, str(project))
    assert info.request.cwd == view_dir(info.app_id)
    assert info.request.roles[0].replicas[0].env["ROOT"] == view_dir(info.app_id)
    plan = info.shipment.plan()
    assert plan["fingerprint"] == take(project).manifest.fingerprint
    assert (plan["files"], plan["secrets"]) == (3, [".env"])
    written = {path.relative_to(home).parts[:3] for path in home.rglob("*") if path.is_file()}
    assert written <= {("state", "workspaces", "index")}  # a memory, which no job depends on


def test_without_a_workspace_jobs_run_where_they_are_submitted(jobs: Jobs, home: Path) -> None:
    app_id, _ = jobs.run(role("pwd"))
    assert jobs.log(app_id) == [f"{os.getcwd()}\n"]
    assert not (home / "state" / "workspaces").exists()


def test_the_code_of_an_earlier_job(jobs: Jobs, project: Path) -> None:
    first = jobs.scheduler.submit_dryrun(AppDef("job", [role("cat a.txt")]), {}, str(project))
    jobs.scheduler.ship(first)
    write(project, {"a.txt": "two"})
    app_id = run(jobs, role("cat a.txt"), f"@{first.shipment.manifest.fingerprint[:12]}")
    jobs.end_of(app_id)
    assert jobs.log(app_id) == ["one"]


def test_delete_and_gc_remove_the_copy(jobs: Jobs, project: Path) -> None:
    write(project, {"shut/x": ""})
    (project / "shut").chmod(0o555)
    first, second = (run(jobs, role("exit 0"), project) for _ in range(2))
    for app_id in (first, second):
        jobs.end_of(app_id)
    assert views() == sorted([first, second])
    jobs.scheduler.delete(first)
    assert views() == [second]
    (item,) = housekeeping.leftovers(JobDirectory, 0)
    assert item.size > housekeeping.size_of(JobDirectory.of("none"))
    housekeeping.remove(JobDirectory, [item])
    assert views() == []


def test_copies_without_a_job_are_collected(
    jobs: Jobs, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipment = directory_shipment.DirectoryShipment(Workspace({str(project): ""}))
    shipment.store.add(take(project))
    directory_shipment.make_view(shipment, "interrupted")
    assert housekeeping.leftovers(JobDirectory, 0) == []
    now = time.time()
    monkeypatch.setattr(housekeeping.time, "time", lambda: now + SUBMISSION_SECONDS + 60)
    (item,) = housekeeping.leftovers(JobDirectory, 0)
    assert item.app_id == "interrupted"
    housekeeping.remove(JobDirectory, [item])
    assert views() == []


def test_a_job_that_cannot_start_leaves_no_copy(
    jobs: Jobs, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "PROGRAM", "/nowhere/main.py")
    with pytest.raises(BackendError, match="was not started"):
        run(jobs, role("exit 0"), project)
    assert views() == []


# ---- a workspace that changes while it is shipped


class Notes:
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.results: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    def advance(self, label: str, done: int, total: int) -> None: ...

    def output(self, line: str) -> None: ...

    def done(self, text: str) -> None:
        self.results.append(text)


def test_a_change_between_plan_and_shipping(jobs: Jobs, project: Path) -> None:
    info = jobs.scheduler.submit_dryrun(AppDef("job", [role("cat a.txt")]), {}, str(project))
    planned = info.shipment.manifest.fingerprint
    write(project, {"a.txt": "two"})
    jobs.scheduler.ship(info)
    assert info.shipment.manifest.fingerprint == take(project).manifest.fingerprint != planned
    app_id = jobs.scheduler.schedule(info)
    jobs._ids.append(app_id)
    jobs.end_of(app_id)
    assert jobs.log(app_id) == ["two"]


def test_what_is_shown_meanwhile(project: Path) -> None:
    os.mkfifo(project / "pipe")
    notes = Notes()
    workspace = Workspace({str(project): ""})
    scheduler = create_scheduler("told")
    app = AppDef("told", [Role("r", "", entrypoint="true")])
    scheduler.ship(scheduler.submit_dryrun(app, {}, workspace), notes)
    assert notes.steps == ["copying the workspace"]
    assert notes.results == [
        "left out, since it looks like a secret: .env (to ship it, name it in .shunterignore: !/.env)",
        "left out: pipe is a named pipe, which cannot be shipped",
    ]
    again = Notes()
    directory_shipment.DirectoryShipment(workspace).ship(again)
    assert again.steps == []


def test_content_that_was_lost_meanwhile(jobs: Jobs, project: Path) -> None:
    info = jobs.scheduler.submit_dryrun(AppDef("job", [role("cat a.txt")]), {}, str(project))
    jobs.scheduler.ship(info)
    store = info.shipment.store
    os.unlink(store.blob_path(info.shipment.manifest.by_path["a.txt"]))
    with pytest.raises(StateStoreError, match=r"content of a\.txt is missing"):
        jobs.scheduler.schedule(info)
    assert views() == []
    assert jobs.scheduler.list() == []
