"""Checks of this machine: where jobs keep their files, and what it has."""

from __future__ import annotations

import os
import shutil

from shunter.errors import ShunterError
from shunter.paths import jobs_dir, make_private_dir
from shunter.schedulers.api import Check
from shunter.schedulers.local_scheduler.request import visible_gpus
from shunter.specs.app import AppDef
from shunter.system.processes import usable_cpus

_MIB = 1024 * 1024
#: With less free space than this, in MiB, there is hardly room for logs and results.
_LITTLE_SPACE = 1024


def examine() -> list[Check]:
    """Check this machine."""
    gpus = visible_gpus()
    has = f"{usable_cpus()} CPUs, {_memory()} MiB, {len(gpus)} GPUs"
    return [_jobs_folder(), Check("machine", None, has)]


def examine_job(app: AppDef) -> list[Check]:
    """Compare what the job's replicas ask for together with what this machine has."""
    asked = [(max(role.num_replicas, 1), role.resource) for role in app.roles]
    needs = (
        ("CPUs", sum(count * max(each.cpu, 0) for count, each in asked), usable_cpus()),
        ("MiB", sum(count * max(each.memMB, 0) for count, each in asked), _memory()),
    )
    lacking = [f"{wanted} {kind} of {there}" for kind, wanted, there in needs if wanted > there]
    if not lacking:
        return [Check("the job", True, "it fits on this machine")]
    text = f"its replicas ask for {', '.join(lacking)}; they start anyway and share what the machine has"
    return [Check("the job", None, text, "-cfg slots=auto lets jobs wait for free CPUs.")]


def _jobs_folder() -> Check:
    folder = jobs_dir()
    try:
        make_private_dir(folder)
        free = shutil.disk_usage(folder).free // _MIB
    except ShunterError as error:
        return Check("jobs' files", False, error.message, error.hint)
    except OSError as error:
        return Check("jobs' files", False, f"{folder} cannot be used: {error.strerror}", "Set SHUNTER_HOME.")
    if not os.access(folder, os.W_OK):
        return Check("jobs' files", False, f"{folder} cannot be written to", "Set SHUNTER_HOME.")
    hint = "`shunter gc` removes what old jobs left." if free < _LITTLE_SPACE else ""
    return Check("jobs' files", free >= _LITTLE_SPACE, f"{folder}, {free} MiB free", hint)


def _memory() -> int:
    """Return this machine's memory in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB
