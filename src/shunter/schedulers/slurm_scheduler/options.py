"""Options of Slurm. Those that TorchX had keep their names."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.errors import ConfigError
from shunter.schedulers.hpc.options import HpcOpts
from shunter.specs.options import CLOCK, DESTINATION, PROGRAM, option

#: What starts the containers of a job, if it has any.
PYXIS, APPTAINER, SINGULARITY, OCI = "pyxis", "apptainer", "singularity", "oci"
RUNTIMES = (PYXIS, APPTAINER, SINGULARITY, OCI)
#: Options whose names are not those of their fields.
HYPHENATED = {"mail_user": "mail-user", "mail_type": "mail-type"}
#: How GPUs are asked for.
GPUS_PER_NODE, GRES = "gpus-per-node", "gres"


@dataclass
class SlurmOpts(HpcOpts):
    """How a job runs on Slurm."""

    partition: str | None = option(
        "partition, or several separated by ','; Slurm's default one otherwise", default=None
    )
    time: str | None = option(
        "time limit: minutes, hours:minutes:seconds or days-hours; by default the partition's",
        default=None,
        time_limit=CLOCK,
    )
    account: str | None = option("account to charge", default=None)
    qos: str | None = option("quality of service", default=None)
    reservation: str | None = option("reservation to run in", default=None)
    constraint: str | None = option("features that the nodes must have, such as 'h100&ib'", default=None)
    nodelist: str | None = option("nodes to use, such as n[1-4]", default=None)
    exclude: str | None = option("nodes not to use", default=None)
    exclusive: bool = option("share no node with other jobs", default=False)
    comment: str | None = option("comment of the job", default=None)
    mail_user: str | None = option("whom Slurm writes to", default=None, needs_trust=DESTINATION)
    mail_type: str | None = option("when Slurm sends mail: BEGIN, END, FAIL, REQUEUE, ALL, ...", default=None)
    job_dir: str | None = option(
        "TorchX's name for shared_dir: where code, logs and results of jobs are kept",
        default=None,
        needs_trust=DESTINATION,
    )
    gpu_flag: str = option(
        "how GPUs are requested: gpus-per-node, or gres where the site requires it", default=GPUS_PER_NODE
    )
    gpu_type: str | None = option("type of the GPUs, by Slurm's name, such as h100", default=None)
    gres: str | None = option(
        "generic resources of each node in Slurm's syntax, such as gpu:a100:4,nvme:1; GPUs are then "
        "requested only by this option",
        default=None,
    )
    switches: str | None = option(
        "maximum number of leaf switches, and how long to wait for that: 1@12:00:00", default=None
    )
    segment: int | None = option(
        "nodes per segment of a block topology (--segment, Slurm 24.05 and newer)", default=None
    )
    replicas_per_node: int = option("replicas on each node", default=1)
    requeue: bool = option(
        "have Slurm requeue the job after a node failure or preemption; it continues from its last "
        "checkpoint",
        default=True,
    )
    container: str | None = option(
        "what runs the role's image: pyxis (srun --container-image), apptainer, singularity, or oci "
        "(srun --container, the image is a bundle's path); by default the nodes themselves run the program",
        default=None,
    )
    sbatch_args: list[str] | None = option(
        "more options of sbatch, such as --nice=100; one that we would set replaces ours",
        default=None,
        needs_trust=PROGRAM,
    )
    srun_args: list[str] | None = option(
        "more options of srun, which starts the replicas", default=None, needs_trust=PROGRAM
    )
    omit: list[str] | None = option(
        "our own options of sbatch to leave out where a site forbids them, such as mem, "
        "gpus-per-node, signal",
        default=None,
    )
    clusters: str | None = option(
        "cluster of a multi-cluster site to submit to", default=None, needs_trust=DESTINATION
    )

    def __post_init__(self) -> None:
        if self.job_dir and self.shared_dir not in (None, self.job_dir):
            raise ConfigError("job_dir and shared_dir name two folders", hint="They mean the same: give one.")
        self.shared_dir = self.job_dir or self.shared_dir
