"""`lsf`: the commands, options, states and messages of IBM Spectrum LSF. The code that it shares with other
clusters is in `shunter.schedulers.hpc`.
"""

from shunter.schedulers.lsf_scheduler.options import LsfOpts
from shunter.schedulers.lsf_scheduler.scheduler import LsfScheduler, create_scheduler

__all__ = ["LsfOpts", "LsfScheduler", "create_scheduler"]
