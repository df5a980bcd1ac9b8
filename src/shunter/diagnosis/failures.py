"""Which replica failed first, and why: from a job's status and the ends of its logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shunter._toolkit import log_end
from shunter._toolkit.failure_class import ERROR, SCHEDULER, UNEXPLAINED, Table
from shunter.diagnosis import causes
from shunter.diagnosis.causes import Cause
from shunter.specs.status import NONE, AppState, AppStatus, ReplicaStatus, error_message

LogEnd = Callable[[ReplicaStatus], Sequence[str]]

JobOutput = Callable[[], Sequence[str]]

#: How many failed replicas are examined at most, to find one that did not fail because of another.
MOST_LOOKED_AT = 8
#: How much of each line of a log is looked at: some programs write megabytes without a line's end.
_LONGEST_LINE = 4000
_OF_REPLICA = re.compile(r"(?<!\S)\S+/\d+: ")
#: "exit code 127, as when a program is not in the image" says no more than the code itself
_EXIT_CODE = re.compile(r"exit code \d+(, as .*)?")


@dataclass
class Failure:
    """Why a job failed.

    Args:
        cause: the cause.
        evidence: the line that shows it; "" if the exit code alone does.
        replica: the first replica that failed; None if the job failed as a whole.
        rank: which of the replica's processes it was; "" if there is one, or unknown.
        traceback: the end of its traceback.
        log: lines of the log around the first error.
        reason: what the scheduler says.
        failed: how many replicas failed, and ``replicas`` of how many.
        problem: why the log could not be read; "" if it was.
    """

    cause: Cause
    evidence: str = ""
    replica: ReplicaStatus | None = None
    rank: str = ""
    traceback: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    reason: str = ""
    failed: int = 0
    replicas: int = 0
    problem: str = ""

    @property
    def place(self) -> str:
        """The replica and process, for display."""
        if self.replica is None:
            return "the job"
        name = f"{self.replica.role}/{self.replica.id}"
        return f"{name} (rank {self.rank})" if self.rank else name


def explain_failure(status: AppStatus, log_of: LogEnd, job_output: JobOutput = tuple) -> Failure:
    """Return why a job failed.

    Args:
        log_of: returns the last lines of a replica's log.
        job_output: returns what the backend's own programs wrote about the job.
    """
    failed = first_failures(status)
    table = Table(causes.causes_table())
    first: Failure | None = None
    for replica in failed[:MOST_LOOKED_AT]:
        lines = [line[:_LONGEST_LINE] for line in log_of(replica)]
        failure = _explain_replica(table, status, replica, lines)
        if failure.cause.name in UNEXPLAINED or (failure.cause.name == "exit" and not failure.log):
            _add_job_output(table, failure, job_output())
        first = first or failure
        if not failure.cause.is_consequence:
            first = failure
            break
    if first is None:
        first = _explain_job(table, status)
    first.failed, first.replicas = len(failed), len(status.replicas())
    return first


def first_failures(status: AppStatus) -> list[ReplicaStatus]:
    """Return the replicas that failed, the first in time first."""
    failed = [each for each in status.replicas() if each.state == AppState.FAILED]
    return sorted(failed, key=lambda each: (_failed_at(each), each.id))


def _failed_at(replica: ReplicaStatus) -> float:
    """Return when a replica failed: by its own report if it has one, which is the most exact."""
    if replica.structured_error_msg != NONE:
        stamp = error_message(replica.structured_error_msg)[1].get("timestamp")
        try:
            return float(str(stamp))
        except ValueError:
            pass
    return replica.ended_at if replica.ended_at is not None else float("inf")


def _explain_job(table: Table, status: AppStatus) -> Failure:
    said = _texts(status.msg)
    error = [] if status.structured_error_msg == NONE else [error_message(status.structured_error_msg)[0]]
    found = table.cause_in(SCHEDULER, said) or table.cause_in(ERROR, error)
    cause = causes.by_name(found.name if found else "unknown")
    return Failure(cause, found.evidence if found else "", reason="\n".join(said))


def _explain_replica(
    table: Table, status: AppStatus, replica: ReplicaStatus, lines: Sequence[str]
) -> Failure:
    # the job's reason describes the replica if it is the only one, or where the replica has none
    whole = _texts(status.msg) if not replica.reason or len(status.replicas()) == 1 else []
    reasons = list(dict.fromkeys([*_texts(replica.reason), *whole]))
    report = "" if replica.structured_error_msg == NONE else error_message(replica.structured_error_msg)[0]
    found = table.cause_of(reasons, replica.exit_code, lines, report)
    if found.name == "unknown":
        # what the scheduler says of the job may hold for its replicas, such as a lost node
        found = table.cause_in(SCHEDULER, _texts(status.msg)) or found
    shown = report.splitlines() if found.traceback is None and "Traceback" in report else []
    return Failure(
        causes.by_name(found.name),
        found.evidence,
        replica,
        found.rank,
        shown[-log_end.TRACEBACK_LINES :] if found.traceback is None else found.traceback.shown(),
        log_end.around(lines, found.evidence if any(found.evidence in line for line in lines) else ""),
        "\n".join(reasons),
    )


def _add_job_output(table: Table, failure: Failure, lines: Sequence[str]) -> None:
    """Explain a failure by what the backend's own programs wrote, if that names a cause."""
    found = table.cause_by_queue(lines)
    if found is None:
        return
    failure.cause, failure.evidence = causes.by_name(found.name), found.evidence
    failure.log = failure.log or log_end.around(lines, found.evidence)


def _texts(reason: str) -> list[str]:
    """Return the lines of a reason that say more than an exit code, without the name of the replica."""
    lines = [] if reason in ("", NONE) else [_OF_REPLICA.sub("", line) for line in reason.splitlines()]
    return [line for line in lines if not _EXIT_CODE.fullmatch(line)]
