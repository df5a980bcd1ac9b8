"""The state document of a training job, and its status ladder.

The steps and their messages are those of the service:
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_SecondaryStatusTransition.html
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shunter.system.identity import machine, myself

if TYPE_CHECKING:
    from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob

#: The states in which a job has ended.
TERMINAL = frozenset({"Completed", "Failed", "Stopped"})
LONGEST_REASON = 1024

#: The fields of a host that has not been started.
_FRESH = {"state": "pending", "exit_code": None, "reason": "", "started_at": None, "ended_at": None}

MESSAGES = {
    "Starting": "Preparing the instances for training",
    "Downloading": "Downloading the training image and the input data",
    "Training": "Training image download completed. Training in progress.",
    "Interrupted": "Training job interrupted: its spot instances were reclaimed",
    "Restarting": "Restarting the training job after an internal error",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "MaxWaitTimeExceeded": "Training job exceeded MaxWaitTimeInSeconds provided",
    "Completed": "Training job completed",
    "Failed": "Training job failed",
}


def first_state(hosts: list[dict[str, Any]], now: float) -> dict[str, Any]:
    """Return the state of a new job at a time in seconds since the epoch.

    ``hosts`` has ``name``, ``group`` and ``index`` within the group of every host.
    """
    state = {
        "status": "InProgress",
        "secondary": "",
        "transitions": [],
        "failure_reason": "",
        "created_at": now,
        "modified_at": now,
        "training_start": None,
        "training_end": None,
        "training_seconds": 0.0,
        "artifacts": "",
        "metrics": [],
        "restarts": 0,
        "runner": None,
        "swept": True,
        "hosts": [{**host, **_FRESH, "streams": []} for host in hosts],
        **machine(),
    }
    advance(state, "Starting", now)
    return state


def advance(state: dict[str, Any], secondary: str, now: float, message: str = "") -> None:
    """Move a state to another step, in place."""
    text = message or MESSAGES.get(secondary, "")
    steps = state["transitions"]
    state["modified_at"] = now
    if steps and steps[-1]["Status"] == secondary:
        steps[-1]["StatusMessage"] = text
        return
    if steps:
        steps[-1].setdefault("EndTime", now)
    steps.append({"Status": secondary, "StartTime": now, "StatusMessage": text})
    state["secondary"] = secondary


def finish(
    state: dict[str, Any],
    status: str,
    now: float,
    *,
    secondary: str = "",
    reason: str = "",
    message: str = "",
) -> None:
    """End the job, in place. Does nothing if it has ended."""
    if state["status"] in TERMINAL:
        return
    advance(state, secondary or status, now, message or (reason if status == "Failed" else ""))
    state["transitions"][-1]["EndTime"] = now
    state["status"] = status
    state["failure_reason"] = reason[:LONGEST_REASON]
    state["training_end"] = now if state["training_start"] is not None else None
    for host in state["hosts"]:
        if host["state"] in ("pending", "running"):
            host.update(state="lost" if host["state"] == "running" else "never", ended_at=now)


class Journal:
    """The state of the job that this process runs. Every change is on disk when its method returns.

    While the disk is full the job continues, and `catch_up` writes the changes later. The end of the job is
    always written, in the space reserved for it.

    Args:
        job: the job's directory.
        on_delay: called when a change could not be written.

    Raises:
        OSError: the state cannot be written now, at the start.
    """

    def __init__(self, job: TrainingJob, on_delay: Callable[[], None] = lambda: None) -> None:
        self.job = job
        self.is_behind = False
        self._on_delay = on_delay
        self._lock = threading.RLock()
        state = job.read_state()
        if state is None:
            raise ValueError(f"no job in {job.path}")
        self.state: dict[str, Any] = state
        self.state.update(runner=list(myself()), swept=False)
        self.job.write_state(self.state)

    def _write(self) -> None:
        try:
            if self.state["status"] in TERMINAL:
                self.job.write_final_state(self.state)
            else:
                self.job.write_state(self.state)
        except OSError:
            if not self.is_behind:
                self.is_behind = True
                self._on_delay()
        else:
            self.is_behind = False

    def catch_up(self) -> None:
        """Write what could not be written, if the disk has space now."""
        with self._lock:
            if self.is_behind:
                self._write()

    def move(self, secondary: str, message: str = "", *, status: str = "") -> None:
        """Move to another step."""
        with self._lock:
            if status:
                self.state["status"] = status
            advance(self.state, secondary, time.time(), message)
            self._write()

    def set(self, **fields: Any) -> None:
        """Set fields of the job."""
        with self._lock:
            self.state.update(fields, modified_at=time.time())
            self._write()

    def set_host(self, name: str, **fields: Any) -> None:
        """Set fields of a host."""
        with self._lock:
            host = next(host for host in self.state["hosts"] if host["name"] == name)
            host.update(fields)
            self._write()

    def reset_hosts(self) -> None:
        """Reset all hosts to "not started", before another attempt."""
        with self._lock:
            for host in self.state["hosts"]:
                host.update(_FRESH)
            self._write()

    def add_log(self, name: str, stream: str) -> None:
        """Add the log of a host's new attempt."""
        with self._lock:
            host = next(host for host in self.state["hosts"] if host["name"] == name)
            host["streams"].append(stream)
            self._write()

    def end(
        self,
        status: str,
        *,
        secondary: str = "",
        reason: str = "",
        message: str = "",
        is_swept: bool = True,
    ) -> None:
        """End the job.

        Args:
            status: how it ended.
            secondary: its last step, if that has a different name.
            reason: why it failed.
            message: of its last step.
            is_swept: whether everything of its hosts has been removed.
        """
        with self._lock:
            finish(self.state, status, time.time(), secondary=secondary, reason=reason, message=message)
            self.state["swept"] = is_swept
            self._write()
