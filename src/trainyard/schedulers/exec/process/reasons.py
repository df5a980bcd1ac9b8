"""The reasons why a replica or a job ended, with the state and the message of each."""

from __future__ import annotations

from trainyard.schedulers.exec.process.recovery import NEVER_STARTED, REBOOTED, SUPERVISOR_LOST
from trainyard.specs.status import AppState, is_terminal
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
STATE_LOST = "state_lost"
PARENT_FAILED = "parent_failed"
TO_BE_CONTINUED = "to_be_continued"

#: The state that a reason stands for, and its message.
_REASONS: dict[str, tuple[AppState, str]] = {
    SUCCEEDED: (AppState.SUCCEEDED, ""),
    FAILED: (AppState.FAILED, "exit code {code}"),
    SIGNAL: (AppState.FAILED, "killed by {signal}"),
    OUT_OF_MEMORY: (AppState.FAILED, "out of memory: killed by the kernel ({detail})"),
    NOT_STARTED: (AppState.FAILED, "could not be started: {detail}"),
    CANCELLED: (AppState.CANCELLED, "cancelled{detail}"),
    TIMEOUT: (AppState.FAILED, "stopped at its time limit of {detail} s"),
    PEER_FAILED: (AppState.CANCELLED, "stopped because {detail} failed"),
    SHUTDOWN: (AppState.FAILED, "its supervisor received {signal}, as at a shutdown of the machine"),
    SUPERVISOR_LOST: (AppState.FAILED, "its supervisor was killed, and its replicas with it"),
    REBOOTED: (AppState.FAILED, "the machine went down while it ran"),
    NEVER_STARTED: (AppState.FAILED, "its submission was interrupted before it was started"),
    PARENT_FAILED: (AppState.CANCELLED, "never started: {detail}"),
    TO_BE_CONTINUED: (AppState.CANCELLED, "stopped at its time limit of {detail} s, to be continued"),
    STATE_LOST: (AppState.UNKNOWN, "its state cannot be read"),
}


def state_of(reason: str) -> AppState:
    """Return the state that a reason stands for."""
    return _REASONS[reason][0]


def describe(reason: str, *, code: int = 0, signum: int = 0, detail: str = "") -> str:
    """Return the message of a reason."""
    name = signal_name(signum) if signum else ""
    return _REASONS[reason][1].format(code=code, signal=name, detail=detail)


def ended_state(state: dict[str, Any], reason: str, now: float) -> dict[str, Any]:
    """Return a job's state document with the job and all its live replicas ended for this reason."""
    end = {"state": state_of(reason).name, "reason": describe(reason), "ended_at": now}
    roles = [
        {
            **role,
            "replicas": [
                replica if is_terminal(AppState[replica["state"]]) else {**replica, **end}
                for replica in role["replicas"]
            ],
        }
        for role in state.get("roles", [])
    ]
    return {**state, **end, "roles": roles, "reason": reason, "msg": describe(reason)}
