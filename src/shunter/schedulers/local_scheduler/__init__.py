"""The scheduler `local_cwd`: options, request, submission and description of jobs that are processes here.

How the processes are run, recovered and logged is in `schedulers/supervisor`.
"""

from shunter.schedulers.local_scheduler.options import LocalOpts
from shunter.schedulers.local_scheduler.request import LocalRequest
from shunter.schedulers.local_scheduler.scheduler import LocalScheduler, create_scheduler

__all__ = ["LocalOpts", "LocalRequest", "LocalScheduler", "create_scheduler"]
