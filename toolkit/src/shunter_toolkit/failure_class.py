"""Why a replica failed: from what the scheduler says, its exit code, its report and the end of its log.

The launcher's table of causes travels with the job, so retries are based on the causes that ``shunter why``
names; ``shunter why`` itself decides here.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import log_end

#: Where a rule looks: at the scheduler's words, at exceptions and reports, at any line of the log's end, and
#: at the log of a program that ended with 126 or 127: what shells and loaders write there.
SCHEDULER, ERROR, LOG, START = "scheduler", "error", "log", "start"
#: Causes that say only how a program ended: the output of the queue's programs is better evidence.
UNEXPLAINED = frozenset({"unknown", "killed"})
#: How slurmstepd, srun, and the container runtimes that they start mark their errors.
_BY_QUEUE = re.compile(r"\b(error|FATAL|ERROR)\b:?")
_NOT_RUN_CODES = (126, 127)
#: Exit codes of crashes: no text of the log is better evidence.
_CRASHES = frozenset({132, 135, 136, 139})
_LONGEST_EVIDENCE = 300
#: What shells write of a program that they cannot run.
_NOT_RUN = re.compile(r"not found|no such file|permission denied|cannot execute", re.IGNORECASE)
#: What programs write about problems from which they recover.
_IN_PASSING = re.compile(r"\bretry(ing)?\b(?!: )|\b(WARNING|INFO|DEBUG)\b|will try again", re.IGNORECASE)
#: The toolkit's report begins with the script and its exit code.
_BY_TOOLKIT = re.compile(r"^\S+ ended with exit code \d+: ")
#: "exit code 1: TEXT" quotes the program, whose words are not the scheduler's.
_QUOTED = re.compile(r"exit code \d+: (.*)")


@dataclass(frozen=True)
class Found:
    """The cause of a failure.

    Args:
        name: of the cause, as in the launcher's table.
        text: what happened, as the end of the sentence "train/0 ...".
        failure_class: by which its retries are asked for and counted.
        is_consequence: whether it mostly follows from the failure of another replica.
        evidence: the line that shows it; "" if the exit code alone does.
        rank: which of the replica's processes it was; "" if there is one, or unknown.
        traceback: the one that the program ended with, if there is one.
    """

    name: str
    text: str
    failure_class: str
    is_consequence: bool
    evidence: str
    rank: str = ""
    traceback: log_end.Traceback | None = None


class Table:
    """The launcher's causes and rules, as JSON values.

    Args:
        data: ``causes`` (by name: ``text``, ``class``, ``is_consequence``), ``rules`` and ``log_rules``
            (lists of cause, where, pattern) and ``by_exit_code``.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._causes = data["causes"]
        self._rules = data["rules"]
        self._log_rules = data["log_rules"]
        self._by_exit_code = {int(code): name for code, name in data["by_exit_code"].items()}

    def cause_of(
        self, said: Sequence[str], code: int | None, log: str | Sequence[str], report: str = ""
    ) -> Found:
        """Return why a replica failed, by the best evidence that there is.

        Args:
            said: what the scheduler says of it.
            code: its exit code, 128 + N after signal N.
            log: the end of its log, or the lines of that.
            report: the error file of torchelastic, or the failure report of the toolkit.
        """
        lines = log.splitlines() if isinstance(log, str) else log
        report = _text_of(report)
        traceback = log_end.decisive(log_end.tracebacks(lines))
        if traceback is not None and traceback.is_wrapper and report:
            traceback = None
        rank, signum = log_end.root_of_torchrun(lines)
        errors = [_BY_TOOLKIT.sub("", line) for line in report.splitlines() if line.strip()]
        errors = [*errors[:1], *errors[-1:]]
        errors += [match[1] for each in said for match in [_QUOTED.fullmatch(each)] if match]
        if traceback is not None:
            errors += reversed(traceback.exceptions)
            rank = traceback.rank or rank
        has_exception = traceback is not None or any(map(log_end.NAMES_EXCEPTION.match, errors))
        named = self._cause_of_signal(" ".join(said)) or self._by_exit_code.get(code or 0, "")
        if signum:
            named = self._by_exit_code.get(128 + signum, named)
        said = [each for each in said if not _QUOTED.fullmatch(each)]
        name, evidence = self._decide(said, errors, lines, code, named, has_exception)
        rank = rank or _rank_of(evidence, lines)
        return self._made(name, evidence, rank, traceback)

    def cause_by_queue(self, lines: Sequence[str]) -> Found | None:
        """Return the cause that the queue's programs name in what they wrote, as slurmstepd does; or None."""
        match = self._match(self._rules, SCHEDULER, [line for line in lines if _BY_QUEUE.search(line)])
        return None if match is None or match[0] in UNEXPLAINED else self._made(*match)

    def cause_in(self, where: str, lines: Sequence[str]) -> Found | None:
        """Return the cause that a rule for a place finds in these lines; None if none does."""
        match = self._match(self._rules, where, lines)
        return None if match is None else self._made(*match)

    def _decide(
        self,
        said: Sequence[str],
        errors: Sequence[str],
        lines: Sequence[str],
        code: int | None,
        named: str,
        has_exception: bool,
    ) -> tuple[str, str]:
        """Return the cause and the line that shows it, the best evidence first.

        Args:
            said: the scheduler's words.
            errors: exceptions and reports, the decisive one first.
            lines: the end of the log.
            code: the exit code.
            named: the cause that a signal or the exit code names.
            has_exception: whether one of the errors is an exception.
        """
        match = self._match(self._rules, SCHEDULER, said)
        if match:
            return match
        texts = [log_end.without_prefix(line)[1] for line in lines]
        if code in _NOT_RUN_CODES:
            not_run = [line.strip() for line in texts if _NOT_RUN.search(line)]
            match = self._match(self._rules, START, [line.strip() for line in texts])
            return match or (named, (not_run or [log_end.last_words(lines)])[-1])
        if code in _CRASHES or named == "segfault":
            match = self._match(self._log_rules, LOG, texts)
            return named, match[1].strip() if match and match[0] == named else ""
        match = self._match(self._rules, ERROR, errors) or self._match(self._rules, LOG, texts)
        if match:
            return match
        errors = [line for line in errors if line.strip()]
        # if an exception only says that a child failed, the child's own output says more
        if errors and has_exception and not named and not log_end.is_wrapper(errors[0]):
            return "exception", errors[0]
        near = [line for line in texts[-log_end.NEAR_THE_END :] if not _IN_PASSING.search(line)]
        match = self._match(self._rules, ERROR, near) or self._match(self._log_rules, LOG, texts)
        if match:
            return match
        if named:
            return named, ""
        if errors and has_exception:
            return "exception", errors[0]
        return "exit" if code else "unknown", errors[0] if errors else log_end.last_words(lines)

    def _match(
        self, rules: Iterable[Sequence[str]], where: str, lines: Sequence[str]
    ) -> tuple[str, str] | None:
        """Return the cause of the first rule for a place that matches one of the lines, and that line."""
        for cause, place, pattern in rules:
            if place == where:
                expression = re.compile(pattern, re.IGNORECASE)
                for line in lines:
                    if line and expression.search(line):
                        return cause, line
        return None

    def _cause_of_signal(self, text: str) -> str:
        """Return the cause that a scheduler's "killed by SIGSEGV" names; "" for none."""
        match = re.search(r"\bSIG[A-Z]+\b", text)
        number = getattr(signal, match[0], 0) if match else 0
        return self._by_exit_code.get(128 + number, "") if number else ""

    def _made(
        self, name: str, evidence: str, rank: str = "", traceback: log_end.Traceback | None = None
    ) -> Found:
        cause = self._causes[name]
        shown = evidence.strip()[:_LONGEST_EVIDENCE]
        return Found(
            name, cause["text"], cause["class"], bool(cause["is_consequence"]), shown, rank, traceback
        )


def _text_of(report: str) -> str:
    """Return what a report says went wrong."""
    try:
        message = json.loads(report)["message"]
        return str(message["message"] if isinstance(message, dict) else message)
    except (ValueError, KeyError, TypeError):
        return report


def _rank_of(evidence: str, lines: Sequence[str]) -> str:
    """Return the rank of the process that wrote a line; "" if the line does not say."""
    split = (log_end.without_prefix(line) for line in lines if evidence and evidence in line)
    return next((rank for rank, text in split if text.strip() == evidence.strip()), "")
