"""Hosts that are containers: what a CreateTrainingJob request means for those, and what they share."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from ipaddress import ip_network
from typing import Any

from shunter.docker.command import (
    DockerCommand,
    DockerRefused,
    Mount,
    environment_words,
    remove_containers,
    remove_networks,
)
from shunter.docker.networks import make_network
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import (
    BASE,
    Host,
    Shown,
    Tree,
    checkpoint_path,
    command_of,
)

#: Marks containers and networks; its value is the job's directory.
LABEL = "shunter.sagemaker.job"
CREDENTIALS = "/run/shunter/credentials"
_LOOPBACK = re.compile(r"\A([^:]*://)(?:127\.0\.0\.1|localhost|\[::1\]|0\.0\.0\.0)(?=[:/]|\Z)")
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS", "S3_ENDPOINT_URL")


class Cluster:
    """What the containers of a job share: the daemon, the network, shared memory, GPUs.

    Args:
        docker: the command for the daemon.
        job_dir: the job's directory.
        request: the request.

    Raises:
        EngineUnavailableError: no daemon answers.
        ConfigError: there is no ``docker`` command.
    """

    def __init__(self, docker: DockerCommand, job_dir: str, request: dict[str, Any]) -> None:
        self.docker = docker
        self.labels = {LABEL: job_dir}
        self.request = request
        self.network = ""
        self.gateway = ""
        self.addresses: dict[str, str] = {}
        info = docker.facts()
        self.shared_memory = max(int(info.get("MemTotal") or 0) // 2, 64 << 20)
        self.has_gpus = "nvidia" in (info.get("Runtimes") or {})

    def join_network(self, hosts: list[Host]) -> None:
        """Choose the network for the hosts. An isolated job's network leads nowhere.

        A job of one host uses the daemon's own bridge, or no network at all. Several hosts get a network for
        their job alone, on which every host's address is chosen beforehand: all names resolve before the
        first program starts.

        Raises:
            NoSubnetLeftError: no addresses are left for it now.
            DockerRefused: the daemon refuses it for another reason.
        """
        is_isolated = bool(self.request.get("EnableNetworkIsolation"))
        if len(hosts) == 1 and is_isolated:
            self.network = "none"
            return
        bridges = self.docker.inspect("network", "bridge") if len(hosts) == 1 else []
        if bridges:
            self.network, self.gateway = "bridge", _gateway_of(bridges[0])
            return
        name = f"shunter-{self.request['TrainingJobName']}-{os.urandom(3).hex()}"
        network = make_network(self.docker, name, len(hosts), self.labels, is_internal=is_isolated)
        addresses = zip(hosts, network.addresses(), strict=False)
        self.addresses = {host.name: address for host, address in addresses}
        self.network, self.gateway = network.id, network.gateway

    def make(
        self,
        name: str,
        host: Host,
        tree: Tree,
        environ: dict[str, str],
        shown: dict[str, Shown],
        credentials: str,
    ) -> None:
        """Make the container of a host, in place of one that there may be.

        Args:
            name: the container's.
            host: which host.
            tree: its files.
            environ: the variables of its program.
            shown: channels that are shown from where they are on this machine.
            credentials: file with credentials, in memory; "" without any.

        Raises:
            DockerRefused: the daemon refuses it.
            EngineUnavailableError: no daemon answers.
        """
        entrypoint, arguments = command_of(self.request)
        environ = {**self._endpoint_variables(), **environ}
        if credentials:
            environ.setdefault("AWS_SHARED_CREDENTIALS_FILE", CREDENTIALS)
        address = self.addresses.get(host.name, "")
        words = ["--name", name, "--init", "--hostname", host.name, "--network", self.network]
        words += ["--shm-size", str(self.shared_memory)]
        words += [word for label, value in self.labels.items() for word in ("--label", f"{label}={value}")]
        for mount in self._mounts(tree, shown, credentials):
            words += ["--mount", mount.word()]
        words += ["--ip", address, "--network-alias", host.name] if address else []
        words += ["--add-host", f"{host.name}:127.0.0.1"] if self.network == "none" else []
        for other, place in self.addresses.items():
            words += ["--add-host", f"{other}:{place}"] if other != host.name else []
        if self.gives_gpus(host):
            words += ["--gpus", "all"]
        words += environment_words(environ)
        if entrypoint:
            program, *first = entrypoint
            words, arguments = [*words, "--entrypoint", program], [*first, *arguments]
        image = self.request["AlgorithmSpecification"]["TrainingImage"]
        remove_containers(self.docker, [name])
        self.docker.create([*words, image, *arguments], environ)

    def gives_gpus(self, host: Host) -> bool:
        """Tell whether a host gets the machine's GPUs."""
        return self.has_gpus and host.instance_type.startswith(("ml.g", "ml.p"))

    def _endpoint_variables(self) -> dict[str, str]:
        """Return the variables that name AWS endpoints, with the gateway's address in place of loopback."""
        urls = {name: os.environ.get(name) for name in _ENDPOINTS if self.gateway}
        return {name: _LOOPBACK.sub(rf"\g<1>{self.gateway}", url) for name, url in urls.items() if url}

    def _mounts(self, tree: Tree, shown: dict[str, Shown], credentials: str) -> list[Mount]:
        checkpoints = checkpoint_path(self.request)
        mounts = [Mount("bind", tree.part(name), f"{BASE}/{name}") for name in ("input", "model", "output")]
        mounts.append(Mount("bind", tree.config, f"{BASE}/input/config"))
        if checkpoints:
            mounts.append(Mount("bind", tree.part("checkpoints"), checkpoints))
        for name, source in shown.items():
            mounts.append(Mount("bind", source.path, f"{BASE}/input/data/{name}", source.is_fixed))
        if credentials:
            mounts.append(Mount("bind", credentials, CREDENTIALS, read_only=True))
        return mounts


def reclaim(docker: DockerCommand, image: str, job_dir: str, folder: str) -> None:
    """Give files that containers have left in a folder to this user, by the image's ``chown``."""
    if os.geteuid() == 0 or not os.path.isdir(folder):
        return
    options = ["--rm", "--user", "0:0", "--network", "none", "--label", f"{LABEL}={job_dir}"]
    owner = f"{os.geteuid()}:{os.getegid()}"
    try:
        words = ["--mount", Mount("bind", folder, "/shunter").word(), "--entrypoint", "chown"]
        docker.run("run", *options, *words, image, "-R", owner, "/shunter")
    except DockerRefused:  # an image without chown: what cannot be read is missed later, and named
        pass


def remove_all(docker: DockerCommand, job_dir: str) -> None:
    """Remove all containers and networks of a job.

    Raises:
        BackendError: one cannot be removed, or no daemon answers.
    """
    remove_containers(docker, docker.ids("container", LABEL, job_dir))
    remove_networks(docker, docker.ids("network", LABEL, job_dir))


def all_of_jobs(docker: DockerCommand) -> list[tuple[str, str, str, float]]:
    """Return kind, id, job's directory and age in seconds of all containers and networks of jobs.

    Raises:
        EngineUnavailableError: no daemon answers.
    """
    found = []
    for kind in ("container", "network"):
        ids = docker.ids(kind, LABEL)
        for item in docker.inspect(kind, *ids) if ids else ():
            labels = item["Config"]["Labels"] if kind == "container" else item["Labels"]
            age = time.time() - datetime.fromisoformat(item["Created"]).timestamp()
            found.append((kind, item["Id"], labels[LABEL], age))
    return found


def _gateway_of(network: dict[str, Any]) -> str:
    """Return a network's IPv4 gateway; a daemon that has just made its bridge names only the subnet."""
    for config in (network.get("IPAM") or {}).get("Config") or []:
        subnet = ip_network(config["Subnet"])
        if subnet.version == 4:
            return str(config.get("Gateway") or subnet[1])
    return ""
