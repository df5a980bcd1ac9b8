"""Ending jobs whose supervisor is gone: the first process that reads their state does it.

What such a job left running is killed, and its end is written with the reason. If nothing was left, it ended
at an unknown time before, and when it last wrote something is taken for that. A job of another machine (a
shared home directory) is left alone.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from shunter.backoff import polling
from shunter.errors import ShunterError, StateStoreError
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.reasons import NEVER_STARTED, REBOOTED, SUPERVISOR_LOST
from shunter.specs.status import AppState
from shunter.system import processes
from shunter.system.identity import Process, machine

#: For how long a command waits for a replica that was submitted just now.
STARTING_SECONDS = 5.0
_STARTING = frozenset({AppState.SUBMITTED.name, AppState.PENDING.name})


def current_state(job: JobDirectory) -> dict[str, Any] | None:
    """Return the job's state, after ending the job if no process runs it; None without a job."""
    state = job.read_state() or job.first_state()
    if state is None or job.is_over(state):
        return state
    here = machine()
    if state["host"] != here["host"]:
        return job.state_elsewhere(state)
    return state if _is_run(job, state, here["boot_id"]) else end_orphan(job)


def await_start(job: JobDirectory, role: str, index: int) -> dict[str, Any]:
    """Return a replica of the job's state document; waits for a moment if it was submitted just now."""
    polls = polling(STARTING_SECONDS)
    while True:
        state = current_state(job) or {"state": AppState.UNKNOWN.name, "roles": [], "msg": ""}
        found = {(group["role"], item["id"]): item for group in state["roles"] for item in group["replicas"]}
        # there are no roles before the supervisor writes them
        replica: dict[str, Any] = found.get((role, index), {"state": state["state"], "pid": 0})
        if replica["state"] not in _STARTING or state["msg"] or not polls.pause():
            return replica


def has_ended(job: JobDirectory) -> bool:
    """Tell whether a job has ended, after ending it if no process runs it; True without a job."""
    state = current_state(job)
    return state is None or job.is_over(state)


def end_orphan(job: JobDirectory) -> dict[str, Any] | None:
    """End a job that no process runs, and return its state. Several processes may try at once."""
    try:
        lock = os.open(job.file("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # nothing can be written here: return the end without writing it
        state = job.read_state() or job.first_state()
        return state if state is None or job.is_over(state) else _ended(job, state, job.last_written())
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = job.read_state() or job.first_state()
        if state is None or job.is_over(state):
            return state
        if _is_run(job, state, machine()["boot_id"]):
            return state
        killed = processes.kill_members_of_job(job.path)
        ended = _ended(job, state, time.time() if killed else job.last_written())
        try:
            job.clean_up(ended)
        except ShunterError as error:  # what is left of it may still run
            return {**state, "state": AppState.UNREACHABLE.name, "msg": error.message}
        state = ended
        try:
            job.write_final_state(state)
        except OSError:  # the next reader tries again
            pass
        return state
    finally:
        os.close(lock)


def _ended(job: JobDirectory, state: dict[str, Any], when: float) -> dict[str, Any]:
    reason = SUPERVISOR_LOST if state["boot_id"] == machine()["boot_id"] else REBOOTED
    return job.ended(state, reason if supervisor_of(job, state) else NEVER_STARTED, when)


def supervisor_of(job: JobDirectory, state: dict[str, Any]) -> Process | None:
    """Return the process that runs a job, or ran it; None if none has been started."""
    return Process.from_json(state.get("supervisor"))


def _is_run(job: JobDirectory, state: dict[str, Any], boot_id: str) -> bool:
    """Tell whether a job's supervisor runs, or the process that submits it."""
    if state["boot_id"] != boot_id:
        return False
    supervisor = supervisor_of(job, state)
    runners = [supervisor]
    if supervisor is None:  # the submitter may be gone, and the supervisor have the job nevertheless
        request = job.read_request() or {}
        runners = [Process.from_json(request.get(name)) for name in ("submitter", "supervisor")]
    return any(process is not None and process.is_alive() for process in runners)


def stopped_text(job: JobDirectory, state: dict[str, Any]) -> str:
    """Say that a job's supervisor is stopped by a signal, and how it continues; "" if it is not."""
    supervisor = supervisor_of(job, state)
    if supervisor is None or not processes.is_stopped(supervisor):
        return ""
    how = f"`kill -CONT {supervisor.pid}` or `shunter cancel` continues it"
    return f"its supervisor is stopped by a signal; {how}"


def stop_replicas(
    job: JobDirectory, state: dict[str, Any], replicas: Sequence[tuple[str, int]], by: object
) -> None:
    """Ask the supervisor of an array that has not ended to stop some of its replicas. Does not wait for that.

    Raises:
        StateStoreError: the request cannot be written.
    """
    for role, k in replicas:
        job.ask(f"cancel-{role}-{k}", {"by": by, "at": time.time()})
    supervisor = supervisor_of(job, state)
    if supervisor is not None:
        processes.send_signal(supervisor, signal.SIGUSR2)


def stop(job: JobDirectory, state: dict[str, Any], by: object) -> None:
    """Ask the supervisor of a job that has not ended to stop it. Does not wait for that.

    ``by`` is who requested it, for the record.

    Raises:
        StateStoreError: the request cannot be written, and no supervisor runs.
    """
    supervisor = supervisor_of(job, state)
    signum = signal.SIGTERM
    try:
        job.ask("cancel", {"by": by, "at": time.time()})
    except StateStoreError:  # a full disk, perhaps because of this job: the signal alone has to do
        signum = signal.SIGUSR1  # SIGTERM without a request is a shutdown of the machine
        if supervisor is None or not supervisor.is_alive():
            raise
    if supervisor is not None:
        processes.send_signal(supervisor, signum)
