"""Retries on Batch: the rules that decide after each attempt, and afterwards what they decided.

Batch applies the first rule that matches an attempt's exit code, reason and status reason. If none matches,
it restarts the job while attempts are left. There are at most five rules
(https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html). Patterns are exact, or a beginning with
a ``*`` (API reference, EvaluateOnExit).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shunter._toolkit import race_lease
from shunter.errors import ConfigError
from shunter.schedulers.aws_batch_scheduler.options import RETRY_ANY, RETRY_SPOT, AWSBatchOpts
from shunter.schedulers.native_retries import EXCEPTION_CODES, BackendRetries, backend_retries
from shunter.schedulers.toolkit_supervision import EndRules
from shunter.specs.retries import EXCEPTION, OOM, OTHER, PREEMPTED

#: What Batch says of a job whose host was taken away: "Host EC2 (instance i-...) terminated."
HOST_GONE = "Host EC2*"
#: What the container's reason begins with when it exceeded its memory.
OUT_OF_MEMORY = "OutOfMemoryError*"
MOST_ATTEMPTS = 10
MOST_RULES = 5

RETRY, EXIT = "RETRY", "EXIT"
_EXIT_CODE, _REASON, _STATUS = "onExitCode", "onReason", "onStatusReason"
_WHAT = {"exit": _EXIT_CODE, "reason": _REASON, "status": _STATUS}
_ACTIONS = {"retry": RETRY, "final": EXIT}
_RULE = re.compile(r"(?P<what>\w+)[:=](?P<pattern>.+):(?P<action>\w+)")
_EXAMPLE = "Example: exit:137:retry, reason:CannotPullContainer*:final, status:Host EC2*:retry"
_WORDS = {_EXIT_CODE: "exit code", _REASON: "reason", _STATUS: "status reason"}


def retry_strategy(
    max_retries: int, opts: AWSBatchOpts, *, in_race: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Return the retry strategy, and warnings about differences from what the user may expect.

    The rules of ``retry_rules`` come before those of ``retry`` and ``retry_on``. What has lost a race is not
    retried.

    Raises:
        ConfigError: a rule does not parse, there are too many retries or rules, or Batch cannot honour one.
    """
    if max_retries >= MOST_ATTEMPTS:
        raise ConfigError(
            f"max_retries is {max_retries}: AWS Batch makes at most {MOST_ATTEMPTS} attempts",
            hint=f"Give at most {MOST_ATTEMPTS - 1}.",
        )
    own = opts.retry_rules or []
    found = [{_EXIT_CODE: "0", "action": EXIT}]
    if in_race and max_retries:
        found.append({_EXIT_CODE: str(race_lease.LOST), "action": EXIT})
    found += map(_rule, own)
    warnings: list[str] = []
    room = MOST_RULES - len(found)
    if opts.retry:
        if opts.retry_on != RETRY_ANY:
            raise ConfigError("retry and retry_on both say what is retried", hint="Leave retry_on out.")
        retries = backend_retries("aws_batch", opts.retry, max_retries)
        max_retries = retries.counted
        rules, codes = _rules_of(retries, room)
        found += rules
        warnings = [*retries.warnings, *_warning_of(codes)]
    elif opts.retry_on == RETRY_SPOT:
        found += [{_STATUS: HOST_GONE, "action": RETRY}, {_REASON: "*", "action": EXIT}]
    if len(found) > MOST_RULES:
        ours = len(found) - len(own)
        raise ConfigError(f"retry_rules has {len(own)} rules, AWS Batch accepts {MOST_RULES} with our {ours}")
    return {"attempts": max_retries + 1, "evaluateOnExit": found}, warnings


def _rule(text: str) -> dict[str, str]:
    parts = _RULE.fullmatch(text.strip())
    if parts is None or parts["what"] not in _WHAT or parts["action"] not in _ACTIONS:
        raise ConfigError(f"retry_rules: cannot read {text!r}", hint=_EXAMPLE)
    what, pattern = parts["what"], parts["pattern"]
    allowed = r"[0-9]*\*?" if what == "exit" else r"[^*]*\*?"
    if re.fullmatch(allowed, pattern) is None or len(pattern) > 512:
        raise ConfigError(
            f"retry_rules: {pattern!r} of {text!r} is not a pattern: only the last character may be a *"
            + (", after digits" if what == "exit" else ""),
            hint=_EXAMPLE,
        )
    return {_WHAT[what]: pattern, "action": _ACTIONS[parts["action"]]}


def _rules_of(retries: BackendRetries, room: int) -> tuple[list[dict[str, str]], tuple[int, ...]]:
    """Return the rules for classes of failures, and the exit codes by which they recognise exceptions.

    Failures that no rule matches are retried. So final failures need a rule, and failures that are to be
    retried nevertheless need one before it. Exit codes take the rules that are left, one for each.
    """
    action = {name: EXIT if retries.is_final(name) else RETRY for name in retries.times}
    if not retries.counted:
        return [], EXCEPTION_CODES  # one attempt: no rule has an effect
    last = [{_REASON: "*", "action": EXIT}] if action[OTHER] == EXIT else []
    first = []
    # the hosts' rule first: a container that ends with its host has an exit code, too
    for name, what, pattern in ((PREEMPTED, _STATUS, HOST_GONE), (OOM, _REASON, OUT_OF_MEMORY)):
        if action[name] != action[OTHER]:
            first.append({what: pattern, "action": action[name]})
    if action[EXCEPTION] == action[OTHER]:
        return [*first, *last], EXCEPTION_CODES
    codes = EXCEPTION_CODES[: max(1, room - len(first) - len(last))]
    middle = [{_EXIT_CODE: str(code), "action": action[EXCEPTION]} for code in codes]
    return [*first, *middle, *last], codes


def _warning_of(codes: tuple[int, ...]) -> list[str]:
    if codes == EXCEPTION_CODES:
        return []
    shown = ", ".join(map(str, codes))
    text = f"aws_batch accepts {MOST_RULES} rules, so it recognises exceptions only by the exit codes {shown}"
    return [f"{text}; other failures with these exit codes (NCCL, MemoryError) are counted the same way"]


def end_rules(strategy: Mapping[str, Any]) -> EndRules:
    """Return which exits of a program end the job, as far as the program can know.

    It knows its exit code, and in ``AWS_BATCH_JOB_ATTEMPT`` the number of its attempt. Of the other rules,
    the one for memory counts as exit code 137; those for lost hosts do not matter, since no program is left
    to report.
    https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
    """
    attempts = int(strategy["attempts"])
    codes: list[tuple[str, bool]] = []
    for rule in strategy["evaluateOnExit"]:
        may = rule["action"] == RETRY
        conditions = {key for key in _WORDS if key in rule}
        if conditions == {_EXIT_CODE}:
            codes.append((rule[_EXIT_CODE], may))
        elif rule.get(_REASON) == OUT_OF_MEMORY:
            codes.append(("137", may))
        elif rule.get(_REASON) == "*":
            codes.append(("*", may))
        elif rule.get(_STATUS) != HOST_GONE:
            codes.append(("*", True))  # nothing is known from here on, but the last attempt
    stopped = "CANCELLED" if attempts == 1 else ""
    return EndRules(attempts, "AWS_BATCH_JOB_ATTEMPT", 1, codes, stopped)


# ---- afterwards


def verdict(job: Mapping[str, Any], exit_code: int | None, reason: str, status: str) -> str:
    """Return why a failed job was not restarted; "" if it had one attempt, or Batch does not say.

    Exit code and reason are those of the last attempt's container, ``status`` is the job's status reason.
    """
    strategy = job.get("retryStrategy") or {}
    most, made = int(strategy.get("attempts") or 1), len(job.get("attempts") or ())
    if most < 2 or not made:
        return ""
    if made >= most:
        return f"not restarted: {made} of {most} attempts are used up"
    code = "" if exit_code is None else str(exit_code)
    values = {_EXIT_CODE: code, _REASON: reason, _STATUS: status}
    for rule in strategy.get("evaluateOnExit") or []:
        conditions = {key: str(rule[key]) for key in _WORDS if rule.get(key)}
        if conditions and all(_matches(pattern, values[key]) for key, pattern in conditions.items()):
            if str(rule.get("action")).upper() != EXIT:
                return ""
            shown = ", ".join(f"{_WORDS[key]} {pattern}" for key, pattern in conditions.items())
            return f"not restarted: its rule for {shown} says EXIT"
    return ""


def _matches(pattern: str, value: str) -> bool:
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern
