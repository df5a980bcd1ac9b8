"""Retries by class of failure as a Job honours them: ``podFailurePolicy``, and which rule ended a Job.

Rules look at a pod's conditions and at exit codes; the first that fits holds. Pods that the cluster took away
(preemption, eviction, a lost node) have the condition DisruptionTarget
(https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.native_retries import EXCEPTION_CODES, OOM_CODES, BackendRetries
from shunter.specs.retries import EXCEPTION, OOM, OTHER, PREEMPTED

_TAKEN_AWAY = {"type": "DisruptionTarget", "status": "True"}
_CODES = {OOM: OOM_CODES, EXCEPTION: EXCEPTION_CODES}
#: How the Job controller names the rule that ended a Job, in a condition's message.
_RULE = re.compile(r"matching Fail(?:Job|Index) rule at index (\d+)")
#: What the note calls the rules of the option final_exit_codes.
_OPTION = "final_exit_codes"


def failure_rules(
    container: str, *, per_replica: bool, retries: BackendRetries | None, final_codes: Sequence[int] | None
) -> list[tuple[str, dict[str, Any]]]:
    """Return the rules of a Job, each with the class of failures that it is for.

    Args:
        container: name of the container whose exit codes count.
        per_replica: whether replicas restart one by one.
        retries: what is asked for by class; None for nothing.
        final_codes: exit codes that are not retried, whatever the classes say.
    """
    give_up = "FailIndex" if per_replica else "FailJob"
    action = "Ignore"
    if retries is not None and not retries.is_endless(PREEMPTED):
        action = give_up if retries.is_final(PREEMPTED) else "Count"
    rules: list[tuple[str, dict[str, Any]]] = [
        (PREEMPTED, {"action": action, "onPodConditions": [dict(_TAKEN_AWAY)]})
    ]

    def add(name: str, operator: str, codes: Sequence[int]) -> None:
        exits = {"containerName": container, "operator": operator, "values": sorted(set(codes))}
        rules.append((name, {"action": give_up, "onExitCodes": exits}))

    if final_codes:
        add(_OPTION, "In", final_codes)
    if retries is not None:
        for name, codes in _CODES.items():
            if retries.is_final(name):
                add(name, "In", codes)
        counted = [code for name, codes in _CODES.items() if not retries.is_final(name) for code in codes]
        # without a counted retry nothing else is restarted anyway
        if retries.is_final(OTHER) and counted:
            add(OTHER, "NotIn", counted)
    return rules


def restarted_codes(rules: Iterable[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Return by exit codes whether rules let a program be restarted, as `EndRules` has it."""
    codes: list[tuple[str, bool]] = []
    for rule in rules:
        exits = rule.get("onExitCodes")
        if exits is not None:
            is_in = exits["operator"] == "In"
            codes += [(str(code), not is_in) for code in exits["values"]]
            codes += [] if is_in else [("*", False)]
    return codes


def note_of(rules: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return the note from which `verdict` learns the classes of the rules."""
    return json.dumps([name for name, _ in rules])


def verdict(job: Mapping[str, Any]) -> str:
    """Return why a failed Job was not restarted, as far as a rule decided it; "" otherwise."""
    try:
        classes = json.loads(names.annotations_of(job).get(names.NOTE_RETRY, "[]"))
    except ValueError:
        return ""
    for condition in (job.get("status") or {}).get("conditions") or []:
        match = _RULE.search(str(condition.get("message") or ""))
        if condition.get("status") == "True" and match and int(match[1]) < len(classes):
            name = classes[int(match[1])]
            return f"not restarted: {name}" + ("" if name == _OPTION else ": it must not be retried")
    return ""
