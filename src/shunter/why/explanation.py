"""All that `shunter why` says of a job: gathered from its scheduler, its logs and the history."""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shunter._toolkit.log_end import last_words
from shunter.diagnosis.failures import Failure, explain_failure
from shunter.diagnosis.waiting import Waiting, explain_waiting
from shunter.errors import ShunterError
from shunter.redaction import Redactor
from shunter.runner import Runner, installed_packages
from shunter.runner.records import JobRecord
from shunter.schedulers.api import JobDetails, LogQuery, Stream
from shunter.schedulers.lines import end_of
from shunter.specs.retries import NODE
from shunter.specs.status import NONE, AppState, AppStatus, ReplicaStatus
from shunter.terminal import clean
from shunter.why.comparison import Comparison
from shunter.workspace.code_store import Store

#: How much of a log's end is read: lines, and bytes, since a program may write a line without an end.
LOG_LINES = 2000
LOG_BYTES = 4 << 20
MOST_CHANGES = 8
#: Schedulers on which the toolkit inside the job looks for hangs; how its notes in the log begin, also about
#: the end of idle jobs; of how many replicas the logs are read for them.
_HANGS_IN_LOGS = ("kubernetes", "aws_batch", "aws_sagemaker")
_NOTE = " shunter-toolkit WARNING "
MOST_REPLICAS = 16
#: Causes that another Python or other packages may have.
_OF_PACKAGES = ("missing_module", "wrong_version", "syntax")
_WAITS = (AppState.SUBMITTED, AppState.PENDING)
#: Causes that do not lie in the job: the same job may succeed.
_TRANSIENT = frozenset({"preempted", "node_lost", "supervisor", "submission", "terminated", "removed"})


@dataclass
class Explanation:
    """Why a job is in its state.

    Args:
        handle: the job.
        status: its status.
        failure: why it failed; None if it did not.
        waiting: why it waits; None if it does not.
        last_good: id of the last job of the same name that succeeded; "" without one.
        changes: what differs from that job.
        try_command: the command to try next; "" if there is nothing to do.
    """

    handle: str
    status: AppStatus
    failure: Failure | None = None
    waiting: Waiting | None = None
    last_good: str = ""
    changes: list[str] = field(default_factory=list)
    try_command: str = ""

    @property
    def scheduler(self) -> str:
        """Name of the job's scheduler."""
        return self.handle.partition("://")[0]

    @property
    def headline(self) -> str:
        """The failure in one line: the replica, what happened, and the line that shows it."""
        assert self.failure is not None
        evidence, text = self.failure.evidence.strip(), self.failure.cause.text
        words = text.removeprefix("was ")
        if evidence.startswith(words):  # the scheduler says the same, and more exactly
            return f"{self.failure.place} {text}{evidence[len(words) :]}"
        return f"{self.failure.place} {text}" + (f": {evidence}" if evidence else "")

    def short(self) -> list[str]:
        """Return the failure in three lines."""
        assert self.failure is not None
        advice = [self.failure.cause.advice] if self.failure.cause.advice else []
        return [self.headline, *advice, f"`shunter why {_id(self.handle)}` shows more."]

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        failure, waiting = self.failure, self.waiting
        log: list[str] = []
        if failure is not None:
            texts, log = [self.headline, failure.cause.advice], failure.traceback or failure.log
        elif waiting is not None:
            texts = [waiting.text, waiting.advice]
        else:
            texts = [f"It neither failed nor waits: it is {self.status.state}."]
        shown = [f"<p>{html.escape(clean(text))}</p>" for text in texts if text]
        if log:
            lines = html.escape("\n".join(map(clean, log)))
            shown.append(f"<details><summary>lines of its log</summary><pre>{lines}</pre></details>")
        return "\n".join(shown)

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        data: dict[str, Any] = {
            "handle": self.handle,
            "state": self.status.state.name,
            "msg": self.status.msg,
        }
        failure, waiting = self.failure, self.waiting
        if failure is not None:
            data["failure"] = {
                "cause": failure.cause.name,
                "text": failure.cause.text,
                "advice": failure.cause.advice,
                "evidence": failure.evidence,
                "replica": None if failure.replica is None else failure.replica.to_json(),
                "rank": failure.rank,
                "traceback": failure.traceback,
                "log": failure.log,
                "reason": failure.reason,
                "failed": failure.failed,
                "replicas": failure.replicas,
                "problem": failure.problem,
            }
            data["last_good"], data["changes"] = self.last_good, self.changes
        if waiting is not None:
            data["waiting"] = vars(waiting).copy()
        return {**data, "try": self.try_command}


def explain(runner: Runner, handle: str, status: AppStatus) -> Explanation:
    """Return why a job is in its state; what cannot be found out now is left out."""
    explanation = Explanation(handle, status)
    if status.state == AppState.FAILED:
        explanation.failure = explain_failed(runner, handle, status)
        record = _recorded(runner, handle)
        _add_changes(runner, explanation, record)
        _add_difference(explanation.failure, record)
        explanation.try_command = _without_its_host(runner, explanation, record) or _next_command(
            explanation, record
        )
    elif status.state in _WAITS:
        position = _asked(runner, handle, lambda details: details.queue_position())
        explanation.waiting = waiting = explain_waiting(status, position)
        if waiting.kind == "no_capacity":
            change = _asked(runner, handle, lambda details: details.smallest_change())
            waiting.advice = change or waiting.advice
        explanation.try_command = _next_command(explanation, None)
    elif _has_notes(explanation, _recorded(runner, handle)):
        add_notes(runner, handle, status)
    return explanation


def _has_notes(explanation: Explanation, record: JobRecord | None) -> bool:
    """Tell whether the log may say that the job hangs, or that it ended because nobody used it."""
    if record is None:
        return False
    if explanation.status.state == AppState.SUCCEEDED:
        return record.is_dev_job
    return (
        explanation.status.state == AppState.RUNNING
        and explanation.scheduler in _HANGS_IN_LOGS
        and bool(record.cfg.get("hang_timeout"))
    )


def add_notes(runner: Runner, handle: str, status: AppStatus) -> None:
    """Add to each replica the toolkit's last note about it in its log."""
    for replica in status.replicas()[:MOST_REPLICAS]:
        try:
            lines = _end_of_log(runner, handle, replica)
        except (ShunterError, NotImplementedError, OSError):
            continue
        noted = [line.partition(_NOTE)[2].strip() for line in lines if _NOTE in line]
        replica.notes = [*replica.notes, *(text for text in noted[-1:] if text.startswith("it "))]


def _end_of_log(
    runner: Runner, handle: str, replica: ReplicaStatus, streams: Stream | None = None
) -> list[str]:
    query = LogQuery(last=LOG_LINES, streams=streams, most_bytes=LOG_BYTES)
    data = end_of(runner.log_blocks(handle, [(replica.role, replica.id)], query), LOG_BYTES)
    return data.decode("utf-8", "replace").splitlines()


def explain_failed(runner: Runner, handle: str, status: AppStatus) -> Failure:
    """Return why a job failed, from its status and logs."""
    problems: list[str] = []

    def log_of(replica: ReplicaStatus, streams: Stream | None = None) -> Sequence[str]:
        try:
            return _end_of_log(runner, handle, replica, streams)
        except (ShunterError, NotImplementedError, OSError) as error:
            problems.append(error.message if isinstance(error, ShunterError) else str(error))
            return []

    def job_output() -> Sequence[str]:
        try:
            return runner.scheduler(handle.partition("://")[0]).details(_id(handle)).backend_output()
        except (ShunterError, OSError):
            return ()  # it would only have added detail

    failure = explain_failure(status, log_of, job_output)
    failure.problem = problems[0] if problems else ""
    is_plain_exit = failure.cause.name == "exit" and not problems
    if is_plain_exit and failure.replica is not None and failure.replica.structured_error_msg == NONE:
        # what waited in a buffer is written to stdout at the very end, after the reason on stderr
        failure.evidence = last_words(log_of(failure.replica, Stream.STDERR)) or failure.evidence
    _mask_secrets(failure)
    return failure


def _mask_secrets(failure: Failure) -> None:
    """Replace secrets in what an explanation quotes: it is pasted into issues, and sent to others."""
    mask = Redactor().text
    failure.evidence, failure.reason = mask(failure.evidence), mask(failure.reason)
    failure.traceback = mask("\n".join(failure.traceback)).split("\n") if failure.traceback else []
    failure.log = mask("\n".join(failure.log)).split("\n") if failure.log else []


def _recorded(runner: Runner, handle: str) -> JobRecord | None:
    try:
        return runner.history.find(handle)
    except ShunterError:
        return None  # a broken history does not hide why the job failed


def _add_changes(runner: Runner, explanation: Explanation, record: JobRecord | None) -> None:
    if record is None:
        return
    good = runner.history.before(record, succeeded=True)
    if good is None:
        return
    explanation.last_good = good.app_id
    explanation.changes = list(Comparison(good, record, Store()).summary())
    if len(explanation.changes) > MOST_CHANGES:
        explanation.changes[MOST_CHANGES - 1 :] = [
            f"... `shunter diff {good.app_id} {record.app_id}` shows all"
        ]


def _add_difference(failure: Failure, record: JobRecord | None) -> None:
    """Say what differs from where the job was submitted, if it lacks a package or has another version."""
    if record is None or not record.installed or failure.cause.name not in _OF_PACKAGES:
        return
    lines = [failure.evidence, *failure.traceback, *failure.log]
    text = installed_packages.difference(record.installed, lines)
    if text:
        advice = f"{text} Take its packages along: --environment requirements.txt."
        failure.cause = replace(failure.cause, advice=advice)


def _asked(runner: Runner, handle: str, question: Callable[[JobDetails], str]) -> str:
    """Return what the scheduler answers about a job; "" if it cannot be asked."""
    try:
        return question(runner.scheduler(handle.partition("://")[0]).details(_id(handle)))
    except (ShunterError, OSError):
        return ""


def _without_its_host(runner: Runner, explanation: Explanation, record: JobRecord | None) -> str:
    """Return the command that runs a job again on other hosts, after a failure caused by its host.

    It is "" if the scheduler cannot exclude hosts, or if the job names the hosts to use.
    """
    failure = explanation.failure
    assert failure is not None
    if record is None or failure.replica is None or failure.cause.retry_class != NODE:
        return ""
    try:
        can_exclude = "exclude" in dict(runner.scheduler(explanation.scheduler).run_opts())
    except ShunterError:
        return ""
    host, before = failure.replica.hostname, record.cfg.get("exclude") or []
    if not (can_exclude and host) or record.cfg.get("nodelist"):
        return ""
    hosts = ",".join(dict.fromkeys([*(before.split(",") if isinstance(before, str) else before), host]))
    return f"shunter rerun {shlex.quote(_id(explanation.handle))} -cfg {shlex.quote(f'exclude={hosts}')}"


def _next_command(explanation: Explanation, record: JobRecord | None) -> str:
    job = shlex.quote(_id(explanation.handle))
    if explanation.waiting is not None:
        if explanation.waiting.kind in ("impossible", "unavailable", "unknown"):
            return f"shunter doctor -s {explanation.scheduler}"
        return "" if explanation.waiting.kind == "starting" else f"shunter wait {job}"
    failure = explanation.failure
    assert failure is not None
    if failure.cause.name == "timeout" and record is not None:
        for name in ("timeout", "time_limit", "max_runtime_in_seconds"):
            limit = record.cfg.get(name)
            if isinstance(limit, (int, float)) and limit > 0:
                return f"shunter rerun {job} -cfg {name}={2 * limit:g}"
    if failure.cause.name == "image":
        return f"shunter doctor -s {explanation.scheduler}"
    if failure.cause.name in _TRANSIENT:
        return f"shunter rerun {job}"
    if failure.replica is None:
        return f"shunter describe {job}"
    where = shlex.quote(f"{_id(explanation.handle)}/{failure.replica.role}/{failure.replica.id}")
    return f"shunter log {where} --tail 100"


def _id(handle: str) -> str:
    return handle.rpartition("/")[2]
