"""Map LSF's states to ours, its reasons to sentences, and its refusals to hints.

A state that is not known counts as open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from shunter.specs.status import AppState
from shunter.system.processes import signal_name

STATES: dict[str, AppState] = {
    "PEND": AppState.PENDING,
    "PROV": AppState.PENDING,
    "WAIT": AppState.PENDING,
    "FWD_PEND": AppState.PENDING,
    "PSUSP": AppState.SUSPENDED,
    "USUSP": AppState.SUSPENDED,
    "SSUSP": AppState.SUSPENDED,
    "RUN": AppState.RUNNING,
    "DONE": AppState.SUCCEEDED,
    "POST_DONE": AppState.SUCCEEDED,
    "EXIT": AppState.FAILED,
    "POST_ERR": AppState.FAILED,  # its post-processing failed; `judge` looks at how the job ended
    "UNKWN": AppState.UNREACHABLE,  # neither of these two is an end
    "ZOMBI": AppState.UNKNOWN,
}
_TEXTS = {
    "PSUSP": "held while it waited (bresume releases it)",
    "USUSP": "suspended by its owner or an administrator (bresume resumes it)",
    "SSUSP": "suspended by LSF: its host is too busy, or a job with more priority needs it",
    "UNKWN": "LSF has lost contact with its host; it may still be running",
    "ZOMBI": "LSF lost contact with its host, and it was killed or rerun meanwhile; it may still run there",
}
_CANCELLED = (AppState.CANCELLED, "cancelled in LSF")
_TIME_LIMIT = (AppState.FAILED, "stopped at its time limit")
_OUT_OF_MEMORY = (AppState.FAILED, "out of memory")
#: Why LSF ended a job, by "Termination reasons displayed by bacct, bhist, and bjobs" of 10.1, and the state
#: that follows; with others it has failed.
TERMINATIONS: dict[str, tuple[AppState, str]] = {
    "TERM_OWNER": _CANCELLED,
    "TERM_FORCE_OWNER": _CANCELLED,
    "TERM_ADMIN": _CANCELLED,
    "TERM_FORCE_ADMIN": _CANCELLED,
    "TERM_ORPHAN_SYSTEM": _CANCELLED,
    "TERM_BUCKET_KILL": _CANCELLED,
    "TERM_RUNLIMIT": _TIME_LIMIT,
    "TERM_DEADLINE": _TIME_LIMIT,
    "TERM_CPULIMIT": _TIME_LIMIT,
    "TERM_WINDOW": _TIME_LIMIT,
    "TERM_MEMLIMIT": _OUT_OF_MEMORY,
    "TERM_SWAP": _OUT_OF_MEMORY,
    "TERM_PREEMPT": (AppState.FAILED, "preempted by another job"),
    "TERM_REMOVE_HUNG_JOB": (AppState.FAILED, "its host was lost"),  # nobody cancelled it
}
_TERMINATION = re.compile(r"TERM_[A-Z_]+")
#: Separates the reasons, where the site shows them by host (LSB_BJOBS_PENDREASON_LEVEL 2 and 3).
_HEADING = re.compile(r"(Candidate|Non-candidate) host pending reasons \(")
#: What to do about refusals, by patterns of LSF's messages.
HINTS: tuple[tuple[str, str], ...] = (
    (
        r"No such queue|User cannot use the queue",
        "`bqueues -u $USER` lists the queues that you may use: queue=NAME.",
    ),
    (
        r"not a member of the project|No such project|project",
        "`bparams -l` and your site say which: project=NAME.",
    ),
    (
        r"Bad resource requirement|unknown resource",
        "`lsinfo` lists resources. -cfg omit=-R leaves a line of ours out.",
    ),
    (
        r"MEMLIMIT|Memory limit|memory",
        "The queue limits memory: `bqueues -l QUEUE`. mem_per says what is counted.",
    ),
    (
        r"RUNLIMIT|run limit|Run time",
        "The queue limits the time: `bqueues -l QUEUE`, then -cfg time=HOURS:MINUTES.",
    ),
    (
        r"Dependency condition invalid|job not found",
        "A job that it waits for is unknown to LSF (`bjobs -a`).",
    ),
    (
        r"Too many processors|PROCLIMIT|TASKLIMIT|Number of slots",
        "The queue limits slots: `bqueues -l QUEUE`.",
    ),
    (
        r"Pending job (threshold|limit)|reached its pending",
        "Wait for other jobs to end; an array (array=True) counts as one job at most.",
    ),
    (r"[Ii]llegal option|Bad argument", "See bsub(1). -cfg omit=OPTION leaves out what we write."),
)


def judge(record: Mapping[str, str]) -> tuple[AppState, str]:
    """Return the state of a job or element, and why it is in that state."""
    stat = record.get("STAT", "")
    state = STATES.get(stat, AppState.UNKNOWN)
    if state == AppState.FAILED:
        return _failure(record)
    if state == AppState.PENDING and stat not in _TEXTS:
        return state, shortened(record.get("PEND_REASON", "")) or "waiting to be dispatched"
    if stat not in STATES:
        return state, f"LSF says {stat or 'nothing'}"
    return state, _TEXTS.get(stat, "")


def _failure(record: Mapping[str, str]) -> tuple[AppState, str]:
    said, code = record.get("EXIT_REASON", "").strip().rstrip(".;"), exit_code(record)
    if record.get("STAT") == "POST_ERR" and not said and not code:
        return AppState.SUCCEEDED, "its post-processing failed"
    for name in _TERMINATION.findall(said):
        if name in TERMINATIONS:
            state, words = TERMINATIONS[name]
            return state, said if state == AppState.CANCELLED else f"{words}: {said}"
    if said:
        return AppState.FAILED, said if code is None else f"exit code {code}: {said}"
    if code is not None and code > 128:
        return AppState.FAILED, f"killed by {signal_name(code - 128)}"
    return AppState.FAILED, ""  # its replicas say more than the exit code


def exit_code(record: Mapping[str, str]) -> int | None:
    """Return the exit code; LSF leaves it out where it is 0, and where it knows none."""
    if record.get("STAT") in ("DONE", "POST_DONE"):
        return 0
    text = record.get("EXIT_CODE", "")
    return int(text) if text.isdecimal() else None


def shortened(text: str) -> str:
    """Return LSF's reasons for waiting in one line: at most three, without the headings between them."""
    reasons = [" ".join(part.split()) for part in re.split(r"[;\n]", text) if part.strip()]
    reasons = [reason for reason in reasons if not _HEADING.match(reason)]
    rest = len(reasons) - 3
    return "; ".join(reasons[:3]) + (f"; {rest} more (bjobs -p3)" if rest > 0 else "")
