"""Names of Kubernetes: ids of jobs, names of objects, our labels and annotations, and their limits.

A Job's pods have the host names ``JOB-INDEX``, which are DNS labels of at most 63 characters; so a job's name
is cut until the longest name that is made from it fits
(https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode). JobSet checks the names
of its pods, ``JOBSET-ROLE-0-INDEX-SUFFIX``, in the same way. Services are named by DNS-1035: a letter first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from shunter.schedulers.ids import SUFFIX_LENGTH, normalize, random_id

LABEL_JOB = "shunter/job"
LABEL_KIND = "shunter/kind"
LABEL_ROLE = "shunter/role"
LABEL_ROLE_INDEX = "shunter/role-index"
#: Index of a replica, where it is not Kubernetes' own index of completion.
LABEL_REPLICA = "shunter/replica"
LABEL_APP_NAME = "shunter/app-name"
LABEL_USER = "shunter/user"
LABEL_VERSION = "shunter/version"
#: Marks the Secrets with the job's code.
LABEL_CODE = "shunter/code"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "shunter"
#: TorchX's labels, for anyone who selects pods by them.
OLD_LABELS = {
    "torchx.pytorch.org/app-name": LABEL_APP_NAME,
    "torchx.pytorch.org/role-index": LABEL_ROLE_INDEX,
    "torchx.pytorch.org/role-name": LABEL_ROLE,
    "torchx.pytorch.org/replica-id": LABEL_REPLICA,
}
#: JSON of ``[[role, replicas], ...]``.
NOTE_LAYOUT = "shunter/layout"
NOTE_METADATA = "shunter/metadata"
NOTE_SESSION = "shunter/session"
#: JSON of the classes of failures that the rules of a Job are for.
NOTE_RETRY = "shunter/retry"
#: Says that a job was cancelled, and by whom.
NOTE_CANCELLED = "shunter/cancelled"
#: Identifies a submission, so that one whose answer was lost is recognised.
NOTE_SUBMISSION = "shunter/submission"

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
TOPOLOGY_NOTES = {
    "required": "kueue.x-k8s.io/podset-required-topology",
    "preferred": "kueue.x-k8s.io/podset-preferred-topology",
    "unconstrained": "kueue.x-k8s.io/podset-unconstrained-topology",
}

MOST_NAME = 63
MOST_ROLE = 20
#: What JobSet adds to the name of a pod: the index of its Job, and a random suffix.
_JOBSET_PARTS = len("-0") + len("-abcde")
DEFAULT_NAMESPACE = "default"

_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(
    r"(?=.{1,253}$)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
)


class ClusterJobRef(NamedTuple):
    """Where a job is: its kind, context and kubeconfig to reach it, its API server; "" if unknown."""

    kind: str
    context: str = ""
    kubeconfig: str = ""
    server: str = ""

    def to_text(self) -> str:
        """Return it as the history keeps it."""
        return "\t".join(self)

    @classmethod
    def from_text(cls, text: str) -> ClusterJobRef:
        """Read what `to_text` wrote."""
        return cls(*text.split("\t")[:4])


def make_app_id(namespace: str, name: str) -> str:
    """Return the app id of a job: ``namespace:name``, as TorchX has it."""
    return f"{namespace}:{name}"


def split_app_id(app_id: str) -> tuple[str, str]:
    """Return namespace and name of an app id; without a namespace it is the default one."""
    namespace, colon, name = app_id.rpartition(":")
    return (namespace if colon else DEFAULT_NAMESPACE), name


def role_parts(roles: list[str]) -> list[str]:
    """Return the part of object names that identifies each role: short, and unique within the job."""
    parts: list[str] = []
    for index, role in enumerate(roles):
        part = normalize(role)[:MOST_ROLE].rstrip("-")
        if not part[0].isalpha():
            part = f"r-{part}"[:MOST_ROLE]
        if part in parts:
            suffix = f"-{index}"
            part = part[: MOST_ROLE - len(suffix)].rstrip("-") + suffix
        parts.append(part)
    return parts


def make_name(app_name: str, parts: list[str], counts: list[int], *, in_jobset: bool, per_role: bool) -> str:
    """Return a unique name of a job, short enough for the longest name that is made from it.

    Args:
        app_name: name of the job as its author wrote it.
        parts: what stands for each role, see `role_parts`.
        counts: the number of replicas of each role.
        in_jobset: whether JobSet makes the names of the pods.
        per_role: whether the names of roles are in those of the pods.
    """
    longest = max(
        (len(part) + 1 if per_role else 0) + 1 + len(str(count - 1))
        for part, count in zip(parts, counts, strict=True)
    )
    room = MOST_NAME - longest - (_JOBSET_PARTS if in_jobset else 0) - SUFFIX_LENGTH - 1
    text = normalize(app_name)
    if not text[0].isalpha():
        text = f"job-{text}"
    return f"{text[:room].rstrip('-')}-{random_id()}"


def label_value(text: str) -> str:
    """Return a text as the value of a label: other characters become hyphens, 63 are kept."""
    cleaned = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:MOST_NAME]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", cleaned)


def is_label_value(text: str) -> bool:
    """Tell whether a text is valid as the value of a label."""
    return _LABEL_VALUE.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Tell whether a text is valid as the key of a label or annotation: ``[PREFIX/]NAME``."""
    prefix, slash, name = text.rpartition("/")
    return _LABEL_NAME.fullmatch(name) is not None and (
        not slash or DNS_SUBDOMAIN.fullmatch(prefix) is not None
    )


# ---- objects


def inner(item: Mapping[str, Any], *keys: str) -> Any:
    """Return a member of a member of an object; an empty dict if one of them is missing, null or empty."""
    member: Any = item
    for key in keys:
        member = member.get(key) or {}
    return member


def labels_of(item: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of an object."""
    labels: Mapping[str, str] = inner(item, "metadata", "labels")
    return labels


def annotations_of(item: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the annotations of an object."""
    annotations: Mapping[str, str] = inner(item, "metadata", "annotations")
    return annotations


def name_of(item: Mapping[str, Any]) -> str:
    """Return the name of an object."""
    return str(inner(item, "metadata").get("name", ""))


def seconds(stamp: Any) -> float | None:
    """Return a time of Kubernetes in seconds since the epoch; None without one.

    A container that could not be started has the beginning of the epoch.
    """
    try:
        return (datetime.fromisoformat(str(stamp)).timestamp() if stamp else None) or None
    except ValueError:
        return None
