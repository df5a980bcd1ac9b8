"""Running a command on a host of a training job, be it a container or processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shunter import system
from shunter.docker.command import DockerCommand
from shunter.errors import ConfigError
from shunter.schedulers.joined_terminal import run_in_container
from shunter.schedulers.sagemaker_local_scheduler.hosts.container_host import container_of
from shunter.schedulers.sagemaker_local_scheduler.hosts.host import CURRENT_HOST
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor.process_command import run_beside
from shunter.system.processes import members_of_job


def run_on_host(job: TrainingJob, host: str, command: Sequence[str], *, tty: bool) -> int:
    """Run a command, or a shell without one, on a host that runs; returns its exit code.

    ``host`` is its name, such as ``algo-1``.

    Raises:
        ConfigError: nothing of the host is found, or there is no such program.
        EngineUnavailableError: no daemon answers.
    """
    name = f"{job.name} {host}"
    if os.path.exists(job.file("work", ".docker")):
        docker = DockerCommand()
        container = container_of(docker, job.path, host)
        if container is not None:
            return run_in_container(docker, container, name, command, tty=tty)
        raise ConfigError(f"no container of {name} runs on the Docker daemon")
    mark = os.fsencode(CURRENT_HOST), os.fsencode(host)
    for process in sorted(members_of_job(job.path), key=lambda process: process.start):
        place = system.process_place(process.pid)
        if place is not None and place.environ.get(mark[0]) == mark[1]:
            return run_beside(process.pid, name, command)
    raise ConfigError(f"no process of {name} is found on this machine")
