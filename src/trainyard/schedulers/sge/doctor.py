"""Whether jobs could run on Grid Engine: qmaster, queues, parallel environments, resources, hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.schedulers.base import Check
from trainyard.schedulers.hpc.commands import Commands

_RULES = {
    "$pe_slots": "keeps a job on one host",
    "$fill_up": "fills hosts one after the other",
    "$round_robin": "deals slots out",
}


def checks(commands: Commands, cfg: Mapping[str, Any]) -> list[Check]:
    """Check whether jobs with these options could run. Changes nothing."""
    found = []
    try:
        masters = commands.check(["qstat", "-help"], "call qstat").text.split("\n")[0].strip()
        queues = commands.check(["qconf", "-sql"], "ask qmaster").text.split()
    except TrainyardError as error:
        return [
            Check("Grid Engine", False, error.message, error.hint or "Source the site's settings.sh first.")
        ]
    found.append(Check("Grid Engine", True, f"{masters} answers; queues: {', '.join(queues) or 'none'}"))
    try:
        found += _queue_checks(queues, cfg)
        found += _environment_checks(commands, cfg)
        found += _resource_checks(commands, cfg)
        found += _host_checks(commands)
    except TrainyardError as error:
        found.append(Check("configuration", None, error.message, error.hint))
    return found


def _queue_checks(queues: list[str], cfg: Mapping[str, Any]) -> Iterator[Check]:
    for name in filter(None, str(cfg.get("queue") or "").split(",")):
        plain = name.partition("@")[0]
        if not plain or any(mark in plain for mark in "*?["):
            continue
        yield Check(
            "queue", plain in queues, f"the queue {plain}{'' if plain in queues else ' does not exist'}",
            "" if plain in queues else f"There are: {', '.join(queues)}.",
        )  # fmt: skip


def _environment_checks(commands: Commands, cfg: Mapping[str, Any]) -> Iterator[Check]:
    names = commands.check(["qconf", "-spl"], "ask for parallel environments").text.split()
    rules = {}
    for name in names:
        text = commands.check(["qconf", "-sp", name], "ask for a parallel environment").text
        rules[name] = dict(line.split(None, 1) for line in text.splitlines() if " " in line)
    shown = ", ".join(f"{name} ({_rule(values)})" for name, values in rules.items()) or "none"
    yield Check("parallel environments", None, shown)
    for option, wanted in (("pe", cfg.get("pe")), ("smp_pe", cfg.get("smp_pe", "smp"))):
        if not wanted:
            continue
        if wanted not in rules:
            yield Check(
                option,
                False,
                f"there is no parallel environment {wanted}",
                f"Choose {option} among: {shown}.",
            )
        elif option == "smp_pe" and rules[wanted].get("allocation_rule", "").strip() != "$pe_slots":
            yield Check(
                option,
                None,
                f"{wanted} may spread the slots of one replica over hosts",
                "Choose one with $pe_slots.",
            )
        elif option == "pe" and rules[wanted].get("control_slaves", "").strip().upper() != "TRUE":
            yield Check(
                option, False, f"{wanted} does not let a job start programs on its other hosts",
                "Choose one with control_slaves TRUE (`qconf -sp`).",
            )  # fmt: skip
        else:
            yield Check(option, True, f"{wanted}: {_rule(rules[wanted])}")


def _rule(values: Mapping[str, str]) -> str:
    rule = values.get("allocation_rule", "").strip()
    return _RULES.get(rule, f"{rule} slots on each host")


def _resource_checks(commands: Commands, cfg: Mapping[str, Any]) -> Iterator[Check]:
    known: dict[str, str] = {}
    for line in commands.check(["qconf", "-sc"], "ask for resources").text.splitlines():
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


def _host_checks(commands: Commands) -> Iterator[Check]:
    text = commands.check(["qhost"], "ask for hosts").text
    hosts = [line.split() for line in text.splitlines()[2:] if line.strip() and not line.startswith("global")]
    silent = [
        fields[0] for fields in hosts if len(fields) > 3 and fields[3] == "-" and re.fullmatch("-", fields[4])
    ]
    yield Check(
        "hosts", len(silent) < len(hosts), f"{len(hosts) - len(silent)} of {len(hosts)} hosts answer",
        f"Silent: {', '.join(silent[:10])}." if silent else "",
    )  # fmt: skip
