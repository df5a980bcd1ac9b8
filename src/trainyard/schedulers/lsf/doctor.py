"""Whether jobs could run on LSF: the cluster, its version, the queue, and what users of GPUs need."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.schedulers.base import Check
from trainyard.schedulers.hpc.commands import Commands
from trainyard.schedulers.hpc.spread import cpus_of
from trainyard.specs.app import Role

#: States of hosts that start jobs, or will as soon as others have ended there; bhosts(1), STATUS.
_USABLE = ("ok", "closed_Full", "closed_Excl", "closed_Busy", "closed_EGO")
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}

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


def examine_job(commands: Commands, roles: Iterable[Role]) -> list[Check]:
    """Check that hosts, of any queue, have the slots and the memory of each role's replicas."""
    try:
        slots = _columns(commands.check(["bhosts", "-w"], "ask for hosts").text, "HOST_NAME", "STATUS", "MAX")
        sizes = _columns(commands.check(["lshosts", "-w"], "ask for hosts").text, "HOST_NAME", "maxmem")
    except TrainyardError as error:
        return [Check("the job", None, error.message, error.hint)]
    memory = {host: _mebibytes(size) for host, size in sizes}
    hosts = [
        (math.inf if most == "-" else int(most), memory.get(host, math.inf))
        for host, status, most in slots
        if status in _USABLE and (most == "-" or most.isdigit())
    ]
    return [_room(role, hosts) for role in roles]


def _room(role: Role, hosts: list[tuple[float, float]]) -> Check:
    cpus, memory = cpus_of(role), max(role.resource.memMB, 0)
    large = sum(1 for slots, megabytes in hosts if slots >= cpus and megabytes >= memory)
    needs = f"{cpus} slots" + (f" and {memory} MiB of memory" if memory else "")
    text = f"{large} of {len(hosts)} hosts are large enough for a replica: {needs}"
    hint = "" if large else "`bhosts -w` lists the slots of hosts (MAX), `lshosts -w` their memory."
    return Check(f"role {role.name}", large > 0, text, hint)


def _columns(text: str, *names: str) -> list[tuple[str, ...]]:
    """Return columns of a table that LSF printed. Values before the wanted ones have no spaces."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    if not rows or any(name not in rows[0] for name in names):
        return []
    places = [rows[0].index(name) for name in names]
    return [tuple(row[place] for place in places) for row in rows[1:] if len(row) > max(places)]


def _mebibytes(text: str) -> float:
    """Return a size such as ``63.9G``; infinity if LSF does not know it."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP])", text)
    return float(match[1]) * _MIB[match[2]] if match else math.inf
