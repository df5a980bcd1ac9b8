"""The end of jobs whose runner is gone, told by whoever looks first."""

from __future__ import annotations

import fcntl
import os
import shutil
import time

from trainyard.schedulers.aws.sagemaker_local.job_status import finish
from trainyard.schedulers.aws.sagemaker_local.training_job import TERMINAL, JobDir
from trainyard.system import processes
from trainyard.system.identity import Process, machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KILLED = "InternalServerError: the runner of this job was killed"
REBOOTED = "InternalServerError: the machine was booted anew while this job ran"
NEVER_STARTED = "InternalServerError: the runner of this job never started"


def current_state(job: JobDir) -> dict[str, Any] | None:
    """Return the job's state, brought up to date if its runner is gone; None if there is none."""
    state = job.read_state()
    if state is None:
        return None
    if state["status"] in TERMINAL and state["swept"]:
        return state
    here = machine()
    if state["host"] != here["host"] or is_attended(job, state):
        return state
    return end_orphan(job, "" if state["boot_id"] == here["boot_id"] else REBOOTED)


def is_attended(job: JobDir, state: dict[str, Any]) -> bool:
    """Tell whether the job's runner, its guard, or who is about to start them still runs."""
    if state["boot_id"] != machine()["boot_id"]:
        return False
    runner, guard = (Process.from_json(state.get(name)) for name in ("runner", "guard"))
    if runner is None:
        submitter = Process.from_json((job.read_request() or {}).get("submitter"))
        if submitter is not None and submitter.is_alive():
            return True
    return processes.is_kept(runner, guard)


def end_orphan(job: JobDir, reason: str = "", *, by_guard: bool = False) -> dict[str, Any] | None:
    """End a job that nobody runs any more, and remove what is left of it. Several may try at once.

    Args:
        job: the job.
        reason: why it failed, if that is known.
        by_guard: whether the guard does it, who is then known to attend.
    """
    state = job.read_state()
    if state is None or (state["status"] in TERMINAL and state["swept"]):
        return state
    try:
        lock = os.open(job.file("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # nothing can be written here: say it without writing it down
        state = job.read_state()
        return None if state is None else _ended(state, reason)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = job.read_state()
        if state is None or (state["status"] in TERMINAL and state["swept"]):
            return state
        if not by_guard and is_attended(job, state):
            return state
        swept = sweep(job)
        _ended(state, reason)["swept"] = swept
        try:
            job.write_final_state(state)
        except OSError:  # the next one who looks tries again
            pass
        return state
    finally:
        os.close(lock)


def _ended(state: dict[str, Any], reason: str) -> dict[str, Any]:
    """Return the state of a job that nobody runs any more, ended in place."""
    if state["status"] not in TERMINAL:
        now = time.time()
        if state["training_start"] is not None:
            state["training_seconds"] += max(0.0, now - (state.get("attempt_start") or now))
        default = KILLED if state["runner"] is not None else NEVER_STARTED
        finish(state, "Failed", now, reason=reason or default)
    return state


def sweep(job: JobDir) -> bool:
    """End processes and remove containers, networks and files of a job; returns whether all are gone."""
    processes.kill_members_of_job(job.path)
    done = True
    if os.path.exists(job.file("work", ".docker")):
        from trainyard.docker.engine import Engine
        from trainyard.errors import TrainyardError
        from trainyard.schedulers.aws.sagemaker_local.hosts import cluster

        try:
            engine = Engine.from_env()
            try:
                cluster.sweep(engine, job.path)
                document = job.read_request() or {}
                image = document.get("request", {}).get("AlgorithmSpecification", {}).get("TrainingImage", "")
                cluster.reclaim(engine, image, job.path, job.work)
            finally:
                engine.close()
        except TrainyardError:
            done = False  # the next one who looks tries again
    secret = _secret_dir(job)
    if secret:
        shutil.rmtree(secret, ignore_errors=True)
    if done:
        shutil.rmtree(job.work, ignore_errors=True)
    return done


def _secret_dir(job: JobDir) -> str:
    try:
        return os.readlink(job.file("work", ".secrets"))
    except OSError:
        return ""
