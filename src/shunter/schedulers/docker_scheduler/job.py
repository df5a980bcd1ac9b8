"""A job of containers: the directory that a supervisor keeps of it, and what of it is in the daemon."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from shunter.docker.command import DockerCommand, DockerRefused, remove_containers, remove_networks
from shunter.errors import BackendError, ShunterError
from shunter.paths import state_dir
from shunter.schedulers.docker_scheduler import labels
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs.status import AppState


class ContainerJob(JobDirectory):
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
                remove_networks(docker, docker.ids("network", labels.APP_ID, self.name))

    def remove_belongings(self) -> None:
        """Remove the job's containers, with what they have written, and its network.

        Raises:
            ShunterError: they cannot be removed, or no daemon answers.
        """
        docker = self.docker()
        remove_containers(docker, docker.ids("container", labels.APP_ID, self.name))
        remove_networks(docker, docker.ids("network", labels.APP_ID, self.name))

    def live_places(self, state: dict[str, Any]) -> dict[str, dict[str, str]]:
        """Return where the published ports of replicas that run are found, by ``ROLE/K`` and name."""
        document = self.read_request() or {}
        ports: dict[str, dict[str, int]] = document.get("ports", {})
        running = {
            document["hostnames"][f"{role['role']}/{item['id']}"]: (role["role"], item["id"])
            for role in state["roles"]
            if role["role"] in ports
            for item in role["replicas"]
            if item["state"] == AppState.RUNNING.name
        }
        try:
            containers = self.docker().inspect("container", *running) if running else []
        except ShunterError:  # the job's state is known without them
            return {}
        found: dict[str, dict[str, str]] = {}
        for details in containers:
            role, k = running[details["Name"].lstrip("/")]
            places = _published(details)
            found[f"{role}/{k}"] = {
                name: places[port] for name, port in ports[role].items() if port in places
            }
        return found


def _published(details: dict[str, Any]) -> dict[int, str]:
    """Return where a container's ports are found outside of it, by their numbers in it."""
    found: dict[int, str] = {}
    for port, bindings in ((details.get("NetworkSettings") or {}).get("Ports") or {}).items():
        for binding in bindings or ():
            if ":" not in binding["HostIp"]:
                host = "127.0.0.1" if binding["HostIp"] in ("", "0.0.0.0") else binding["HostIp"]
                found.setdefault(int(port.partition("/")[0]), f"{host}:{binding['HostPort']}")
    return found
