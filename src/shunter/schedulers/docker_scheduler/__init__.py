"""`local_docker`: options, the request for the containers of a job, and making them.

A supervisor runs them (`schedulers/supervisor`).
"""

from shunter.schedulers.docker_scheduler.options import DockerOpts
from shunter.schedulers.docker_scheduler.scheduler import DockerScheduler, create_scheduler

__all__ = ["DockerOpts", "DockerScheduler", "create_scheduler"]
