"""`sge`: the commands, options, states and messages of Grid Engine. The code that it shares with other
clusters is in `shunter.schedulers.hpc`.
"""

from shunter.schedulers.sge_scheduler.options import SgeOpts
from shunter.schedulers.sge_scheduler.scheduler import SgeScheduler, create_scheduler

__all__ = ["SgeOpts", "SgeScheduler", "create_scheduler"]
