"""The reasons why a replica or a job ended, with the state and the message of each."""

from __future__ import annotations

from trainyard.specs.status import AppState
from trainyard.system.processes import signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUCCEEDED = "succeeded"
FAILED = "failed"
SIGNAL = "signal"
OUT_OF_MEMORY = "out_of_memory"
NOT_STARTED = "not_started"
CANCELLED = "cancelled"
TIMEOUT = "timeout"
PEER_FAILED = "peer_failed"
SHUTDOWN = "shutdown"
SUPERVISOR_LOST = "supervisor_lost"
REBOOTED = "rebooted"
NEVER_STARTED = "never_started"
STATE_LOST = "state_lost"

STATE_OF_REASON: dict[str, AppState] = {
    SUCCEEDED: AppState.SUCCEEDED,
    FAILED: AppState.FAILED,
    SIGNAL: AppState.FAILED,
    OUT_OF_MEMORY: AppState.FAILED,
    NOT_STARTED: AppState.FAILED,
    CANCELLED: AppState.CANCELLED,
    TIMEOUT: AppState.FAILED,
    PEER_FAILED: AppState.CANCELLED,
    SHUTDOWN: AppState.FAILED,
    SUPERVISOR_LOST: AppState.FAILED,
    REBOOTED: AppState.FAILED,
    NEVER_STARTED: AppState.FAILED,
    STATE_LOST: AppState.UNKNOWN,
}

_TEXTS: dict[str, str] = {
    SUCCEEDED: "",
    FAILED: "exit code {code}",
    SIGNAL: "killed by {signal}",
    OUT_OF_MEMORY: "out of memory: killed by the kernel ({detail})",
    NOT_STARTED: "could not be started: {detail}",
    CANCELLED: "cancelled{detail}",
    TIMEOUT: "stopped at its time limit of {detail} s",
    PEER_FAILED: "stopped because {detail} failed",
    SHUTDOWN: "its supervisor received {signal}, as at a shutdown of the machine",
    SUPERVISOR_LOST: "its supervisor was killed, and its replicas with it",
    REBOOTED: "the machine went down while it ran",
    NEVER_STARTED: "its submission was interrupted before it was started",
    STATE_LOST: "its state cannot be read",
}


def state_of(reason: str) -> AppState:
    """Return the state that a reason stands for."""
    return STATE_OF_REASON[reason]


def describe(reason: str, *, code: int = 0, signum: int = 0, detail: str = "") -> str:
    """Return the message of a reason."""
    name = signal_name(signum) if signum else ""
    return _TEXTS[reason].format(code=code, signal=name, detail=detail)


def ended_state(state: dict[str, Any], reason: str, now: float) -> dict[str, Any]:
    """Return a job's state document with the job and all its live replicas ended for this reason."""
    words = describe(reason)
    roles = [
        {
            **role,
            "replicas": [
                replica
                if AppState[replica["state"]] in (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)
                else {**replica, "state": state_of(reason).name, "reason": words, "ended_at": now}
                for replica in role["replicas"]
            ],
        }
        for role in state.get("roles", [])
    ]
    return {
        **state,
        "roles": roles,
        "state": state_of(reason).name,
        "reason": reason,
        "msg": words,
        "ended_at": now,
    }
