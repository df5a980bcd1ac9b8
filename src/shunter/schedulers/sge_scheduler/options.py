"""Options of Grid Engine."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.schedulers.hpc.options import PER_HOST, PER_JOB, HpcOpts
from shunter.specs.options import CLOCK, DESTINATION, PROGRAM, option

PER_SLOT = "slot"
COUNTED = (PER_SLOT, PER_HOST, PER_JOB)


@dataclass
class SgeOpts(HpcOpts):
    """How a job runs on Grid Engine."""

    queue: str | None = option("queues that may run the job (-q), such as gpu.q or gpu.q@@new", default=None)
    project: str | None = option("project that the job is charged to (-P)", default=None)
    account: str | None = option("text for the accounting (-A)", default=None)
    priority: int | None = option("priority (-p), -1023 to 0 for users", default=None)
    time: str | None = option(
        "time limit (h_rt), as seconds or HOURS:MINUTES:SECONDS; grace_period before it, the program is "
        "asked to stop (s_rt). By default the queue's",
        default=None,
        time_limit=CLOCK,
    )
    pe: str | None = option(
        "parallel environment for jobs on several hosts; `qconf -spl` lists those of the site", default=None
    )
    smp_pe: str | None = option(
        "parallel environment that keeps all slots on one host, for single replicas with several cpus",
        default="smp",
    )
    memory: str | None = option(
        "name of the resource that requests memory: mem_free, h_vmem, m_mem_free, ...; '' requests none",
        default="mem_free",
    )
    mem_per: str = option(
        "unit of that resource at this site: slot (consumable YES), job (JOB) or host (a load value)",
        default=PER_HOST,
    )
    gpu: str | None = option("name of the resource that requests gpus; '' requests none", default="gpu")
    gpu_per: str = option("unit of that resource at this site: slot, job or host", default=PER_HOST)
    reserve: bool = option(
        "reserve slots for the job, so that smaller jobs do not overtake it (-R y)", default=False
    )
    mail: str | None = option("address for mail (-M)", default=None, needs_trust=DESTINATION)
    mail_on: str | None = option(
        "when mail is sent (-m): any of b(egin), e(nd), a(bort), s(uspend)", default=None
    )
    native: list[str] | None = option(
        "more lines for the script, as for #$: '-l exclusive=true', '-ac key=value'",
        default=None,
        needs_trust=PROGRAM,
    )
    omit: list[str] | None = option(
        "options that the site forbids and that are left out of the script: '-notify', '-l h_rt', '-r', ...",
        default=None,
    )
