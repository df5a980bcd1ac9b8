"""Whether a failure is retried, by its class: its cause is found as for `shunter why`, and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shunter._toolkit import retry_rule
from shunter.diagnosis.causes import Cause
from shunter.diagnosis.failures import explain_failure
from shunter.specs.retries import OOM, RetryRule
from shunter.specs.status import AppState, AppStatus, ReplicaStatus, RoleStatus


class Decision(NamedTuple):
    """Whether there is another attempt, why, in words, and how many MB of memory it gets (0: as before)."""

    again: bool
    words: str
    memory_mb: int


class RetryCounts:
    """Counts the retries of a job, by class of failure and by group of replicas that restart together.

    Args:
        rules: the fields of a `RetryRule` by class.
    """

    def __init__(self, rules: Mapping[str, Mapping[str, int]]) -> None:
        self.rules = {name: RetryRule(**rule) for name, rule in rules.items()}
        self._used: dict[tuple[str, str], int] = {}

    def decide(
        self,
        scope: str,
        role: str,
        replica: Mapping[str, Any],
        log_end: Callable[[], Sequence[str]],
        memory_mb: int = 0,
    ) -> Decision | None:
        """Decide whether there is another attempt, which is counted.

        None if there is no rule for the class of this failure.

        Args:
            scope: what would be restarted together.
            role: the replica's role.
            replica: ``id``, ``exit_code`` and ``reason`` of the replica that failed.
            log_end: reads the last lines that it wrote.
            memory_mb: the limit of its memory; 0 without one.
        """
        cause, evidence = cause_of(role, replica, log_end)
        rule = self.rules.get(cause.retry_class)
        if rule is None:
            return None
        used = self._used.get((scope, cause.retry_class), 0)
        memory = memory_mb if cause.retry_class == OOM else 0
        against = rule.verdict(used, memory)
        if not against:
            self._used[scope, cause.retry_class] = used + 1
        more = rule.more_memory(memory) if not against else 0
        return Decision(not against, words(cause, evidence, rule, used, against, memory), more)


def words(cause: Cause, evidence: str, rule: RetryRule, used: int, against: str, memory_mb: int = 0) -> str:
    """Say in words whether a failure was retried."""
    return retry_rule.words(cause.text, evidence, cause.retry_class, rule, used, against, memory_mb)


def cause_of(
    role: str, replica: Mapping[str, Any], log_end: Callable[[], Sequence[str]]
) -> tuple[Cause, str]:
    """Return the cause of a replica's failure, and the line that shows it."""
    status = ReplicaStatus(
        replica["id"], AppState.FAILED, role, exit_code=replica["exit_code"], reason=replica["reason"]
    )
    failure = explain_failure(
        AppStatus(AppState.FAILED, roles=[RoleStatus(role, [status])]), lambda _: log_end()
    )
    return failure.cause, failure.evidence
