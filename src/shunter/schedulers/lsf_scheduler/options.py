"""Options of LSF."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.errors import ConfigError
from shunter.schedulers.hpc.options import PER_HOST, PER_JOB, HpcOpts
from shunter.specs.options import DESTINATION, FILES_OUTSIDE, HOURS_MINUTES, PROGRAM, option

PER_CORE = "core"
COUNTED = (PER_JOB, PER_CORE, PER_HOST)


@dataclass
class LsfOpts(HpcOpts):
    """How a job runs on LSF."""

    queue: str | None = option("queues that may run the job (-q)", default=None)
    project: str | None = option("project that the job is charged to (-P)", default=None)
    group: str | None = option("job group (-g), such as /team/nightly", default=None)
    app: str | None = option(
        "application profile (-app), for example one that starts containers",
        default=None,
        needs_trust=PROGRAM,
    )
    time: str | None = option(
        "time limit (-W), as MINUTES or HOURS:MINUTES; grace_period before it, the program is asked to stop "
        "(-wa, -wt). By default the queue's",
        default=None,
        time_limit=HOURS_MINUTES,
    )
    mem_per: str = option(
        "unit of memory reservations (rusage[mem]) at this site: host (LSF's default), job, or core "
        "(where RESOURCE_RESERVE_PER_TASK is set)",
        default=PER_HOST,
    )
    mem_limit: bool = option(
        "besides reserving the memory of a replica (with mem_per=job: of all replicas), also set it as a "
        "limit (-M)",
        default=True,
    )
    gpu_mode: str | None = option(
        "more of the -gpu requirement, such as mode=exclusive_process or gmodel=NVIDIAA100", default=None
    )
    resources: str | None = option(
        "resource requirement in addition to ours (-R), such as select[type==X86_64]", default=None
    )
    requeue: str | None = option(
        "exit codes after which LSF runs the job again (-Q), such as '137' or 'all ~0 ~1'", default=None
    )
    native: list[str] | None = option(
        "more lines for the script, as for #BSUB: '-x', '-sla gold'", default=None, needs_trust=PROGRAM
    )
    omit: list[str] | None = option(
        "options that the site forbids and that are left out of the script: '-M', '-R rusage', '-wa', ...",
        default=None,
    )
    lsf_queue: str | None = option("queue, by the name that TorchX gave it", default=None)
    jobdir: str | None = option(
        "shared_dir, by the name that TorchX gave it", default=None, needs_trust=DESTINATION
    )
    container_workdir: str | None = option(
        "workdir, by the name that TorchX gave it", default=None, needs_trust=FILES_OUTSIDE
    )
    host_network: bool = option(
        "accepted for compatibility with TorchX: programs run on the host and always have its network",
        default=False,
    )
    shm_size: str | None = option(
        "TorchX's option for containers. Refused: programs run on the host and have its /dev/shm",
        default=None,
    )

    def __post_init__(self) -> None:
        problems = []
        for old, new in _RENAMED.items():
            value = getattr(self, old)
            if value is None:
                continue
            if getattr(self, new) not in (None, value):
                problems.append(f"{old}={value} and {new}={getattr(self, new)} contradict each other")
            setattr(self, new, value)
        if self.shm_size not in (None, TORCHX_SHM_SIZE):
            problems.append(
                f"shm_size={self.shm_size}: programs run on the host, with all of its /dev/shm; leave it out"
            )
        if problems:
            raise ConfigError("; ".join(problems))


#: What TorchX asked for by default, which means nothing here.
TORCHX_SHM_SIZE = "64m"
_RENAMED = {"lsf_queue": "queue", "jobdir": "shared_dir", "container_workdir": "workdir"}
