"""What happens when the disk is full or must not be written to, and how old jobs are removed."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from shunter.errors import BackendError, StateStoreError
from shunter.runner import get_runner
from shunter.schedulers.supervisor import housekeeping
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs import AppState

from .conftest import role, wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of half a megabyte."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "shunter-test", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@needs_root
def test_job_that_fills_the_disk_still_ends_properly(jobs, small_disk, monkeypatch):
    monkeypatch.setenv("SHUNTER_HOME", str(small_disk))
    app_id, response = jobs.run(role("echo first; head -c 10000000 /dev/zero; echo $?; exit 5"))
    assert response.state == AppState.FAILED
    assert [r.exit_code for r in response.to_status().replicas()] == [5]
    assert jobs.log(app_id)[0] == "first\n"


@needs_root
def test_full_disk_refuses_the_job_and_leaves_nothing(jobs, small_disk, monkeypatch):
    monkeypatch.setenv("SHUNTER_HOME", str(small_disk))
    jobs.run(role("exit 0"))
    subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/filler"], check=False, capture_output=True)
    with pytest.raises(StateStoreError, match="No space left"):
        jobs.submit(role("exit 0"))
    assert [row.state for row in jobs.scheduler.list()] == [AppState.SUCCEEDED]


@needs_root
def test_history_on_a_full_disk(small_disk, monkeypatch):
    """What looks and what removes works; what begins a job says why it cannot."""
    monkeypatch.setenv("SHUNTER_HOME", str(small_disk))
    with get_runner("test") as runner:
        over, running = (
            runner.run_component("utils.sh", words, "local_cwd") for words in (["true"], ["sleep", "300"])
        )
        runner.wait(over)
    held = [
        "cp",
        "--archive",
        "--link",
        JobDirectory.of(over.rpartition("/")[2]).path,
        str(small_disk / "held"),
    ]
    subprocess.run(held, check=True)  # so that removing the job makes no room
    with get_runner("test") as runner:
        subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/filler"], check=False, capture_output=True)
        assert {row.app_handle for row in runner.list("local_cwd")} == {over, running}
        with pytest.raises(StateStoreError, match=r"the disk is full|No space left"):
            runner.run_component("utils.sh", ["true"], "local_cwd")
        with pytest.warns(RuntimeWarning, match="is deleted, but lists still show it"):
            runner.delete(over)
        assert runner.status(over).state == AppState.SUCCEEDED, "as last seen"
        runner.cancel(running)
        assert runner.wait(running).state == AppState.CANCELLED


@needs_root
def test_reading_from_a_read_only_disk(jobs, small_disk, monkeypatch):
    monkeypatch.setenv("SHUNTER_HOME", str(small_disk))
    app_id, _ = jobs.run(role("echo hi"))
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    wait_until(lambda: subprocess.run(remount, check=False).returncode == 0, "a disk that is not busy")
    try:
        assert jobs.scheduler.describe(app_id).state == AppState.SUCCEEDED
        assert jobs.log(app_id) == ["hi\n"]
        with pytest.raises(StateStoreError, match="Read-only"):
            jobs.submit(role("exit 0"))
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)


def test_log_dir_that_cannot_be_made(jobs, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match=r"Not a directory|File exists"):
        jobs.submit(role("exit 0"), log_dir=str(tmp_path / "file"))
    assert jobs.scheduler.list() == []


@needs_root
def test_replicas_without_room_for_their_logs_never_run(jobs, small_disk):
    subprocess.run(["mount", "-o", "remount,nr_inodes=40", str(small_disk)], check=True)
    app_id, response = jobs.run(role("echo hi", num_replicas=30), log_dir=str(small_disk))
    assert response.state == AppState.FAILED
    first, *_, last = response.to_status().replicas()
    assert (first.state, last.state) == (AppState.SUCCEEDED, AppState.FAILED)
    assert (
        last.reason
        == f"could not be started: cannot write {small_disk}/{app_id}/r/29: No space left on device"
    )
    assert jobs.log(app_id) == ["hi\n"]
    assert jobs.log(app_id, k=29) == []


def test_more_replicas_than_files_may_ever_be_open(jobs, monkeypatch):
    spawn = os.posix_spawn

    def limited(program, words, *rest, **options):
        limits = 'ulimit -Sn 120 && ulimit -Hn 120 && exec "$@"'
        return spawn("/bin/sh", ["sh", "-c", limits, "sh", program, *words[1:]], *rest, **options)

    monkeypatch.setattr(os, "posix_spawn", limited)
    with pytest.raises(BackendError, match=r"Too many open files \(ulimit -n\)"):
        jobs.submit(role("exit 0", num_replicas=50))
    assert jobs.scheduler.list() == []


REPLICAS = '{"host": "h", "boot_id": "b", "state": "RUNNING", "roles": %s}'
DAMAGED = ["", "{", "[1]", b"\x80\xff\0", None, '{"app": 1}']
DAMAGED_STATES = [
    *DAMAGED,
    REPLICAS % '"x"',
    REPLICAS % '[{"role": "r", "replicas": [{"id": 0, "state": "?"}]}]',
]


@pytest.mark.parametrize(
    ("name", "content"),
    [*(("job.json", each) for each in DAMAGED), *(("state.json", each) for each in DAMAGED_STATES)],
)
def test_a_damaged_document_concerns_its_job_alone(jobs, name, content):
    (good, _), (app_id, _) = jobs.run(role("exit 0")), jobs.run(role("echo up"))
    path = Path(JobDirectory.of(app_id).file(name))
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    states = {row.app_id: row.state for row in jobs.scheduler.list()}
    state = AppState.UNKNOWN if name == "state.json" else AppState.SUCCEEDED
    assert states == {good: AppState.SUCCEEDED, app_id: state}
    assert jobs.scheduler.describe(app_id).state == state
    if name == "job.json":
        with pytest.raises(StateStoreError, match=r"job\.json is damaged"):
            jobs.log(app_id)
    else:
        assert jobs.log(app_id) == ["up\n"]
    jobs.scheduler.delete(app_id)
    assert [row.app_id for row in jobs.scheduler.list()] == [good]


@pytest.mark.parametrize("damaged", ['{"state": "SUCC', "{}", '{"state": "BOGUS"}', '{"state": "RUNNING"}'])
def test_damaged_state_is_not_a_failure(jobs, damaged):
    app_id, _ = jobs.run(role("exit 0"))
    job = JobDirectory.of(app_id)
    with open(job.file("state.json"), "w") as file:
        file.write(damaged)
    response = jobs.scheduler.describe(app_id)
    assert response.state == AppState.UNKNOWN
    assert "cannot be read" in response.msg
    assert jobs.scheduler.wait(app_id) == response
    assert {row.app_id: row.state for row in jobs.scheduler.list()}[app_id] == AppState.UNKNOWN


def test_garbage_is_what_ended_long_ago(jobs, tmp_path):
    old, _ = jobs.run(role("head -c 100000 /dev/zero"), log_dir=str(tmp_path / "logs"))
    new, _ = jobs.run(role("exit 0"))
    running = jobs.submit(role("exec sleep 300"))
    job = JobDirectory.of(old)
    job.write_state({**job.read_state(), "ended_at": time.time() - 1000})
    found = housekeeping.leftovers(JobDirectory, 500)
    assert [item.app_id for item in found] == [old]
    assert found[0].size > 100_000
    assert found[0].age > 999
    assert jobs.scheduler.exists(old), "finding removes nothing"
    assert housekeeping.remove(JobDirectory, found) == found[0].size
    assert not (tmp_path / "logs" / old).exists()
    assert {row.app_id for row in jobs.scheduler.list()} == {new, running}
    assert {item.app_id for item in housekeeping.leftovers(JobDirectory, 0)} == {new}


def test_interrupted_submissions_are_garbage_when_they_are_old(jobs):
    app_id, _ = jobs.run(role("exit 0"))
    for name, age in (("young-x", 0), ("old-x", 10_000)):
        path = JobDirectory.of(name).path
        os.mkdir(path)
        os.utime(path, (time.time() - age,) * 2)
    assert {item.app_id for item in housekeeping.leftovers(JobDirectory, 0)} == {app_id, "old-x"}
