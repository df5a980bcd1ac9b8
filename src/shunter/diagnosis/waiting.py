"""Why a job waits: the reasons of all schedulers, reduced to a few kinds, and what would start it.

Plugins add rules by the entry point group ``shunter.waiting_rules``: a function without arguments that
returns an iterable of pairs, the name of a kind (`KINDS`) and a regular expression for a scheduler's words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shunter.plugins import entry_points
from shunter.specs.status import NONE, AppState, AppStatus


@dataclass
class Waiting:
    """Why a job waits.

    Args:
        kind: a short name, for scripts: see `KINDS`.
        text: the kind in words.
        advice: what would start it; "" if only time does.
        reason: what the scheduler says.
        position: its place in the queue and its expected start, as far as the scheduler tells; else "".
    """

    kind: str
    text: str
    advice: str
    reason: str
    position: str = ""


#: Kinds of waiting: the text, and what would start the job.
KINDS: dict[str, tuple[str, str]] = {
    "impossible": (
        "nothing in its queue can ever run it as it is",
        "Ask for less, or choose another queue; `shunter doctor` shows what there is.",
    ),
    "image": (
        "its image cannot be pulled",
        "Check the image's name and tag, and your permission to pull it.",
    ),
    "held": ("it is held", "Release it with the scheduler's own command, or cancel it."),
    "dependency": ("it waits for other jobs", ""),
    "quota": (
        "a quota is used up",
        "Ask for less, wait for your other jobs to end, or ask for a higher quota.",
    ),
    "limit": (
        "a limit on your jobs is reached",
        "It starts when other jobs of the same user, account or array have ended.",
    ),
    "priority": ("jobs of higher priority come first", "A shorter time limit lets it fill gaps earlier."),
    "no_capacity": (
        "everything that could run it is in use",
        "It starts when others end. Asking for less, or for a shorter time, may start it earlier.",
    ),
    "unavailable": (
        "what could run it is down or reserved",
        "Ask the administrators, or choose another queue.",
    ),
    "later": ("its start time has not come", ""),
    "suspended": ("its scheduler has suspended it", "It continues when its scheduler resumes it."),
    "refused": (
        "it cannot be started",
        "The reason says what to change; then cancel it and submit it again.",
    ),
    "starting": ("it is being started", ""),
    "unknown": ("its scheduler does not say why", "`shunter doctor` checks the scheduler."),
}

#: The first that matches decides. Words of squeue(1), bjobs(1), qstat(1), Kubernetes' scheduler and
#: quota admission, Kueue's conditions, AWS Batch's status reasons, SageMaker's secondary states.
_RULES = [
    ("no_capacity", r"waits for \d+ of \d+ (CPUs|GPUs)"),  # slots of this machine
    ("image", (
        r"image.*(cannot|could not) be pulled|ErrImagePull|ImagePullBackOff|CannotPull|"
        r"InvalidImageName"
    )),
    ("refused", r'persistentvolumeclaim "[^"]+" not found'),
    ("unavailable", (
        r"untolerated taint \{node\.kubernetes\.io/.*"
        r"0/(\d+) nodes are available: \1 Preemption is not helpful"
    )),
    ("impossible", r"0/(\d+) nodes are available: \1 Preemption is not helpful"),
    ("held", r"JobHeld|\bheld\b|REQUEUE_HOLD|PSUSP|user hold|operator hold"),
    ("suspended", r"suspended"),
    ("impossible", r"request > maximum capacity|has at most \d+ vCPUs"),
    ("impossible", r"cannot start:|can never|BadConstraints|DependencyNeverSatisfied|MISCONFIGURATION"),
    ("impossible", (
        r"no (compute environment|host|node|queue)\w* .*(fits|can hold|large enough)|"
        r"larger than any|too large for"
    )),
    ("quota", (
        r"exceeded quota|quota (exceeded|reached)|insufficient unused quota|"
        r"ResourceLimitExceeded|vCPU limit|exceeds your quota"
    )),
    ("limit", (
        r"limit of its account|JobArrayTaskLimit|throttle|QOS\w*Limit|Assoc\w*Limit|"
        r"job slot limit|limit.*reached"
    )),
    ("dependency", (
        r"Dependency|waits? for (other|what)|waiting for what it depends|dependency condition|"
        r"jid_predecessor|^waits for [\w.-]+(, [\w.-]+)*$"
    )),
    ("no_capacity", (
        r"InsufficientInstanceCapacity|InsufficientCapacity|CAPACITY:|"
        r"Insufficient (cpu|memory|pods|ephemeral|nvidia|amd|\S+/\S+)"
    )),
    ("unavailable", r"untolerated taint \{node\.kubernetes\.io/"),
    ("impossible", r"didn't match|untolerated taint|did not match|didn't have free ports|unbound immediate"),
    ("priority", r"\bPriority\b|higher priority"),
    ("unavailable", (
        r"PartitionDown|PartitionInactive|NodeDown|ReqNodeNotAvail|DOWN, DRAINED|is disabled|"
        r"is INVALID|not available|queue .*closed|inactivated"
    )),
    ("later", r"BeginTime|may not begin yet|specified start time|reservation has not begun"),
    ("refused", (
        r"FailedCreate|FailedMount|admission webhook|forbidden|cannot be started|could not be started"
    )),
    ("starting", (
        r"being started|is starting|are starting|starting on|Preparing|Downloading|Starting|"
        r"being pulled|Pulling|not been created yet|initializing"
    )),
    ("no_capacity", (
        r"Resources|waiting for a (host|node)|nodes that it needs are busy|no node for it|"
        r"Pending|new job is waiting|cannot run because|waiting for (resources|capacity)|"
        r"placement group"
    )),
]  # fmt: skip


#: The smallest change that would start a job, where the scheduler's words tell it. Words of `slots`, of
#: Kubernetes' quotas, of Kueue and of the environments of AWS Batch.
_CHANGES = [
    (
        r"waits for (?P<asked>\d+) of \d+ (?P<unit>\w+) \((?P<free>[1-9]\d*) free\)(?!.*(and \d|; behind))",
        "With {free} instead of {asked} {unit} it could start now.",
    ),
    (
        r"requested: (?P<name>\S+?)=\d+, used: (?P=name)=(?P<used>\d+), limited: (?P=name)=(?P<limit>\d+)",
        "The quota leaves {name}={left}: with at most that it could start now.",
    ),
    (
        r"insufficient unused quota for (?P<name>\S+) in flavor \S+, (?P<more>\w+) more needed",
        "With {more} {name} less it could start now.",
    ),
    (
        r"for (?P<name>\S+) in flavor \S+, \S* ?request > maximum capacity \(\w+ > (?P<limit>\w+)\)",
        "Ask for at most {limit} {name}.",
    ),
    (
        r"has at most (?P<limit>\d+) vCPUs, and a replica needs",
        "Ask for at most {limit} vCPUs a replica.",
    ),
]


def _smallest_change(text: str) -> str:
    """Return the smallest change that would start a job, as far as the scheduler's words tell it; else ""."""
    for pattern, change in _CHANGES:
        found = re.search(pattern, text)
        if found:
            said = found.groupdict()
            left = max(0, int(said["limit"]) - int(said["used"])) if "used" in said else 0
            return change.format(**said, left=left)
    return ""


def rules() -> list[tuple[str, str]]:
    """Return the rules of plugins, then ours, in the order in which they are tried.

    Raises:
        ConfigError: a plugin cannot be loaded.
    """
    added = [rule for point in entry_points("waiting_rules") for rule in point.load()()]
    return [*added, *_RULES]


def explain_waiting(status: AppStatus, position: str = "") -> Waiting:
    """Return why a job that has not started waits."""
    replicas = [each.reason for each in status.replicas() if each.reason and each.state == AppState.PENDING]
    said = list(dict.fromkeys([*([] if status.msg in ("", NONE) else [status.msg]), *replicas]))
    for kind, pattern in rules():
        for text in said:
            if re.search(pattern, text, re.IGNORECASE):
                words, advice = KINDS[kind]
                return Waiting(kind, words, _smallest_change(text) or advice, text, position)
    return Waiting("unknown", *KINDS["unknown"], said[0] if said else "", position)
