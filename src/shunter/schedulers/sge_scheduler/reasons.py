"""Map Grid Engine's states to ours, its reasons to sentences, and its refusals to hints.

By qstat(1), sge_status(5) and accounting(5) of 8.1.9. A state with a letter that is not known counts as open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from shunter.schedulers.hpc.queries import NativeJob
from shunter.specs.status import AppState
from shunter.system.processes import signal_name

#: States by the letters of qstat(1) and sge_status(5); the first row that has one of the letters counts. So
#: ``hr`` runs, and ``hqw`` waits.
STATES: tuple[tuple[str, AppState], ...] = (
    ("E", AppState.PENDING),
    ("sST", AppState.SUSPENDED),
    ("wqPN", AppState.PENDING),
    ("dhrRtzcm", AppState.RUNNING),
)
#: Ends by the field "failed" of accounting(5), or by who deleted it; with others it has failed.
RAN, LIMIT, KILLED = "0", "37", "100"
RESCHEDULED = ("24", "25")  # migrating, rescheduling: it runs again
LOST = ("19", "21")  # before writing exit_status, in recognizing job: its host was down
ENDS: dict[str, tuple[AppState, str]] = {
    "deleted": (AppState.CANCELLED, "deleted"),
    LIMIT: (AppState.FAILED, "stopped at its limit"),
    **dict.fromkeys(LOST, (AppState.FAILED, "its host was lost")),
}
#: Ends of which the exit code says more: the job ended, or was killed.
BY_EXIT_CODE = (RAN, KILLED)
#: How many different messages of the scheduler are shown.
_MOST_MESSAGES = 3
_HOST = re.compile(r' (?:at host|in queue|on host|queue instance) "[^"]*"')
#: What to do about refusals, by patterns of Grid Engine's messages.
HINTS: tuple[tuple[str, str], ...] = (
    (r"unknown queue|queue .* does not exist", "`qconf -sql` lists the queues: -cfg queue=NAME."),
    (
        r"parallel environment .* does not exist",
        "`qconf -spl` lists the parallel environments: -cfg pe=NAME for several hosts, smp_pe=NAME for one.",
    ),
    (
        r"unknown resource",
        "`qconf -sc` lists resources. Request memory and gpus with -cfg memory=NAME,gpu=NAME; '' for none.",
    ),
    (
        r"requested project .* does not exist|access to project",
        "`qconf -sprjl` lists projects: -cfg project=NAME.",
    ),
    (r"no suitable queues", "No queue fits such a job. `qstat -f` and `qhost -F` show what there is."),
    (
        r"job rejected: (only|the)? ?\S* ?(jobs|limit)|would exceed|max_(u_)?jobs",
        "A limit of the site is reached. Wait for other jobs to end; an array (-cfg array=True) counts once.",
    ),
    (
        r"is not a submit host|no submit host|neither submit nor admin host",
        "Submit from a login node: -cfg host=NODE.",
    ),
    (
        r"SGE_ROOT|unable to read qmaster name",
        "Source the site's settings.sh first, or submit from a login node: host=.",
    ),
    (r"invalid option argument|unknown option", "See qsub(1). -cfg omit=OPTION leaves out what we write."),
)


def state_of(letters: str) -> AppState:
    """Return the state that qstat's letters stand for."""
    if not letters or not set(letters) <= {letter for row, _ in STATES for letter in row}:
        return AppState.UNKNOWN
    return next(state for row, state in STATES if set(row) & set(letters))


def reason_of(job: NativeJob, messages: Sequence[str], errors: Sequence[str]) -> str:
    """Return why a job in the queue is in its state, as a sentence; "" if the state says it all.

    Args:
        job: the job or task.
        messages: what the scheduler says of it.
        errors: what went wrong.
    """
    letters = job.native_state
    if "E" in letters:
        said = "; ".join(errors) or "Grid Engine does not say why"
        hint = f"once the cause is fixed: qmod -cj {job.native_id}"
        return f"{letters}: it could not be started: {said} ({hint})"
    if job.state == AppState.SUSPENDED:
        return f"suspended ({letters})"
    if "d" in letters:
        return "being deleted"
    if job.state != AppState.PENDING:
        return ""
    said = "; ".join(summary(messages))
    if "h" in letters:
        return f"held: {said}" if said else "held: it waits for other jobs, or somebody held it"
    return said or "waiting for free slots"


def summary(messages: Iterable[str]) -> list[str]:
    """Shorten the scheduler's messages: one line for all hosts and queues with the same message."""
    counts: dict[str, int] = {}
    for message in messages:
        text = _HOST.sub("", message)
        counts[text] = counts.get(text, 0) + 1
    lines = [text if count == 1 else f"{text} ({count} times)" for text, count in counts.items()]
    rest = len(lines) - _MOST_MESSAGES
    return lines if rest <= 0 else [*lines[:_MOST_MESSAGES], f"{rest} more reasons: qstat -j"]


def judge(failed: str, words: str, host: str, exit_code: int, deleted_by: str) -> tuple[AppState, str]:
    """Return the state of a run that has ended, and why it is in that state, from the accounting's fields."""
    if deleted_by:
        return AppState.CANCELLED, f"deleted by {deleted_by}"
    if failed in ENDS:
        state, text = ENDS[failed]
        return state, f"{text}: {words} (on {host})"
    if failed not in BY_EXIT_CODE:
        return AppState.FAILED, f"Grid Engine: {words or f'failed {failed}'}"
    if exit_code == 0:
        return AppState.SUCCEEDED, ""
    if exit_code > 128:
        return AppState.FAILED, f"killed by {signal_name(exit_code - 128)}"
    return AppState.FAILED, ""  # its replicas say more than the exit code
