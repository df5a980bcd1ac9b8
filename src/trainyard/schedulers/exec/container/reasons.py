"""Why a replica or a job ended: the evidence is mapped to a reason here, and everything follows from that."""

from __future__ import annotations

from trainyard.specs.status import AppState

SUCCEEDED = "succeeded"
FAILED = "failed"
SIGNAL = "signal"
NOT_EXECUTED = "not_executed"
OUT_OF_MEMORY = "out_of_memory"
NOT_STARTED = "not_started"
DEAD = "dead"
REMOVED = "removed"
CANCELLED = "cancelled"
TIMEOUT = "timeout"
PEER_FAILED = "peer_failed"
INTERRUPTED = "interrupted"

STATE_OF_REASON: dict[str, AppState] = {
    SUCCEEDED: AppState.SUCCEEDED,
    FAILED: AppState.FAILED,
    SIGNAL: AppState.FAILED,
    NOT_EXECUTED: AppState.FAILED,
    OUT_OF_MEMORY: AppState.FAILED,
    NOT_STARTED: AppState.FAILED,
    DEAD: AppState.FAILED,
    REMOVED: AppState.FAILED,
    CANCELLED: AppState.CANCELLED,
    TIMEOUT: AppState.FAILED,
    PEER_FAILED: AppState.CANCELLED,
    INTERRUPTED: AppState.FAILED,
}

_TEXTS: dict[str, str] = {
    SUCCEEDED: "",
    FAILED: "exit code {code}",
    SIGNAL: "exit code {code}, as after {signal}",
    NOT_EXECUTED: "exit code {code}, as when a program {detail}",
    OUT_OF_MEMORY: "out of memory: it used more than its limit",
    NOT_STARTED: "could not be started: {detail}",
    DEAD: "the daemon could not remove its container",
    REMOVED: "its container was removed, so how it ended is not known",
    CANCELLED: "cancelled{detail}",
    TIMEOUT: "stopped at its time limit of {detail} s",
    PEER_FAILED: "stopped because {detail} failed",
    INTERRUPTED: "its submission was interrupted",
}


#: What ``docker-init`` and shells end with when they cannot run a program.
EXEC_FAILURES = {126: "cannot be executed", 127: "is not in the image"}


def state_of(reason: str) -> AppState:
    """Return the state that a reason stands for."""
    return STATE_OF_REASON[reason]


def describe(reason: str, *, code: int = 0, detail: str = "") -> str:
    """Return a reason in words."""
    return _TEXTS[reason].format(code=code, signal=_signal_of(code), detail=detail)


def reason_of_exit(code: int, *, oom: bool, error: str) -> str:
    """Return the reason that an ended container's evidence stands for.

    Args:
        code: its exit code; 128 + N after signal N.
        oom: whether the kernel killed something in it for want of memory.
        error: what the daemon could not do.
    """
    if error:
        return NOT_STARTED
    if code == 0:
        return SUCCEEDED
    if oom:
        return OUT_OF_MEMORY
    if code in EXEC_FAILURES:
        return NOT_EXECUTED
    return SIGNAL if _signal_of(code) else FAILED


def _signal_of(code: int) -> str:
    """Return the name of the signal in an exit code, "" if there is none that usually ends a program."""
    names = {
        129: "SIGHUP",
        130: "SIGINT",
        131: "SIGQUIT",
        132: "SIGILL",
        133: "SIGTRAP",
        134: "SIGABRT",
        135: "SIGBUS",
        136: "SIGFPE",
        137: "SIGKILL",
        138: "SIGUSR1",
        139: "SIGSEGV",
        140: "SIGUSR2",
        141: "SIGPIPE",
        142: "SIGALRM",
        143: "SIGTERM",
        152: "SIGXCPU",
        153: "SIGXFSZ",
    }
    return names.get(code, "")
