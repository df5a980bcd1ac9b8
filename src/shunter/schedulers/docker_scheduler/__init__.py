"""`local_docker`: options, and the request for the containers of a job.

How containers are run, judged, read and removed is in `schedulers/exec/container`.
"""

from shunter.schedulers.docker_scheduler.options import DockerOpts
from shunter.schedulers.docker_scheduler.scheduler import DockerScheduler, create_scheduler

__all__ = ["DockerOpts", "DockerScheduler", "create_scheduler"]
