"""Whether jobs could run on LSF: the cluster, its version, the queue, and what users of GPUs need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.schedulers.base import Check
from trainyard.schedulers.hpc.commands import Commands

#: The first version with `bjobs -json`: Fix Pack 2, by its release notes.
OLDEST = (10, 1, 0, 2)


def checks(commands: Commands, cfg: Mapping[str, Any]) -> list[Check]:
    """Check whether jobs with these options could run. Changes nothing."""
    try:
        said = commands.check(["lsid"], "ask LSF for its name").text
        queues = commands.check(["bqueues", "-w"], "ask for queues").text
    except TrainyardError as error:
        return [Check("LSF", False, error.message, error.hint or "Source the site's profile.lsf first.")]
    return [*_version(said), *_queues(queues, str(cfg.get("queue") or cfg.get("lsf_queue") or ""))]


def _version(said: str) -> Iterator[Check]:
    cluster = re.search(r"My cluster name is (\S+)", said)
    name = cluster[1] if cluster else "LSF"
    version = re.search(r"LSF\D*?(\d+(?:\.\d+)+)", said)
    if version is None:
        yield Check("LSF", None, f"{name} answers, and does not say which version it is")
        return
    found = tuple(int(part) for part in version[1].split("."))
    text = f"{name} answers, version {version[1]}"
    if found[:2] < OLDEST[:2]:
        yield Check("LSF", False, text, "`bjobs -json` came with Fix Pack 2 of 10.1.")
    elif found < OLDEST:
        yield Check("LSF", None, text, "`bjobs -json` came with Fix Pack 2; try it: bjobs -json -o jobid.")
    else:
        yield Check("LSF", True, text)


def _queues(text: str, wanted: str) -> Iterator[Check]:
    rows = [line.split() for line in text.splitlines() if line.strip()]
    states = {row[0]: row[2] for row in rows[1:] if len(row) > 2}
    closed = sorted(name for name, state in states.items() if state != "Open:Active")
    for name in wanted.split():
        if name not in states:
            yield Check("queue", False, f"there is no queue {name}", f"There are: {', '.join(states)}.")
        else:
            yield Check("queue", name not in closed, f"the queue {name} is {states[name]}")
    if not wanted:
        more = f"; not open: {', '.join(closed)}" if closed else ""
        yield Check("queues", len(closed) < len(states), f"{', '.join(states) or 'none'}{more}")
