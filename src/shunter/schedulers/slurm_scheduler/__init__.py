"""`slurm`: jobs on Slurm, by its own commands, on this machine or on a login node.

Commands over ssh, the job's folder and logs, which all clusters share, are in `schedulers/hpc`.
"""

from shunter.schedulers.slurm_scheduler.options import SlurmOpts
from shunter.schedulers.slurm_scheduler.scheduler import SlurmScheduler, create_scheduler

__all__ = ["SlurmOpts", "SlurmScheduler", "create_scheduler"]
