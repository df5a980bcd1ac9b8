"""Retries by class of failure: ``oom=2:64G,node=3,preempted=inf,exception=0``.

The class of a failure is that of its cause (`shunter.diagnosis.causes`, ``retry_class``). A class that is
not named is retried as the role says (``max_retries``), and only such retries count against that number.
"""

from __future__ import annotations

from collections.abc import Mapping

from shunter._toolkit import retry_rule
from shunter.errors import ConfigError, did_you_mean
from shunter.limits import MOST_RETRIES, whole_number
from shunter.specs.resources import parse_memory

OOM, NODE, PREEMPTED, EXCEPTION, OTHER = "oom", "node", "preempted", "exception", "other"
#: The classes, with the failures in each.
CLASSES = {
    OOM: "memory ran out",
    NODE: "the machine was lost, or is defective",
    PREEMPTED: "the machine was needed for something else",
    EXCEPTION: "the program itself is at fault: an exception, a missing module, wrong arguments",
    OTHER: "everything else",
}
WITHOUT_LIMIT = "inf"
_EXAMPLE = "Example: oom=2:64G,node=3,preempted=inf,exception=0."

RetryRule = retry_rule.RetryRule


def parse_retries(texts: Mapping[str, str] | None) -> dict[str, RetryRule]:
    """Read the rules as they are typed, by class.

    Raises:
        ConfigError: a class, a number or a size cannot be read. All of it is reported at once.
    """
    rules: dict[str, RetryRule] = {}
    problems = []
    for name, text in (texts or {}).items():
        if name not in CLASSES:
            problems.append(f"there is no class of failures {name!r}. {did_you_mean(name, CLASSES)}")
            continue
        times, _, size = str(text).partition(":")
        try:
            number = MOST_RETRIES if times == WITHOUT_LIMIT else whole_number(times, 0, MOST_RETRIES)
            rules[name] = RetryRule(number, parse_memory(size) if size else 0)
        except ValueError as error:
            problems.append(f"{name}={text}: {error}")
            continue
        if size and name != OOM:
            problems.append(f"{name}={text}: only {OOM} takes a size, up to which memory grows")
    if problems:
        raise ConfigError("retry cannot be read: " + "; ".join(problems), hint=_EXAMPLE)
    return rules


def without_effect(scheduler: str, rules: Mapping[str, RetryRule], can: tuple[str, ...]) -> list[str]:
    """Return warnings about rules without effect on a scheduler; ``can`` are the classes that it supports."""
    return [
        f"{scheduler} ignores retry {name}: none of its jobs can fail because {CLASSES[name]}"
        for name, rule in rules.items()
        if name not in can and rule.times
    ]
