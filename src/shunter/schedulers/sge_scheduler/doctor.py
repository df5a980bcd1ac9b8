"""Check whether Grid Engine could run jobs: qmaster, queues, parallel environments, resources, hosts.

Grid Engine itself says whether a queue could ever run a job: ``qsub -w v`` verifies the job against an empty
cluster and submits nothing. The verification leaves out load values, so it would not know the default
``mem_free``; the hosts' totals, which do not change, are compared instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shunter.errors import ShunterError, UnreachableError
from shunter.schedulers.api import Check
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.request import HpcRequest
from shunter.specs.dryrun_info import AppDryRunInfo

if TYPE_CHECKING:
    from shunter.schedulers.sge_scheduler.scheduler import SgeScheduler

#: For how many hosts and queues the report says why they cannot run a job.
MOST_REASONS = 4
#: Load values that jobs ask for, and those of them with a total: what a host has when nothing runs on it.
_TOTALS = {"mem_free": "mem_total", "virtual_free": "virtual_total", "swap_free": "swap_total"}
_SHORTCUTS = {"mf": "mem_free", "vf": "virtual_free", "sf": "swap_free"}
#: Load values that do not change; verifications know them. qselect(1).
_STATIC = {"arch", "num_proc", *_TOTALS.values()}
#: The resources that a line of a script asks for.
_ASKED = re.compile(r"(?<=-l )([\"']?)([^\s\"']+)\1")
#: What qsub says around its reasons.
_AROUND = re.compile(r"^(Unable to run job: )?(Job \d+ )?(verification: no suitable queues|Exiting\.)?", re.M)

_RULES = {
    "$pe_slots": "keeps a job on one host",
    "$fill_up": "fills hosts one after the other",
    "$round_robin": "deals slots out",
}


def examine(scheduler: SgeScheduler, cfg: Mapping[str, Any]) -> Iterator[Check]:
    """Check whether jobs with these options could run. Changes nothing."""
    commands = scheduler.commands(str(cfg.get("host") or ""))
    masters = commands.check(["qstat", "-help"], "call qstat").split("\n")[0].strip()
    queues = commands.check(["qconf", "-sql"], "ask qmaster").split()
    yield Check("Grid Engine", True, f"{masters} answers; queues: {', '.join(queues) or 'none'}")
    yield from _queue_checks(queues, cfg)
    yield from _environment_checks(commands, cfg)
    yield from _resource_checks(commands, cfg)
    yield _host_check(commands)


def examine_job(scheduler: SgeScheduler, job: AppDryRunInfo[HpcRequest]) -> list[Check]:
    """Check whether queues could run a job if they were empty. Takes a job number, and submits nothing."""
    commands = scheduler.commands(job.request.host)
    left_out: set[str] = set()
    try:
        words = _refusal(scheduler, commands, job.request, job.request.script)
        if words:
            script, left_out = _comparable(commands, job.request.script)
            words = _refusal(scheduler, commands, job.request, script)
    except ShunterError as error:
        return [Check("the job", None, f"it was not compared with the queues: {error.message}", error.hint)]
    ok: bool | None = True
    text, hint = "queues could run it, if empty", ""
    if words:
        reasons = [line for line in dict.fromkeys(_AROUND.sub("", words).splitlines()) if line.strip()]
        more = f"; and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
        text = f"no queue could run it, even if empty: {'; '.join(reasons[:MOST_REASONS]) or words}{more}"
        ok, hint = False, scheduler.hint_for(words)
    elif left_out:
        names = ", ".join(sorted(left_out))
        text = f"it is not known whether a queue could run it: the measured values {names} were not compared"
        ok, hint = None, "`qhost -F` shows what they have now."
    return [Check("the job", ok, text, hint)]


def _refusal(scheduler: SgeScheduler, commands: Commands, request: HpcRequest, script: str) -> str:
    """Return why Grid Engine finds no queue that could ever run a script; "" if it finds one.

    Raises:
        UnreachableError: qmaster does not answer.
    """
    command = [*request.command, *request.dependencies, "-w", "v"]
    answer = commands.run(command, stdin=script.encode("utf-8", "surrogateescape"))
    if answer.code == 0:
        return ""
    error = scheduler.refusal(commands, "verify the job", answer.words)
    if isinstance(error, UnreachableError):
        raise error
    return answer.words


def _comparable(commands: Commands, script: str) -> tuple[str, set[str]]:
    """Return the directives of a script with totals in place of load values, and those that have no total."""
    hosts = commands.check(["qhost", "-F"], "ask hosts for resources")
    left_out: set[str] = set()

    def put(match: re.Match[str]) -> str:
        asked = []
        for item in match[2].split(","):
            given, mark, amount = item.partition("=")
            name = _SHORTCUTS.get(given, given)
            if name in _STATIC or f"hl:{name}=" not in hosts:
                asked.append(item)
            elif name in _TOTALS:
                asked.append(f"{_TOTALS[name]}{mark}{amount}")
            else:
                left_out.add(name)
        return ",".join(asked)

    lines = [_ASKED.sub(put, line) for line in script.splitlines() if line.startswith("#$ ")]
    lines = [re.sub(r"-l (?=\s|$)", "", line) for line in lines]
    return "\n".join(["#!/bin/sh", *lines, ""]), left_out


def _queue_checks(queues: list[str], cfg: Mapping[str, Any]) -> Iterator[Check]:
    for name in filter(None, str(cfg.get("queue") or "").split(",")):
        plain = name.partition("@")[0]
        if not plain or any(mark in plain for mark in "*?["):
            continue
        if plain in queues:
            yield Check("queue", True, f"the queue {plain}")
        else:
            yield Check(
                "queue", False, f"the queue {plain} does not exist", f"There are: {', '.join(queues)}."
            )


def _environment_checks(commands: Commands, cfg: Mapping[str, Any]) -> Iterator[Check]:
    names = commands.check(["qconf", "-spl"], "ask for parallel environments").split()
    rules = {}
    for name in names:
        text = commands.check(["qconf", "-sp", name], "ask for a parallel environment")
        rules[name] = dict(line.split(None, 1) for line in text.splitlines() if " " in line)
    shown = ", ".join(f"{name} ({_rule(values)})" for name, values in rules.items()) or "none"
    yield Check("parallel environments", None, shown)
    for option, wanted in (("pe", cfg.get("pe")), ("smp_pe", cfg.get("smp_pe", "smp"))):
        values = rules.get(str(wanted), {})
        ok: bool | None = True
        text, hint = f"{wanted}: {_rule(values)}", ""
        if not wanted:
            continue
        if wanted not in rules:
            ok, text, hint = False, f"there is no parallel environment {wanted}", f"There are: {shown}."
        elif option == "smp_pe" and values.get("allocation_rule", "").strip() != "$pe_slots":
            text, hint = (
                f"{wanted} may spread the slots of one replica over hosts",
                "Choose one with $pe_slots.",
            )
            ok = None
        elif option == "pe" and values.get("control_slaves", "").strip().upper() != "TRUE":
            text = f"{wanted} does not let a job start programs on its other hosts"
            ok, hint = False, "Choose one with control_slaves TRUE (`qconf -sp`)."
        yield Check(option, ok, text, hint)


def _rule(values: Mapping[str, str]) -> str:
    rule = values.get("allocation_rule", "").strip()
    return _RULES.get(rule, f"{rule} slots on each host")


def _resource_checks(commands: Commands, cfg: Mapping[str, Any]) -> Iterator[Check]:
    known: dict[str, str] = {}
    for line in commands.check(["qconf", "-sc"], "ask for resources").splitlines():
        fields = line.split()
        if len(fields) >= 8 and not line.startswith("#"):
            known[fields[0]] = known[fields[1]] = fields[5]
    for option, default, per in (("memory", "mem_free", "mem_per"), ("gpu", "gpu", "gpu_per")):
        name = cfg.get(option, default)
        if not name:
            continue
        if name not in known:
            yield Check(option, None if option == "gpu" else False, f"the site has no resource {name}",
                        f"`qconf -sc` lists them: -cfg {option}=NAME, or {option}= for none.")  # fmt: skip
            continue
        counted = {"YES": "slot", "JOB": "job", "HOST": "host", "NO": "host"}.get(known[name].upper(), "")
        chosen = cfg.get(per, "host")
        fits = not counted or counted == chosen
        yield Check(
            option, True if fits else None, f"{name} is counted per {counted or '?'}, and {per} is {chosen}",
            "" if fits else f"Set {per}={counted}.",
        )  # fmt: skip


def _host_check(commands: Commands) -> Check:
    text = commands.check(["qhost"], "ask for hosts")
    hosts = [line.split() for line in text.splitlines()[2:] if line.strip() and not line.startswith("global")]
    silent = [fields[0] for fields in hosts if fields[3:5] == ["-", "-"]]
    return Check(
        "hosts", len(silent) < len(hosts), f"{len(hosts) - len(silent)} of {len(hosts)} hosts answer",
        f"Silent: {', '.join(silent[:10])}." if silent else "",
    )  # fmt: skip
