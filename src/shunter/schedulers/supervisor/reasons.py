"""The reasons why a replica or a job on this machine ended, with the state and the words of each."""

from __future__ import annotations

from shunter.specs.status import AppState

SUCCEEDED = "succeeded"
FAILED = "failed"
LOG_DISK_FULL = "log_disk_full"
NOT_STARTED = "not_started"
CANCELLED = "cancelled"
TIMEOUT = "timeout"
PEER_FAILED = "peer_failed"
# of processes
SIGNAL = "signal"
KILLED_BY_KERNEL = "killed_by_kernel"
SHUTDOWN = "shutdown"
SUPERVISOR_LOST = "supervisor_lost"
REBOOTED = "rebooted"
NEVER_STARTED = "never_started"
STATE_LOST = "state_lost"
PARENT_FAILED = "parent_failed"
RACE_LOST = "race_lost"
NO_LEASE = "no_lease"
TO_BE_CONTINUED = "to_be_continued"
WAIT_TIMEOUT = "wait_timeout"
HUNG = "hung"
# of containers
EXIT_LIKE_SIGNAL = "exit_like_signal"
NOT_EXECUTED = "not_executed"
OUT_OF_MEMORY = "out_of_memory"
DEAD = "dead"
REMOVED = "removed"

#: The state that each reason stands for, and its words.
_TABLE: dict[str, tuple[AppState, str]] = {
    SUCCEEDED: (AppState.SUCCEEDED, ""),
    FAILED: (AppState.FAILED, "exit code {code}"),
    LOG_DISK_FULL: (AppState.FAILED, "exit code {code}, and the disk of its log is full"),
    NOT_STARTED: (AppState.FAILED, "could not be started: {detail}"),
    CANCELLED: (AppState.CANCELLED, "cancelled{detail}"),
    TIMEOUT: (AppState.FAILED, "stopped at its time limit of {detail} s"),
    WAIT_TIMEOUT: (AppState.FAILED, "stopped {detail} s after its submission, as long as it may wait"),
    PEER_FAILED: (AppState.CANCELLED, "stopped because {detail} failed"),
    SIGNAL: (AppState.FAILED, "killed by {signal}"),
    KILLED_BY_KERNEL: (AppState.FAILED, "out of memory: killed by the kernel ({detail})"),
    SHUTDOWN: (AppState.FAILED, "its supervisor received {signal}, as at a shutdown of the machine"),
    SUPERVISOR_LOST: (AppState.FAILED, "its supervisor was killed, and its replicas with it"),
    REBOOTED: (AppState.FAILED, "the machine went down while it ran"),
    NEVER_STARTED: (AppState.FAILED, "its submission was interrupted before it was started"),
    PARENT_FAILED: (AppState.CANCELLED, "never started: {detail}"),
    RACE_LOST: (AppState.CANCELLED, "race lost to {detail}"),
    NO_LEASE: (AppState.FAILED, "never started: the lease of its race cannot be taken: {detail}"),
    TO_BE_CONTINUED: (AppState.CANCELLED, "stopped at its time limit of {detail} s, to be continued"),
    HUNG: (AppState.FAILED, "stopped because it hung: no output for {detail} s"),
    STATE_LOST: (AppState.UNKNOWN, "its state cannot be read"),
    EXIT_LIKE_SIGNAL: (AppState.FAILED, "exit code {code}, as after {signal}"),
    NOT_EXECUTED: (AppState.FAILED, "exit code {code}, as when a program {detail}"),
    OUT_OF_MEMORY: (AppState.FAILED, "out of memory: it used more than its limit"),
    DEAD: (AppState.FAILED, "the daemon could not remove its container"),
    REMOVED: (AppState.FAILED, "its container was removed, so how it ended is not known"),
}


def state_of(reason: str) -> AppState:
    """Return the state that a reason stands for."""
    return _TABLE[reason][0]


def describe(reason: str, *, code: int = 0, signal: str = "", detail: str = "") -> str:
    """Return a reason in words."""
    return _TABLE[reason][1].format(code=code, signal=signal, detail=detail)
