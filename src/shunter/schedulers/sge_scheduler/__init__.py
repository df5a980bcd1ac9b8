"""`sge`: Grid Engine's own commands, options, states and words. What it shares with other clusters is in
`shunter.schedulers.hpc`, not here.
"""

from shunter.schedulers.sge_scheduler.options import SgeOpts
from shunter.schedulers.sge_scheduler.scheduler import SgeScheduler, create_scheduler

__all__ = ["SgeOpts", "SgeScheduler", "create_scheduler"]
