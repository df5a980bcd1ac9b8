"""What Batch starts again: the retry strategy of a job definition.

Batch looks at its rules in order, and the first that fits an attempt's exit code, reason and status reason
decides. Where none fits it starts the job again, as long as attempts are left
(https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html).
"""

from __future__ import annotations

import re
from typing import Any

from trainyard.errors import ConfigError
from trainyard.schedulers.aws.batch.options import RETRY_SPOT

#: What Batch says of a job whose host was taken away: "Host EC2 (instance i-...) terminated."
HOST_GONE = "Host EC2*"
MOST_ATTEMPTS = 10
MOST_RULES = 5

_WHAT = {"exit": "onExitCode", "reason": "onReason", "status": "onStatusReason"}
_ACTIONS = {"retry": "RETRY", "final": "EXIT"}
_RULE = re.compile(r"(?P<what>\w+)[:=](?P<pattern>.+):(?P<action>\w+)")
_EXAMPLE = "Example: exit:137:retry, reason:CannotPullContainer*:final, status:Host EC2*:retry"


def retry_strategy(max_retries: int, retry_on: str, rules: list[str] | None) -> dict[str, Any]:
    """Return the strategy: one attempt, and one for each retry.

    Args:
        max_retries: how often a job is started again.
        retry_on: ``any`` or ``spot``.
        rules: rules of the user's, which come first.

    Raises:
        ConfigError: a rule does not parse, or there are too many retries or rules.
    """
    if max_retries >= MOST_ATTEMPTS:
        raise ConfigError(
            f"max_retries is {max_retries}: AWS Batch makes at most {MOST_ATTEMPTS} attempts",
            hint=f"Give at most {MOST_ATTEMPTS - 1}.",
        )
    found = [{"onExitCode": "0", "action": "EXIT"}, *map(_rule, rules or [])]
    if retry_on == RETRY_SPOT:
        found += [{"onStatusReason": HOST_GONE, "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}]
    if len(found) > MOST_RULES:
        ours = len(found) - len(rules or [])
        raise ConfigError(
            f"retry_rules has {len(rules or [])} rules, AWS Batch takes {MOST_RULES}, and {ours} are ours"
        )
    return {"attempts": max_retries + 1, "evaluateOnExit": found}


def _rule(text: str) -> dict[str, str]:
    parts = _RULE.fullmatch(text.strip())
    if parts is None or parts["what"] not in _WHAT or parts["action"] not in _ACTIONS:
        raise ConfigError(f"retry_rules: cannot read {text!r}", hint=_EXAMPLE)
    what, pattern = parts["what"], parts["pattern"]
    allowed = r"[0-9]*\*?" if what == "exit" else r"[^*]*\*?"
    if re.fullmatch(allowed, pattern) is None or len(pattern) > 512:
        raise ConfigError(
            f"retry_rules: {pattern!r} of {text!r} is no pattern: a * stands at the end only"
            + (", after digits" if what == "exit" else ""),
            hint=_EXAMPLE,
        )
    return {_WHAT[what]: pattern, "action": _ACTIONS[parts["action"]]}
