"""A job of containers: the directory that a supervisor keeps of it, and what of it is in the daemon."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from shunter.docker.command import DockerCommand, DockerRefused, remove_containers
from shunter.errors import BackendError, ShunterError
from shunter.paths import state_dir
from shunter.schedulers.docker_scheduler import labels
from shunter.schedulers.supervisor.job_directory import ProcessJob
from shunter.specs.status import AppState


class ContainerJob(ProcessJob):
    """A job of `local_docker`. Its directory is as that of a job of processes."""

    HAS_VIEWS = False

    @staticmethod
    def root() -> str:
        """Return the directory of all jobs of containers."""
        return os.path.join(state_dir(), "docker")

    def docker(self) -> DockerCommand:
        """Return the command for the daemon that has the job's containers."""
        return DockerCommand((self.read_request() or {}).get("daemon"))

    def clean_up(self, state: dict[str, Any]) -> None:
        """Kill the containers of a job without a supervisor; remove them if the job never began.

        Raises:
            ShunterError: the daemon does not answer, so that the job may still run.
        """
        docker = self.docker()
        containers = docker.ids("container", labels.APP_ID, self.name)
        if not state.get("roles"):
            self.remove_belongings()
        elif containers:
            with suppress(DockerRefused):  # some have ended already
                docker.run("kill", *containers)
            with suppress(BackendError):  # a container may take a moment to leave it; `delete` tries again
                remove_network(docker, self.name)

    def remove_belongings(self) -> None:
        """Remove the job's containers, with what they have written, and its network.

        Raises:
            ShunterError: they cannot be removed, or no daemon answers.
        """
        docker = self.docker()
        remove_containers(docker, docker.ids("container", labels.APP_ID, self.name))
        remove_network(docker, self.name)

    def live_places(self, state: dict[str, Any]) -> dict[str, dict[str, str]]:
        """Return where the published ports of replicas that run are found, by ``ROLE/K`` and name."""
        document = self.read_request() or {}
        found: dict[str, dict[str, str]] = {}
        for role in state["roles"]:
            names: dict[str, int] = document.get("ports", {}).get(role["role"], {})
            running = [item["id"] for item in role["replicas"] if item["state"] == AppState.RUNNING.name]
            for k in running if names else ():
                replica = f"{role['role']}/{k}"
                places = _published(self.docker(), document["hostnames"][replica])
                found[replica] = {name: places[port] for name, port in names.items() if port in places}
        return found


def _published(docker: DockerCommand, container: str) -> dict[int, str]:
    """Return where a container's ports are found outside of it, by their numbers in it."""
    try:
        details = docker.inspect("container", container) or {}
    except ShunterError:  # the job's state is known without them
        return {}
    found: dict[int, str] = {}
    for port, bindings in ((details.get("NetworkSettings") or {}).get("Ports") or {}).items():
        for binding in bindings or ():
            if ":" not in binding["HostIp"]:
                host = "127.0.0.1" if binding["HostIp"] in ("", "0.0.0.0") else binding["HostIp"]
                found.setdefault(int(port.partition("/")[0]), f"{host}:{binding['HostPort']}")
    return found


def remove_network(docker: DockerCommand, app_id: str) -> None:
    """Remove the network of a job, if it has one.

    Raises:
        BackendError: containers still use it, or no daemon answers.
    """
    for network in docker.ids("network", labels.APP_ID, app_id):
        try:
            docker.run("network", "rm", network)
        except DockerRefused as error:
            if not error.is_absent:
                raise BackendError(f"the network of {app_id} cannot be removed: {error.message}") from error
