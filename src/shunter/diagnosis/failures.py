"""Which replica failed first, and why: from a job's status and the ends of its logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shunter.diagnosis import causes, log_end
from shunter.diagnosis.causes import ERROR, LOG, SCHEDULER, START, Cause
from shunter.specs.status import NONE, AppState, AppStatus, ReplicaStatus, error_message

LogEnd = Callable[[ReplicaStatus], Sequence[str]]

JobOutput = Callable[[], Sequence[str]]

#: How many failed replicas are examined at most, to find one that did not fail because of another.
MOST_LOOKED_AT = 8
#: Causes that say only how a program ended; the backend's own programs may know more.
_UNEXPLAINED = frozenset({"unknown", "killed"})
#: How slurmstepd, srun, and the container runtimes that they start mark their errors.
_BY_BACKEND = re.compile(r"\b(error|FATAL|ERROR)\b:?")
#: Exit codes of crashes: no text of the log is better evidence.
_CRASHES = frozenset({132, 135, 136, 139})
_LONGEST_EVIDENCE = 300
#: How much of each line of a log is looked at: some programs write megabytes without a line's end.
_LONGEST_LINE = 4000
_OF_REPLICA = re.compile(r"(?<!\S)\S+/\d+: ")
#: "exit code 127, as when a program is not in the image" says no more than the code itself
_EXIT_CODE = re.compile(r"exit code \d+(, as .*)?")
#: The toolkit's report begins with the script and its exit code.
_BY_TOOLKIT = re.compile(r"^\S+ ended with exit code \d+: ")
#: What shells write of a program that they cannot run.
_NOT_RUN = re.compile(r"not found|no such file|permission denied|cannot execute", re.IGNORECASE)
#: What programs write about problems from which they recover.
_IN_PASSING = re.compile(r"\bretry(ing)?\b(?!: )|\b(WARNING|INFO|DEBUG)\b|will try again", re.IGNORECASE)
_QUOTED = re.compile(r"exit code \d+: (.*)")


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
    first: Failure | None = None
    for replica in failed[:MOST_LOOKED_AT]:
        lines = [line[:_LONGEST_LINE] for line in log_of(replica)]
        found = _explain_replica(status, replica, lines)
        if found.cause.name in _UNEXPLAINED or (found.cause.name == "exit" and not found.log):
            _add_job_output(found, job_output())
        first = first or found
        if not found.cause.is_consequence:
            first = found
            break
    if first is None:
        first = _explain_job(status)
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


def _explain_job(status: AppStatus) -> Failure:
    said = _texts(status.msg)
    error = [] if status.structured_error_msg == NONE else [error_message(status.structured_error_msg)[0]]
    rules = causes.rules()
    found = causes.first_match(rules, SCHEDULER, said) or causes.first_match(rules, ERROR, error)
    cause, evidence = found or (causes.CAUSES["unknown"], "")
    return Failure(cause, evidence, reason="\n".join(said))


def _explain_replica(status: AppStatus, replica: ReplicaStatus, lines: Sequence[str]) -> Failure:
    # the job's reason describes the replica if it is the only one, or where the replica has none
    whole = _texts(status.msg) if not replica.reason or len(status.replicas()) == 1 else []
    reasons = dict.fromkeys([*_texts(replica.reason), *whole])
    # "exit code 1: TEXT" quotes the program, whose words are not the scheduler's
    quoted = [match[1] for each in reasons if (match := _QUOTED.fullmatch(each))]
    said = [each for each in reasons if not _QUOTED.fullmatch(each)]
    report = "" if replica.structured_error_msg == NONE else error_message(replica.structured_error_msg)[0]
    traceback = log_end.decisive(log_end.tracebacks(lines))
    if traceback is not None and traceback.is_wrapper and report:
        traceback = None
    rank, signal = log_end.root_of_torchrun(lines)
    errors = [_BY_TOOLKIT.sub("", line) for line in report.splitlines() if line.strip()]
    errors = [*errors[:1], *errors[-1:], *quoted]
    if traceback is not None:
        errors += [*reversed(traceback.exceptions)]
        rank = traceback.rank or rank
    has_exception = traceback is not None or any(log_end.NAMES_EXCEPTION.match(line) for line in errors)
    cause, evidence = _decide(replica, said, errors, lines, signal, has_exception)
    if (
        cause.name == "unknown"
    ):  # what the scheduler says of the job may hold for its replicas, such as a lost node
        found = causes.first_match(causes.rules(), SCHEDULER, _texts(status.msg))
        cause, evidence = found or (cause, evidence)
    shown = report.splitlines() if traceback is None and "Traceback" in report else []
    rank = rank or _rank_of(evidence, lines)
    return Failure(
        cause,
        evidence[:_LONGEST_EVIDENCE],
        replica,
        rank,
        traceback.shown() if traceback is not None else shown[-log_end.TRACEBACK_LINES :],
        log_end.around(lines, evidence if evidence in lines else ""),
        "\n".join(reasons),
    )


def _add_job_output(failure: Failure, lines: Sequence[str]) -> None:
    """Explain a failure by what the backend's own programs wrote, if that names a cause."""
    said = [line for line in lines if _BY_BACKEND.search(line)]
    found = causes.first_match(causes.rules(), SCHEDULER, said)
    if found is None or found[0].name in _UNEXPLAINED:
        return
    failure.cause, failure.evidence = found[0], found[1].strip()[:_LONGEST_EVIDENCE]
    failure.log = failure.log or log_end.around(lines, found[1])


def _rank_of(evidence: str, lines: Sequence[str]) -> str:
    """Return the rank of the process that wrote a line; "" if the line does not say."""
    split = (log_end.without_prefix(line) for line in lines if evidence and evidence in line)
    return next((rank for rank, text in split if text.strip() == evidence.strip()), "")


def _decide(
    replica: ReplicaStatus,
    said: Sequence[str],
    errors: Sequence[str],
    lines: Sequence[str],
    signal: int,
    has_exception: bool,
) -> tuple[Cause, str]:
    """Return the cause and the line that shows it, the best evidence first."""
    rules = causes.rules()
    found = causes.first_match(rules, SCHEDULER, said)
    if found:
        return found
    code = replica.exit_code
    named = causes.cause_of_signal(" ".join([*said, replica.reason])) or causes.BY_EXIT_CODE.get(
        code or 0, ""
    )
    if signal:
        named = causes.BY_EXIT_CODE.get(128 + signal, named)
    texts = [log_end.without_prefix(line)[1] for line in lines]
    if code in (126, 127):
        not_run = [line.strip() for line in texts if _NOT_RUN.search(line)]
        found = causes.first_match(rules, START, [line.strip() for line in texts])
        return found or (causes.CAUSES[named], (not_run or [log_end.last_words(lines)])[-1])
    if code in _CRASHES or named == "segfault":
        said_so = causes.first_match(causes.LOG_RULES, LOG, texts)
        return causes.CAUSES[named], said_so[1].strip() if said_so and said_so[0].name == named else ""
    found = causes.first_match(rules, ERROR, errors) or causes.first_match(rules, LOG, texts)
    if found:
        return found
    real = [line for line in errors if line.strip()]
    # if an exception only says that a child failed, the child's own output says more
    if real and has_exception and not named and not log_end.is_wrapper(real[0]):
        return causes.CAUSES["exception"], real[0]
    near = [line for line in texts[-log_end.NEAR_THE_END :] if not _IN_PASSING.search(line)]
    found = causes.first_match(rules, ERROR, near) or causes.first_match(causes.LOG_RULES, LOG, texts)
    if found:
        return found
    if named:
        return causes.CAUSES[named], ""
    if real and has_exception:
        return causes.CAUSES["exception"], real[0]
    return causes.CAUSES["exit" if code else "unknown"], real[0] if real else log_end.last_words(lines)


def _texts(reason: str) -> list[str]:
    """Return the lines of a reason that say more than an exit code, without the name of the replica."""
    lines = [] if reason in ("", NONE) else [_OF_REPLICA.sub("", line) for line in reason.splitlines()]
    return [line for line in lines if not _EXIT_CODE.fullmatch(line)]
