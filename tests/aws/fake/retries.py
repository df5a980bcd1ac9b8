"""Which attempts are followed by another: the rules ``evaluateOnExit``."""

from __future__ import annotations

from fnmatch import fnmatchcase

from tests.aws.fake.jobs import Job


def is_retried(job: Job, exit_code: int | None, reason: str, status_reason: str) -> bool:
    """Tell whether the rules want another attempt; the first rule that fits decides, and none means yes."""
    if exit_code == 0:
        return False
    strategy = job.request.get("retryStrategy") or job.definition.get("retryStrategy") or {}
    found = {
        "onExitCode": "" if exit_code is None else str(exit_code),
        "onReason": reason,
        "onStatusReason": status_reason,
    }
    for rule in strategy.get("evaluateOnExit", []):
        conditions = {key: pattern for key, pattern in rule.items() if key != "action"}
        # patterns may end in * and do not depend on case
        if all(fnmatchcase(found[key].lower(), pattern.lower()) for key, pattern in conditions.items()):
            action: str = rule["action"]
            return action.upper() == "RETRY"
    return True
