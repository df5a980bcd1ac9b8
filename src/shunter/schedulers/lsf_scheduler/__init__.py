"""`lsf`: IBM Spectrum LSF's own commands, options, states and words. What it shares with other clusters is in
`shunter.schedulers.hpc`, not here.
"""

from shunter.schedulers.lsf_scheduler.options import LsfOpts
from shunter.schedulers.lsf_scheduler.scheduler import LsfScheduler, create_scheduler

__all__ = ["LsfOpts", "LsfScheduler", "create_scheduler"]
