"""The labels by which a job's containers and its network are found, and the names of its containers."""

from __future__ import annotations

import re

from shunter.paths import state_dir
from shunter.system.identity import host_name

APP_ID = "shunter.app-id"
ROLE = "shunter.role"
REPLICA = "shunter.replica"
APP_NAME = "shunter.app"
SESSION = "shunter.session"
#: The machine and the state directory that know the job; `gc` leaves alone what others have left.
OWNER = "shunter.owner"

LONGEST_NAME = 63
_LONGEST_ROLE = 20
_SUFFIX = 11  # of an app id: the hyphen and what makes it unique


def owner() -> str:
    """Return the value of `OWNER` here."""
    return f"{host_name()}:{state_dir()}"


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
