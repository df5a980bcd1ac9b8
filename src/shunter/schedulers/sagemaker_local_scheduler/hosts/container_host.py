"""Hosts that are containers: what a CreateTrainingJob request means for those, and what they share.

How one is run is in `attached`.
"""

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
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.docker.networks import make_network
from shunter.schedulers.sagemaker_local_scheduler.hosts.attached import AttachedContainer, ContainerLost
from shunter.schedulers.sagemaker_local_scheduler.hosts.host import Exit, PlatformFailure, StartFailure
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import (
    BASE,
    Host,
    Shown,
    Tree,
    checkpoint_path,
    command_of,
)
from shunter.schedulers.supervisor.container_stacks import stack_command
from shunter.schedulers.supervisor.container_usage import record_of
from shunter.schedulers.supervisor.usage_file import UsageRecord
from shunter.system.processes import signal_name

#: Marks containers and networks; its value is the job's directory.
LABEL = "shunter.sagemaker.job"
HOST_LABEL = "shunter.sagemaker.host"
#: For how many seconds a daemon may be away, at most.
LONGEST_PATIENCE = 60.0
CREDENTIALS = "/run/shunter/credentials"
_LOOPBACK = re.compile(r"\A([^:]*://)(?:127\.0\.0\.1|localhost|\[::1\]|0\.0\.0\.0)(?=[:/]|\Z)")
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS", "S3_ENDPOINT_URL")


class Cluster:
    """What the containers of a job share: the daemon, the network, shared memory, GPUs.

    Args:
        docker: the command for the daemon.
        job_dir: the job's directory.
        request: the request.
        patience: seconds for which the daemon may be away, at most a minute.

    Raises:
        EngineUnavailableError: no daemon answers.
        ConfigError: there is no ``docker`` command.
    """

    def __init__(
        self, docker: DockerCommand, job_dir: str, request: dict[str, Any], patience: float = LONGEST_PATIENCE
    ) -> None:
        self.patience = min(patience, LONGEST_PATIENCE)
        self.docker = docker
        self.labels = {LABEL: job_dir}
        self.request = request
        self.network = ""
        self.gateway = ""
        self.addresses: dict[str, str] = {}
        info = docker.facts()
        self.has_init = (info.get("InitBinary") or "") != ""
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

    def endpoint_variables(self) -> dict[str, str]:
        """Return the variables that name AWS endpoints, with the gateway's address in place of loopback."""
        urls = {name: os.environ.get(name) for name in _ENDPOINTS if self.gateway}
        return {name: _LOOPBACK.sub(rf"\g<1>{self.gateway}", url) for name, url in urls.items() if url}


class ContainerHost:
    """A host that is a container.

    Args:
        plan: which host.
        tree: its files.
        cluster: what it shares with the job's other hosts.
        environ: the variables of its program.
        log_path: of its log, without the ending.
        shown: channels that are shown from where they are on this machine.
        credentials: file with credentials, in memory; "" without any.
    """

    def __init__(
        self,
        plan: Host,
        tree: Tree,
        cluster: Cluster,
        environ: dict[str, str],
        log_path: str,
        shown: dict[str, Shown],
        credentials: str,
    ) -> None:
        self.plan = plan
        self._tree = tree
        self._cluster = cluster
        self._environ = environ
        self._shown = shown
        self._credentials = credentials
        container = AttachedContainer(cluster.docker, plan.name, f"{log_path}.log", cluster.patience)
        self._container = container
        self.is_alive, self.terminate, self.kill = container.is_alive, container.terminate, container.kill
        self.remove = container.remove

    @property
    def is_running(self) -> bool:
        """Whether its program has been started, and has not ended as far as can be seen."""
        return bool(self._container.id) and self._container.is_alive()

    def usage(self, number: int, attempt: int) -> UsageRecord | None:
        """Return what it uses now; see `record_of`."""
        return record_of(self._container.first_pid, self._container.id, number, attempt)

    def stack_program(self, headline: str, mode: str, program: list[str]) -> list[str]:
        """Return the command that writes the stacks of its processes to its log; see `stack_command`."""
        docker = self._cluster.docker.program
        return stack_command(docker, self._container.id, headline, mode, program)

    def start(self) -> None:
        """Create and start the container.

        Raises:
            StartFailure: the daemon refuses it: no such program in the image, for instance.
            PlatformFailure: no daemon answers.
        """
        while True:
            try:
                self._container.start(*self._definition())
            except (ContainerLost, EngineUnavailableError) as error:
                raise PlatformFailure(error.message) from error
            except DockerRefused as error:
                if self._cluster.has_init and "docker-init" in error.message:
                    self._cluster.has_init = False  # the daemon reports an init that it does not have
                else:
                    raise StartFailure(f"cannot start the container: {error.message}") from error
                self._container.remove()
            else:
                return

    def _definition(self) -> tuple[list[str], dict[str, str]]:
        """Return the words of ``docker create``, and the container's variables."""
        cluster, request, name = self._cluster, self._cluster.request, self.plan.name
        entrypoint, arguments = command_of(request)
        environ = {**cluster.endpoint_variables(), **self._environ}
        if self._credentials:
            environ.setdefault("AWS_SHARED_CREDENTIALS_FILE", CREDENTIALS)
        address = cluster.addresses.get(name, "")
        held = {**cluster.labels, HOST_LABEL: name}
        words = ["--hostname", name, "--network", cluster.network, "--shm-size", str(cluster.shared_memory)]
        words += ["--init"] if cluster.has_init else []
        words += [word for label, value in held.items() for word in ("--label", f"{label}={value}")]
        words += [word for mount in self._mounts() for word in ("--mount", mount.word())]
        words += ["--ip", address, "--network-alias", name] if address else []
        words += ["--add-host", f"{name}:127.0.0.1"] if cluster.network == "none" else []
        for host, place in cluster.addresses.items():
            words += ["--add-host", f"{host}:{place}"] if host != name else []
        if cluster.has_gpus and self.plan.instance_type.startswith(("ml.g", "ml.p")):
            words += ["--gpus", "all"]
        words += environment_words(environ)
        if entrypoint:
            program, *first = entrypoint
            words, arguments = [*words, "--entrypoint", program], [*first, *arguments]
        return [*words, request["AlgorithmSpecification"]["TrainingImage"], *arguments], environ

    def _mounts(self) -> list[Mount]:
        tree = self._tree
        checkpoints = checkpoint_path(self._cluster.request)
        mounts = [Mount("bind", tree.part(name), f"{BASE}/{name}") for name in ("input", "model", "output")]
        mounts.append(Mount("bind", tree.config, f"{BASE}/input/config"))
        if checkpoints:
            mounts.append(Mount("bind", tree.part("checkpoints"), checkpoints))
        for name, source in self._shown.items():
            mounts.append(Mount("bind", source.path, f"{BASE}/input/data/{name}", source.is_fixed))
        if self._credentials:
            mounts.append(Mount("bind", self._credentials, CREDENTIALS, read_only=True))
        return mounts

    def wait(self) -> Exit:
        """Wait for its end and the end of its log.

        Raises:
            PlatformFailure: the daemon stays away, or another client removed the container.
        """
        try:
            end = self._container.wait()
        except ContainerLost as error:
            raise PlatformFailure(error.message) from error
        if end.oom:
            return Exit(end.code, "the kernel killed a process of it because memory ran out", was_killed=True)
        if end.error:
            return Exit(end.code, end.error)
        reasons = [f"ended by {signal_name(end.signum)}"] if end.signum else []
        if end.has_lost_lines:
            reasons.append("lines of its log are lost, since the disk was full")
        # A program that handled SIGTERM has written what it wanted to write.
        return Exit(end.code, "; ".join(reasons), was_killed=bool(end.signum) and not end.handled)


def reclaim(docker: DockerCommand, image: str, job_dir: str, folder: str) -> None:
    """Give files that containers have left in a folder to this user, by the image's ``chown``."""
    if os.geteuid() == 0:
        return
    options = ["--rm", "--user", "0:0", "--network", "none", "--label", f"{LABEL}={job_dir}"]
    owner = f"{os.geteuid()}:{os.getegid()}"
    try:
        words = ["--mount", Mount("bind", folder, "/shunter").word(), "--entrypoint", "chown"]
        docker.run("run", *options, *words, image, "-R", owner, "/shunter")
    except DockerRefused:  # an image without chown: what cannot be read is missed later, and named
        pass


def container_of(docker: DockerCommand, job_dir: str, host: str) -> str | None:
    """Return the id of the container that is a host and runs, if there is one."""
    chosen = ["--filter", f"label={LABEL}={job_dir}", "--filter", f"label={HOST_LABEL}={host}"]
    found = docker.run("container", "ls", "--quiet", "--no-trunc", *chosen).split()
    return found[0] if found else None


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
            held = item["Config"]["Labels"] if kind == "container" else item["Labels"]
            age = time.time() - datetime.fromisoformat(item["Created"]).timestamp()
            found.append((kind, item["Id"], held[LABEL], age))
    return found


def _gateway_of(network: dict[str, Any]) -> str:
    """Return a network's IPv4 gateway; a daemon that has just made its bridge names only the subnet."""
    for config in (network.get("IPAM") or {}).get("Config") or []:
        subnet = ip_network(config["Subnet"])
        if subnet.version == 4:
            return str(config.get("Gateway") or subnet[1])
    return ""
