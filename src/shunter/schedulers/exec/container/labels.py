"""The labels by which a job's containers, network and markers are found, and the names of its containers."""

from __future__ import annotations

import re
from typing import Any

APP_ID = "shunter.app-id"
ROLE = "shunter.role"
REPLICA = "shunter.replica"
#: Number of all replicas of the job.
REPLICAS = "shunter.replicas"
#: JSON: pairs of a role's name and its number of replicas, in order.
LAYOUT = "shunter.layout"
#: JSON: retry policies by role, timeout, grace period, fail_fast, and whether a watcher is needed.
POLICY = "shunter.policy"
SESSION = "shunter.session"
APP_NAME = "shunter.app"
METADATA = "shunter.metadata"
#: JSON: ports in the container by name.
PORTS = "shunter.ports"
#: Where the job's results are, in words.
RESULTS = "shunter.results"
#: The process that submitted it (a `Process` as text), and its machine.
SUBMITTER = "shunter.submitter"
HOST = "shunter.host"
#: When the containers were made, seconds since the epoch.
SUBMITTED_AT = "shunter.submitted-at"
#: The kind of a marker, and JSON: what it says.
MARKER = "shunter.marker"
MARKER_FACTS = "shunter.facts"
#: Labels of images that hold a workspace.
FINGERPRINT = "shunter.fingerprint"

# TorchX's: jobs started by it have only these, and are listed, too.
OLD_APP_ID = "torchx.pytorch.org/app-id"
OLD_ROLE = "torchx.pytorch.org/role-name"
OLD_REPLICA = "torchx.pytorch.org/replica-id"

LONGEST_NAME = 63
_LONGEST_ROLE = 20
_SUFFIX = 11  # of an app id: the hyphen and what makes it unique


def container_names(app_id: str, layout: list[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Return names for the containers, which are their hostnames too: at most 63 characters, unique.

    The id of the job ends in what makes it unique; the layout has the roles and their numbers of replicas.
    """
    shorts: list[str] = []
    for position, (role, _) in enumerate(layout):
        short = re.sub(r"[^a-z0-9]+", "-", role.lower()).strip("-")[:_LONGEST_ROLE].strip("-") or "role"
        if short in shorts:
            short = f"{short[: _LONGEST_ROLE - 4]}-r{position}"
        shorts.append(short)
    names = {}
    for short, (role, count) in zip(shorts, layout, strict=True):
        for k in range(count):
            tail = f"-{short}-{k}"
            head, room = app_id, LONGEST_NAME - len(tail)
            if len(head) > room:
                head = head[: room - _SUFFIX].rstrip("-") + head[-_SUFFIX:]
            names[role, k] = head + tail
    return names


def label_filter(label: str, value: str | None = None) -> dict[str, Any]:
    """Return the ``filters`` of a list request for what has this label."""
    return {"label": [label if value is None else f"{label}={value}"]}
