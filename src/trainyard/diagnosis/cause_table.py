"""The causes of failures as the toolkit takes them, so that jobs find the same causes as `trainyard why`."""

from __future__ import annotations

from trainyard.diagnosis import causes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def causes_table() -> dict[str, Any]:
    """Return the causes of failures and their rules, those of plugins too, as the toolkit takes them."""
    known = dict(causes.CAUSES)

    def row(rule: causes.Rule) -> list[str]:
        cause = causes.cause(rule.cause)
        known.setdefault(cause.name, cause)
        return [cause.name, rule.where, rule.pattern]

    rules = [row(rule) for rule in causes.rules()]
    log_rules = [row(rule) for rule in causes.log_rules()]
    return {
        "causes": {
            cause.name: {
                "text": cause.text,
                "class": cause.retry_class,
                "is_consequence": cause.is_consequence,
            }
            for cause in known.values()
        },
        "rules": rules,
        "log_rules": log_rules,
        "by_exit_code": {str(code): name for code, name in causes.BY_EXIT_CODE.items()},
    }
