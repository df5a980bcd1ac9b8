"""`shunter gc`: what jobs have left is listed, and removed by its age; what is of use stays."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shunter.schedulers.sagemaker_local_scheduler import housekeeping, object_cache
from shunter.schedulers.sagemaker_local_scheduler.submission import code_dir, default_output

from .conftest import Bucket, until
from .test_scheduler import shunter

if TYPE_CHECKING:
    from .conftest import Jobs

DAY = 86400.0


def grow_old(path: Path, seconds: float) -> None:
    """Let all files below a path have been written so long ago."""
    then = time.time() - seconds
    for where, folders, names in os.walk(path, topdown=False):
        for name in [*names, *folders, ""]:
            os.utime(os.path.join(where, name), (then, then), follow_symlinks=False)


def gc(*words: str) -> list[dict[str, Any]]:
    done = shunter("gc", "-s", "sagemaker_local", "--json", *words)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["found"]
    return found


def kinds(found: list[dict[str, Any]]) -> dict[str, str]:
    return {item["id"].partition("/")[0]: item["path"] for item in found}


def run(cwd: Path, *options: str) -> str:
    line = ["run", "-s", "sagemaker_local", "--wait", *(word for o in options for word in ("-cfg", o))]
    done = shunter(*line, "--workspace", ".", "utils.sh", "--image", "none", "pwd", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0].rpartition("/")[2]


@pytest.mark.slow
def test_results_and_code_go_by_their_age(processes: str, tmp_path: Path, home: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    mine = tmp_path / "mine"
    name, other = run(project), run(project, f"output_path={mine}")
    results = Path(default_output())
    assert sorted(path.name for path in results.iterdir()) == [name]
    assert gc("--older-than", "30d") == []
    grow_old(results, 40 * DAY)
    (code,) = Path(code_dir()).iterdir()
    os.utime(code, (0, time.time() - 40 * DAY))
    found = gc("--older-than", "30d")
    assert kinds(found) == {"results": str(results / name), "code": str(code)}
    (item,) = [item for item in found if item["id"].startswith("results/")]
    model = results / name / "output/model.tar.gz"
    assert item["size"] == model.stat().st_blocks * 512 > 0
    assert item["app_id"] == name
    assert item["age"] > 39 * DAY
    assert model.exists()  # nothing is removed without --yes
    gc("--older-than", "30d", "--yes")
    assert list(results.iterdir()) == []
    assert list(Path(code_dir()).iterdir()) == []
    # whatever their age: results that somebody wanted elsewhere
    grow_old(mine, 400 * DAY)
    assert {item["app_id"] for item in gc("--older-than", "0s")} == {name, other}
    gc("--older-than", "0s", "--yes")
    assert (mine / other / "output/model.tar.gz").exists()
    assert list((home / "state/sagemaker").iterdir()) == []


@pytest.mark.slow
def test_what_a_running_job_needs_stays(processes: str, tmp_path: Path, home: Path) -> None:
    (tmp_path / "README").touch()
    line = ["run", "--detach", "-s", "sagemaker_local", "--workspace", "."]
    line += ["utils.sh", "--image", "none", "sleep", "600"]
    handle = shunter(*line, cwd=tmp_path).stdout.split()[0]
    name = handle.rpartition("/")[2]
    folder = Path(default_output()) / name / "output"  # as if it had sent something before
    folder.mkdir(parents=True)
    (folder / "model.tar.gz").write_text("x")
    for path in (Path(default_output()), Path(code_dir())):
        grow_old(path, 40 * DAY)
    assert gc("--older-than", "0s", "--yes") == []
    assert (folder / "model.tar.gz").exists()
    assert len(list(Path(code_dir()).iterdir())) == 1
    assert shunter("cancel", "--wait", handle).returncode == 0
    assert set(kinds(gc("--older-than", "0s"))) == {"job", "results", "code"}


def test_somebody_elses_files_among_the_results_stay(processes: str, home: Path) -> None:
    results = Path(default_output())
    for path in ("notes/readme", "deep/job/output/model.tar.gz", "job-1/output/model.tar.gz", "file"):
        (results / path).parent.mkdir(parents=True, exist_ok=True)
        (results / path).write_text("x")
    assert kinds(gc("--older-than", "0s", "--yes")) == {"results": str(results / "job-1")}
    assert sorted(path.name for path in results.iterdir()) == ["deep", "file", "notes"]


@pytest.mark.slow
def test_data_of_s3_go_when_nobody_has_used_them(jobs: Jobs, processes: str, bucket: Bucket) -> None:
    from .conftest import file_channel

    bucket.put("data/old", b"o" * 1000)
    bucket.put("data/new", b"n" * 10)
    for key in ("data/old", "data/new"):
        jobs.run("pass", channels=[file_channel("d", bucket.uri(key))])
    (old,) = [entry for entry in object_cache.entries() if entry.size == 1000]
    facts = os.stat(old.path)
    os.utime(old.path, (time.time() - 40 * DAY, facts.st_mtime))
    found = gc("--older-than", "30d")
    assert [(item["id"].partition("/")[0], item["size"]) for item in found] == [("data", 1000)]
    gc("--older-than", "30d", "--yes")
    assert [entry.size for entry in object_cache.entries()] == [10]
    os.utime(next(object_cache.entries()).path, (time.time() - 40 * DAY, facts.st_mtime))
    jobs.run("pass", channels=[file_channel("d", bucket.uri("data/new"))])  # which uses it
    assert gc("--older-than", "30d") == []


def test_what_a_kill_has_left_half_done_goes(processes: str, home: Path) -> None:
    for name in (".new-abc", ".old-def"):
        (home / "state/sagemaker" / name).mkdir(parents=True)
        (home / "state/sagemaker" / name / "state.json").write_text("{}")
    assert housekeeping.leftovers(3600.0) == []
    gc("--older-than", "0s", "--yes")
    assert list((home / "state/sagemaker").iterdir()) == []


def test_a_job_that_began_to_need_it_meanwhile_keeps_it(
    jobs: Jobs, processes: str, tmp_path: Path, home: Path
) -> None:
    key = "c0de" * 16
    (Path(code_dir()) / key).mkdir(parents=True)
    (Path(code_dir()) / key / "a").write_text("a")
    found = housekeeping.leftovers(0.0)
    assert [item.id for item in found] == [f"code/{key}"]
    from .conftest import file_channel

    channel = file_channel("d", f"file://{code_dir()}/{key}")
    name = jobs.start("print('up', flush=True); time.sleep(600)", channels=[channel])
    jobs.says(name, "up")
    assert housekeeping.remove(found) == 0
    assert (Path(code_dir()) / key / "a").exists()
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    until(lambda: jobs.describe(name)["TrainingJobStatus"] == "Stopped")
