"""Finds, inside a job, why a replica failed and the failure class, by the launcher's table of causes.

The table travels with the job (`Table`), so retries are based on the causes that ``shunter why`` names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import tracebacks

#: Where a rule looks: at the scheduler's words, at exceptions and reports, at any line of the log's end.
SCHEDULER, ERROR, LOG = "scheduler", "error", "log"
#: Causes that explain nothing: the output of the queue's programs is better evidence.
UNEXPLAINED = frozenset({"unknown", "killed"})
_BY_QUEUE = re.compile(r"\berror\b", re.I)
_CRASHES = frozenset({126, 127, 132, 135, 139})
_LONGEST_EVIDENCE = 300


@dataclass(frozen=True)
class Found:
    """The cause of a failure.

    Args:
        name: of the cause, as in the launcher's table.
        text: what happened, as the end of the sentence "train/0 ...".
        failure_class: by which its retries are asked for and counted.
        is_consequence: whether it mostly follows from the failure of another replica.
        evidence: the line that shows it.
    """

    name: str
    text: str
    failure_class: str
    is_consequence: bool
    evidence: str


class Table:
    """The launcher's causes and rules, as JSON values.

    Args:
        data: ``causes`` (by name: ``text``, ``class``, ``is_consequence``), ``rules`` and ``log_rules``
            (lists of cause, where, pattern) and ``by_exit_code``.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._causes = data["causes"]
        self._rules = [(cause, where, re.compile(text, re.I)) for cause, where, text in data["rules"]]
        self._log_rules = [(cause, where, re.compile(text, re.I)) for cause, where, text in data["log_rules"]]
        self._by_exit_code = {int(code): name for code, name in data["by_exit_code"].items()}

    def cause_of(self, said: Sequence[str], code: int | None, log: str, report: str = "") -> Found:
        """Return why a replica failed, by the best evidence that there is.

        Args:
            said: what the scheduler says of it.
            code: its exit code, 128 + N after signal N.
            log: the end of its log.
            report: the error file of torchelastic, or the failure report of the toolkit.
        """
        found = self._match(self._rules, SCHEDULER, said)
        if found:
            return found
        lines = [line for line in log.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        named = self._by_exit_code.get(code or 0, "")
        if code in _CRASHES:
            return self._made(named, last)
        errors = _errors(report)
        trace = tracebacks.find(log)
        if trace is not None:
            errors.append(trace.summary())
        found = self._match(self._rules, ERROR, errors) or self._match(self._rules, LOG, lines)
        if found:
            return found
        if errors and not named:
            return self._made("exception", errors[-1])
        found = self._match(self._rules, ERROR, lines) or self._match(self._log_rules, LOG, lines)
        return found or self._made(named or ("exit" if code else "unknown"), "" if named else last)

    def cause_by_queue(self, lines: Sequence[str]) -> Found | None:
        """Return the cause that the queue's programs name in what they wrote, as slurmstepd does; or None."""
        found = self._match(self._rules, SCHEDULER, [line for line in lines if _BY_QUEUE.search(line)])
        return None if found is None or found.name in UNEXPLAINED else found

    def _match(self, rules: Iterable[Any], where: str, lines: Sequence[str]) -> Found | None:
        for cause, place, pattern in rules:
            if place == where:
                for line in lines:
                    if pattern.search(line):
                        return self._made(cause, line)
        return None

    def _made(self, name: str, evidence: str) -> Found:
        cause = self._causes[name]
        shown = evidence.strip()[:_LONGEST_EVIDENCE]
        return Found(name, cause["text"], cause["class"], bool(cause["is_consequence"]), shown)


def _errors(report: str) -> list[str]:
    """Return what a report says went wrong: its first and its last line."""
    try:
        found = json.loads(report)["message"]
        text = found["message"] if isinstance(found, dict) else found
    except (ValueError, KeyError, TypeError):
        text = report
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return list(dict.fromkeys([*lines[:1], *lines[-1:]]))
