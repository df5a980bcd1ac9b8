"""What `doctor` and `plan --live` say of this machine."""

from __future__ import annotations

import os
import shutil

from shunter.schedulers.local_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, Resource, Role


def job(**resource):
    return AppDef(
        "job", [Role("r", image="", entrypoint="true", num_replicas=2, resource=Resource(**resource))]
    )


def test_this_machine(home):
    files, machine = create_scheduler("test").doctor({})
    assert str(home) in files.text
    assert files.ok == (shutil.disk_usage(home).free > 1 << 30)
    assert f"{len(os.sched_getaffinity(0))} CPUs" in machine.text


def test_a_state_directory_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHUNTER_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("SHUNTER_STATE_DIR", raising=False)
    files, _ = create_scheduler("test").doctor({})
    assert files.ok is False
    assert "file" in files.text


def test_a_job_is_compared_with_the_machine(home):
    scheduler = create_scheduler("test")
    *_, small = scheduler.doctor({}, scheduler.submit_dryrun(job(cpu=-1, gpu=-1, memMB=1), {}))
    assert small.ok
    *_, large = scheduler.doctor({}, scheduler.submit_dryrun(job(cpu=9999, gpu=0, memMB=1), {}))
    assert large.ok is None
    assert "ask for 19998 CPUs of" in large.text
