"""Whether this machine can carry out a valid request, checked before the job is accepted."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from shunter.docker.command import DockerCommand
from shunter.errors import ShunterError
from shunter.schedulers.sagemaker_local_scheduler import filesystems
from shunter.schedulers.sagemaker_local_scheduler.hosts import namespaces
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import count_of
from shunter.schedulers.sagemaker_local_scheduler.request_validation import invalid
from shunter.system.identity import account_name

MPI, TORCHRUN = "sagemaker_mpi_enabled", "sagemaker_torch_distributed_enabled"
#: The programs that MPI on several hosts needs, and their Debian packages.
_MPI_PROGRAMS = {
    "mpirun": "openmpi-bin",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
_SYSTEM_PROGRAMS = "/usr/sbin:/usr/local/sbin:/sbin"


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
    """Return why a script cannot be started under MPI or torchrun on several hosts that are processes."""
    parameters = request.get("HyperParameters") or {}
    kind = "MPI" if _is_on(parameters, MPI) else "torchrun" if _is_on(parameters, TORCHRUN) else ""
    count = count_of(request)
    if not kind or count < 2 or uses_containers(docker):
        return ""
    missing = []
    if not namespaces.are_available():
        missing.append("namespaces (unshare), which give each of them its name and address")
    path = os.pathsep.join(filter(None, [os.environ.get("PATH", os.defpath), _SYSTEM_PROGRAMS]))
    if kind == "MPI":
        missing += [
            f"{program} ({package})"
            for program, package in _MPI_PROGRAMS.items()
            if shutil.which(program, path=path) is None
        ]
        if not account_name(os.geteuid()):
            missing.append(
                f"a name for the user {os.geteuid()} (/etc/passwd), without which ssh does nothing"
            )
    if not missing:
        return ""
    return (
        f"the job starts {kind} on {count} hosts, which here are processes of this machine, and that needs "
        f"{', '.join(missing)}. Start a Docker daemon, let the machine have what is missing, or ask for one "
        "host with more processes"
    )


def _is_on(parameters: dict[str, str], name: str) -> bool:
    try:
        return json.loads(parameters.get(name, "false")) is True
    except ValueError:
        return False
