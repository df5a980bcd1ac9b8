"""`shunter doctor -s sagemaker_local`: what the hosts of jobs would be on this machine."""

from __future__ import annotations

from shunter.docker.command import DockerCommand
from shunter.errors import ShunterError
from shunter.schedulers.responses import Check
from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings


def check() -> list[Check]:
    """Check whether hosts would be containers or processes."""
    settings = Settings.from_env()
    if settings.docker == "never":
        return [Check("hosts", None, "processes: SHUNTER_SAGEMAKER_DOCKER is never")]
    try:
        docker = DockerCommand()
        text = f"containers of the daemon at {docker.endpoint}, Docker {docker.facts().get('ServerVersion')}"
    except ShunterError as error:
        if settings.docker == "always":
            return [Check("hosts", False, error.message, error.hint)]
        return [Check("hosts", None, f"processes, since no Docker daemon answers: {error.message}")]
    return [Check("hosts", True, text)]
