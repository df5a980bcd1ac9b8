"""Whether this machine can carry out a valid request, checked before the job is accepted."""

from __future__ import annotations

import json
import shutil
from typing import Any

from shunter.docker.command import DockerCommand
from shunter.errors import ShunterError
from shunter.schedulers.sagemaker_local_scheduler import filesystems
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import count_of
from shunter.schedulers.sagemaker_local_scheduler.request_validation import invalid

MPI = "sagemaker_mpi_enabled"


def check(request: dict[str, Any], docker: str, file_systems: dict[str, str]) -> None:
    """Refuse a valid request that this machine cannot carry out; see `job_start.Settings` for the others.

    Raises:
        ApiError: ValidationException, with all reasons and what to do.
    """
    channels = request.get("InputDataConfig") or ()
    problems = [filesystems.problem_of(channel, file_systems) for channel in channels]
    problems.append(_distribution_problem(request, docker))
    found = [problem for problem in problems if problem]
    if found:
        raise invalid("; ".join(found))


def uses_containers(docker: str) -> bool:
    """Tell whether hosts will be containers; asks the daemon if that decides it."""
    if docker != "auto":
        return docker == "always"
    try:
        return bool(DockerCommand().facts())
    except ShunterError:
        return False


def _distribution_problem(request: dict[str, Any], docker: str) -> str:
    """Return why a script cannot be started under MPI on several hosts that are processes."""
    parameters = request.get("HyperParameters") or {}
    count = count_of(request)
    if not _is_on(parameters, MPI) or count < 2 or uses_containers(docker) or shutil.which("mpirun"):
        return ""
    return (
        f"the job starts MPI on {count} hosts, which here are processes of this machine, and that needs "
        "mpirun (openmpi-bin). Start a Docker daemon, or install Open MPI"
    )


def _is_on(parameters: dict[str, str], name: str) -> bool:
    try:
        return json.loads(parameters.get(name, "false")) is True
    except ValueError:
        return False
