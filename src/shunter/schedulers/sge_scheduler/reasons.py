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

#: Letters of a state, qstat(1).
_LETTERS = frozenset("dEhrRsSTtwqPNzcm")
#: Of accounting(5): how Grid Engine itself saw the end.
RAN = "0"
RESCHEDULED = ("24", "25")  # migrating, rescheduling
LOST = ("19", "21")  # before writing exit_status, in recognizing job: its host was down
LIMIT = "37"
KILLED = "100"
#: How many different messages of the scheduler are shown.
_MOST_MESSAGES = 3
_HOST = re.compile(r' (?:at host|in queue|on host|queue instance) "[^"]*"')


def state_of(letters: str) -> AppState:
    """Return the state that qstat's letters stand for, by sge_status(5); ``hr`` runs, ``hqw`` waits."""
    if not letters or not set(letters) <= _LETTERS:
        return AppState.UNKNOWN
    if "E" not in letters and any(letter in letters for letter in "sST"):
        return AppState.SUSPENDED
    if any(letter in letters for letter in "EwqPN"):
        return AppState.PENDING
    return AppState.RUNNING


def reason_of(row: QueueRow, details: Details | None) -> str:
    """Return why a job is in its state, as a sentence; "" if the state says it all."""
    if "E" in row.letters:
        said = "; ".join(details.errors) if details and details.errors else "Grid Engine does not say why"
        return (
            f"{row.letters}: it could not be started: {said} (once the cause is fixed: qmod -cj "
            f"{row.native_id})"
        )
    if any(letter in row.letters for letter in "sST"):
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


def verdict(ending: AccountedRun) -> tuple[AppState, str]:
    """Return the state of a run that has ended, and why it is in that state."""
    if ending.deleted_by:
        return AppState.CANCELLED, f"deleted by {ending.deleted_by}"
    if ending.failed == LIMIT:
        return AppState.FAILED, f"stopped at its limit: {ending.words}"
    if ending.failed in LOST:
        return AppState.FAILED, f"its host {ending.host} was lost ({ending.words})"
    if ending.failed not in (RAN, KILLED):
        return AppState.FAILED, f"Grid Engine: {ending.words or f'failed {ending.failed}'}"
    if ending.exit_code == 0:
        return AppState.SUCCEEDED, ""
    if ending.exit_code > 128:
        return AppState.FAILED, f"killed by {signal_name(ending.exit_code - 128)}"
    return AppState.FAILED, ""  # its replicas say more than the exit code
