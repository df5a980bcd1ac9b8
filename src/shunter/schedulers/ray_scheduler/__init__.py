"""`ray`: jobs on a Ray cluster, through its Jobs API over HTTP; Ray need not be installed here.

`shipped/` runs on the cluster.
"""

from shunter.schedulers.ray_scheduler.options import RayOpts
from shunter.schedulers.ray_scheduler.request import RayRequest
from shunter.schedulers.ray_scheduler.scheduler import RayScheduler, create_scheduler

__all__ = ["RayOpts", "RayRequest", "RayScheduler", "create_scheduler"]
