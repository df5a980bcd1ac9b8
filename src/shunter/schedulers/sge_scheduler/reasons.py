"""Map Grid Engine's states to ours, and its reasons to sentences.

By qstat(1), sge_status(5) and accounting(5) of 8.1.9. A state with a letter that is not known counts as open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shunter.specs.status import AppState
from shunter.system.processes import signal_name

if TYPE_CHECKING:
    from shunter.schedulers.sge_scheduler.observe import AccountedRun, Details, QueueRow

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


def state_of(letters: str) -> AppState:
    """Return the state that qstat's letters stand for."""
    if not letters or not set(letters) <= {letter for row, _ in STATES for letter in row}:
        return AppState.UNKNOWN
    return next(state for row, state in STATES if set(row) & set(letters))


def reason_of(row: QueueRow, details: Details | None) -> str:
    """Return why a job is in its state, as a sentence; "" if the state says it all."""
    if "E" in row.letters:
        said = "; ".join(details.errors) if details and details.errors else "Grid Engine does not say why"
        return (
            f"{row.letters}: it could not be started: {said} (once the cause is fixed: qmod -cj "
            f"{row.native_id})"
        )
    if state_of(row.letters) == AppState.SUSPENDED:
        return f"suspended ({row.letters})"
    if "d" in row.letters:
        return "being deleted"
    if state_of(row.letters) != AppState.PENDING:
        return ""
    said = "; ".join(summary(details.messages)) if details else ""
    if "h" in row.letters:
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


def judge(run: AccountedRun) -> tuple[AppState, str]:
    """Return the state of a run that has ended, and why it is in that state."""
    if run.deleted_by:
        return AppState.CANCELLED, f"deleted by {run.deleted_by}"
    if run.failed in ENDS:
        state, text = ENDS[run.failed]
        return state, f"{text}: {run.words} (on {run.host})"
    if run.failed not in BY_EXIT_CODE:
        return AppState.FAILED, f"Grid Engine: {run.words or f'failed {run.failed}'}"
    if run.exit_code == 0:
        return AppState.SUCCEEDED, ""
    if run.exit_code > 128:
        return AppState.FAILED, f"killed by {signal_name(run.exit_code - 128)}"
    return AppState.FAILED, ""  # its replicas say more than the exit code
