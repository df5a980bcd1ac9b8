"""Check whether LSF could run jobs: the cluster, its version, the queue, and whether hosts could hold a job.

LSF has no dry run, so what a job asks for is compared with what bhosts, lshosts and lsload say of the hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shunter.errors import ShunterError
from shunter.schedulers.api import Check
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.request import HpcRequest, cpus_of
from shunter.schedulers.lsf_scheduler.options import LsfOpts
from shunter.specs.dryrun_info import AppDryRunInfo

if TYPE_CHECKING:
    from shunter.schedulers.lsf_scheduler.scheduler import LsfScheduler


def examine(scheduler: LsfScheduler, cfg: Mapping[str, Any]) -> Iterator[Check]:
    """Check whether jobs with these options could run. Changes nothing."""
    commands = scheduler.commands(str(cfg.get("host") or ""))
    said = commands.check(["lsid"], "ask LSF for its name")
    cluster = re.search(r"My cluster name is (\S+)", said)
    version = re.search(r"LSF\D*?(\d+(?:\.\d+)+)", said)
    text = f"{cluster[1] if cluster else 'LSF'} answers, version {version[1] if version else 'unknown'}"
    scheduler.query_all(commands, None)  # an old version cannot
    yield Check("LSF", True, text)
    queues = commands.check(["bqueues", "-w"], "ask for queues")
    yield from _queues(queues, str(cfg.get("queue") or cfg.get("lsf_queue") or ""))


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


# ---- whether hosts could hold one job

_HINT = "`bhosts -w`, `lshosts -w` and `lsload -w -gpu` list what there is."
#: The slots of a host without a limit.
NO_LIMIT = float("inf")
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


@dataclass
class LsfHost:
    """What a host has in all; None where LSF does not say, as of a host that is down. Memory is in MiB."""

    name: str
    slots: float
    gpus: float | None
    maxmem: str
    memory: float | None


@dataclass
class HostNeeds:
    """What each of a job's ``hosts`` must have: its script asks for the same on all of them."""

    hosts: int
    slots: int
    gpus: int
    memory: int

    def __str__(self) -> str:
        amounts = ((self.slots, "slot"), (self.gpus, "GPU"), (self.memory, "MiB"))
        return ", ".join(_words(amount, unit) for amount, unit in amounts if amount > 0)


def examine_job(scheduler: LsfScheduler, job: AppDryRunInfo[HpcRequest]) -> list[Check]:
    """Check whether hosts of a job's queues could hold its replicas, if empty: LSF has no dry run."""
    roles = job.app.roles if job.app is not None else []
    needs = HostNeeds(
        sum(role.num_replicas for role in roles) if "span[ptile=" in job.request.script else 1,
        max(cpus_of(role) for role in roles),
        max(role.resource.gpu for role in roles),
        max(role.resource.memMB for role in roles),
    )
    opts = LsfOpts(**job.cfg)
    commands = scheduler.commands(job.request.host)
    try:
        names, may_grow = _queue_hosts(commands, (opts.queue or "").split())
        hosts = _hosts(commands, names, with_gpus=needs.gpus > 0)
    except ShunterError as error:
        return [Check("the job", None, f"it was not compared with the hosts: {error.message}", error.hint)]
    if not hosts:
        return [Check("the job", None, "LSF names no hosts to compare it with", _HINT)]
    verdicts = [_could_hold(host, needs) for host in hosts]
    sure, possible = verdicts.count(True), len(hosts) - verdicts.count(False)
    given = {"resources": opts.resources, "gpu_mode": opts.gpu_mode}
    left_out = " and ".join(name for name, value in given.items() if value)
    ok: bool | None = True
    text = "hosts of its queue could hold it, if empty" + (f"; {left_out} not compared" if left_out else "")
    hint = ""
    if possible < needs.hosts:
        ok, text, hint = False, _shortage(hosts, needs, sure), _HINT
        if may_grow:
            ok, hint = None, "LSF's resource connector may add hosts that do."
    elif sure < needs.hosts:
        text = f"LSF does not say what all hosts have: {_shortage(hosts, needs, sure)}"
        ok, hint = None, _HINT
    return [Check("the job", ok, text, hint)]


def _could_hold(host: LsfHost, needs: HostNeeds) -> bool | None:
    """Tell whether a host has what a job asks of each; None if that is not known."""
    pairs = ((needs.slots, host.slots), (needs.gpus, host.gpus), (needs.memory, host.memory))
    has_it = [None if has is None else has >= wanted for wanted, has in pairs if wanted > 0]
    return False if False in has_it else None if None in has_it else True


def _shortage(hosts: list[LsfHost], needs: HostNeeds, there: int) -> str:
    if there:
        return f"it needs {needs.hosts} hosts with {needs}, and its queue has {there}"
    largest = max(hosts, key=lambda host: (host.gpus or 0, host.slots, host.memory or 0))
    has = [] if largest.slots == NO_LIMIT else [_words(largest.slots, "slot")]
    has += [] if largest.gpus is None else [_words(largest.gpus, "GPU")]
    has += [] if largest.memory is None else [f"{largest.maxmem} of memory"]
    return f"no host of its queue has {needs}; the largest, {largest.name}, has {', '.join(has)}"


def _words(amount: float, unit: str) -> str:
    return f"{amount:,.0f} {unit}{'' if amount == 1 or unit == 'MiB' else 's'}"


def _queue_hosts(commands: Commands, queues: list[str]) -> tuple[list[str], bool]:
    """Return the hosts and host groups of queues, none for all, and whether hosts are added when needed."""
    if not queues:
        match = re.search(r"^Default Queues?:\s*(.+)$", commands.run(["bparams"]).text, re.M)
        queues = match[1].split() if match else []
    text = commands.check(["bqueues", "-l", *queues], "ask for the queue")
    may_grow = bool(re.search(r"^\s*RC_HOSTS:\s*(?!none)\S", text, re.M | re.I))
    names = [word for line in re.findall(r"^HOSTS:[ \t]*(\S.*)$", text, re.M) for word in line.split()]
    if not queues or not names or any(re.match(r"all\b|~", word) for word in names):
        return [], may_grow
    return [re.sub(r"\+\d*$", "", name).rstrip("/") for name in names], may_grow


def _hosts(commands: Commands, names: list[str], *, with_gpus: bool) -> list[LsfHost]:
    answer = commands.run(["bhosts", "-w", "-X", *names])
    text = answer.text
    if answer.code != 0:  # a word that is not a host, such as "others"
        text = commands.check(["bhosts", "-w", "-X"], "ask for hosts")
    facts = _table(commands.check(["lshosts", "-w"], "ask what hosts have"))
    loads = _table(commands.run(["lsload", "-w", "-gpu"]).text) if with_gpus else {}
    found = []
    for name, row in _table(text).items():
        maxmem = facts.get(name, {}).get("maxmem", "-")
        most = row.get("MAX", "-")
        slots = float(most) if most.isdecimal() else NO_LIMIT
        load = loads.get(name, {}) if loads else {"status": "unavail"}
        count = load.get("ngpus_physical") or load.get("ngpus") or "-"
        is_silent = load.get("status", "").lstrip("-").startswith("unavail")
        # a host that is up and has no number there has none
        gpus = None if is_silent else float(count) if re.fullmatch(r"\d+(\.\d+)?", count) else 0.0
        found.append(LsfHost(name, slots, gpus, maxmem, _memory(maxmem)))
    return found


def _memory(text: str) -> float | None:
    """Return an amount such as ``503.5G`` in MiB: the largest one that rounds to it."""
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?([KMGT])", text)
    if match is None:
        return None
    half = 0.5 * 10.0 ** -len(match[2] or "")
    return (float(f"{match[1]}.{match[2] or 0}") + half) * _MIB[match[3]]


def _table(text: str) -> dict[str, dict[str, str]]:
    """Read a table by its first column; rows of hosts that are down may be shorter."""
    rows = (line.split() for line in text.splitlines() if line.strip())
    head = next((row for row in rows if row[0] == "HOST_NAME"), [])
    return {row[0]: dict(zip(head, row, strict=False)) for row in rows}
