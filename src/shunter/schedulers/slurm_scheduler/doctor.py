"""Check whether a Slurm cluster has what jobs with these options need. Nothing is submitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shunter.errors import ConfigError, ShunterError
from shunter.schedulers.api import Check
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.slurm_scheduler import rules
from shunter.schedulers.slurm_scheduler.options import APPTAINER, PYXIS, SINGULARITY

if TYPE_CHECKING:
    from shunter.schedulers.slurm_scheduler.scheduler import SlurmScheduler

#: Options of a job that `sbatch --test-only` can judge.
_TESTED = ("partition", "time", "account", "qos", "reservation", "constraint", "nodelist", "exclude", "gres")

#: States of nodes that take jobs, or will as soon as others have ended there; sinfo(1), NODE STATE CODES.
_USABLE = ("idle", "planned", "mixed", "allocated", "completing", "powering_up", "powered_down")


def examine(scheduler: SlurmScheduler, cfg: Mapping[str, Any]) -> Iterator[Check]:
    """Check what jobs with these options need."""
    commands = scheduler.commands(str(cfg.get("host") or ""))
    version = scheduler.ask(commands, ["sinfo", "--version"], "ask Slurm for its version").strip()
    yield Check("Slurm's commands", True, f"{version} {commands.where}")
    found = scheduler.partitions(commands)
    names = list(dict.fromkeys(nodes.partition for nodes in found))
    yield Check("controller", True, f"it answers; partitions: {', '.join(names) or 'none'}")
    yield from _partition(found, cfg)
    yield _test_job(scheduler, commands, cfg)
    yield _accounting(commands)
    yield from _container(scheduler, commands, cfg)


def _partition(found: list[Any], cfg: Mapping[str, Any]) -> Iterator[Check]:
    wanted = rules.partitions_of(cfg, found)
    if not wanted:
        yield Check("partition", False, "there is no default partition", "Name one: -cfg partition=NAME.")
    for name in wanted:
        nodes = [item for item in found if item.partition == name]
        if not nodes:
            yield Check("partition", False, f"there is no {name}", "`sinfo -s` lists the partitions.")
            continue
        first = nodes[0]
        usable = sum(item.count for item in nodes if item.state in _USABLE)
        text = (
            f"{name}: {usable} of {sum(item.count for item in nodes)} nodes are up, "
            f"time limit {first.default_time} by default and {first.max_time} at most"
        )
        yield Check(
            "partition",
            first.is_up and usable > 0,
            text,
            "" if first.is_up else "It takes jobs but starts none.",
        )


def _test_job(scheduler: SlurmScheduler, commands: Commands, cfg: Mapping[str, Any]) -> Check:
    words = [f"--{name}={cfg[name]}" for name in _TESTED if cfg.get(name)]
    words += [word for word in cfg.get("sbatch_args") or () if str(word).startswith("-")]
    answer = commands.run(["sbatch", "--test-only", *words], stdin=b"#!/bin/sh\ntrue\n")
    said = answer.words.removeprefix("sbatch: ").strip()
    if answer.code == 0:
        return Check("a job", True, said)
    return Check("a job", False, f"sbatch --test-only: {said}", scheduler.hint_for(said))


def _accounting(commands: Commands) -> Check:
    try:
        answer = commands.run(["sacct", "-n", "-X", "-P", "-o", "JobID"])
    except ShunterError as error:
        return Check("accounting", None, error.message, "How jobs ended is known from their own records.")
    if answer.code == 0:
        return Check("accounting", True, "sacct answers")
    return Check("accounting", None, answer.words, "How jobs ended is known from their own records.")


def _container(scheduler: SlurmScheduler, commands: Commands, cfg: Mapping[str, Any]) -> Iterator[Check]:
    runtime = cfg.get("container")
    if runtime == PYXIS:
        there = scheduler.has_pyxis(commands)
        text = "srun knows --container-image" if there else "srun does not know --container-image"
        yield Check("pyxis", there, text, "" if there else "Try container=apptainer.")
    elif runtime in (APPTAINER, SINGULARITY):
        try:
            answer = commands.run([str(runtime), "--version"])
            yield Check(str(runtime), answer.code == 0 or None, answer.words)
        except ConfigError as error:
            yield Check(
                str(runtime), None, error.message, "The nodes may have it nevertheless, perhaps as a module."
            )
