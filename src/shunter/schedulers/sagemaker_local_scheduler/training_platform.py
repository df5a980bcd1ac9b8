"""What hosts are made of on this machine: containers or processes, and what all attempts share."""

from __future__ import annotations

import os
import shutil
import socket
from typing import Any

from shunter import system
from shunter._toolkit import host_names, opt_ml, stack_dump
from shunter._toolkit.errors import ClientError
from shunter.docker.command import DockerCommand
from shunter.docker.daemon_errors import EngineUnavailableError, NoSubnetLeftError
from shunter.docker.images import ensure_image
from shunter.errors import ShunterError
from shunter.schedulers.sagemaker_local_scheduler.hosts.addresses import free_ports
from shunter.schedulers.sagemaker_local_scheduler.hosts.container_host import (
    Cluster,
    ContainerHost,
    reclaim,
    remove_all,
)
from shunter.schedulers.sagemaker_local_scheduler.hosts.host import (
    PlatformFailure,
    ProcessHost,
    Running,
    StartFailure,
    command_or_toolkit,
    platform_variables,
)
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import (
    BASE,
    INTERFACE,
    Host,
    Shown,
    Tree,
    checkpoint_path,
)
from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob

#: The toolkit's variables for the ports at which a job's hosts meet: process hosts share the machine's ports.
PORT_VARIABLES = ("SHUNTER_RENDEZVOUS_PORT", "SHUNTER_MASTER_PORT")
LOOPBACK = "lo"
_HINTS_OF_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)


class Platform:
    """Makes the hosts of a job: containers or processes, as its settings say."""

    def __init__(
        self,
        job: TrainingJob,
        request: dict[str, Any],
        arn: str,
        region: str,
        settings: Settings,
        programs: dict[str, Any],
    ) -> None:
        self._job = job
        self._toolkit: list[str] = programs["toolkit"]
        changed = {**os.environ, **programs["environment"]}
        self._environ: dict[str, str] = {name: value for name, value in changed.items() if value is not None}
        self._request = request
        self._variables = platform_variables(request, arn, region)
        self._settings = settings
        self.cluster: Cluster | None = None
        self._is_chosen = False
        self._ports: dict[str, str] = {}
        os.makedirs(job.work, exist_ok=True)
        memory = system.memory_directory()
        self._is_in_memory = bool(memory)
        self._secrets = os.path.join(memory or job.work, f"shunter-sagemaker-{os.urandom(8).hex()}")
        # First, so that cleaning up knows where to look
        os.symlink(self._secrets, job.file("work", ".secrets"))
        os.mkdir(self._secrets, 0o700)
        os.chmod(self._secrets, 0o711)  # mounted from here, for any user of the container

    def choose(self) -> None:
        """Decide whether hosts are containers or processes.

        Raises:
            PlatformFailure: containers are wanted, and no daemon answers.
            StartFailure: there is no daemon, and the job cannot do without containers.
        """
        if self._is_chosen:
            return
        if self._settings.docker != "never":
            try:
                # First, so that cleaning up knows where to look
                with open(self._job.file("work", ".docker"), "w", encoding="utf-8"):
                    pass
                docker = DockerCommand()
                self.cluster = Cluster(docker, self._job.path, self._request, self._settings.patience)
            except ShunterError as error:
                os.unlink(self._job.file("work", ".docker"))
                if self._settings.docker == "always":
                    raise PlatformFailure(error.message) from error
        self._is_chosen = True

    def connect(self, hosts: list[Host]) -> str:
        """Get the network for containers; returns why none is available now, "" if one is.

        Raises:
            PlatformFailure: the daemon cannot make one.
        """
        if self.cluster is None or self.cluster.network:
            return ""
        try:
            self.cluster.join_network(hosts)
        except NoSubnetLeftError as error:
            return error.message
        except ShunterError as error:
            raise PlatformFailure(error.message) from error
        return ""

    def prepare(self, hosts: list[Host]) -> None:
        """Get the image, or ports that no other job uses.

        Raises:
            StartFailure: the image cannot be obtained.
            PlatformFailure: no daemon answers, or the machine has no more ports.
        """
        if self.cluster is None:
            if len(hosts) > 1 and not self._ports:
                ports = free_ports(len(PORT_VARIABLES))
                self._ports = {name: str(port) for name, port in zip(PORT_VARIABLES, ports, strict=True)}
            return
        image = self._request["AlgorithmSpecification"].get("TrainingImage", "")
        try:
            ensure_image(self.cluster.docker, image)
        except EngineUnavailableError as error:
            raise PlatformFailure(error.message) from error
        except ShunterError as error:
            raise StartFailure(error.message) from error

    def views(self) -> str:
        """Return the path at which data for hosts are put together, after removing old data."""
        path = self._job.file("work", ".views")
        shutil.rmtree(path, ignore_errors=True)
        return path

    def names(self, hosts: list[Host]) -> dict[str, str]:
        """Return what hosts call each other: containers by their names, processes by loopback addresses."""
        names = [host.name for host in hosts]
        if self.cluster is not None:
            return {name: name for name in names}
        return host_names.loopback_addresses(self._job.path, names)

    def tree(self, host: Host) -> Tree:
        """Return the tree for a host's files, after removing old files."""
        config = os.path.join(self._secrets, host.name)
        path = self._job.file("work", host.name)
        for old in (config, path):
            shutil.rmtree(old, ignore_errors=True)
        os.makedirs(path)
        if self.cluster is not None:
            return Tree(path, config)
        there = {name for _, name in socket.if_nameindex()}
        return Tree(path, config, path, INTERFACE if INTERFACE in there else LOOPBACK)

    def host(self, plan: Host, tree: Tree, log_path: str, shown: dict[str, Shown]) -> Running:
        """Return a host that is to be started."""
        if self.cluster is not None:
            return ContainerHost(
                plan, tree, self.cluster, self._variables, log_path, shown, self._credentials()
            )
        self._link_data(tree, shown)
        environ = {**self._environ, **self._ports, **self._variables, **self._stack_variables()}
        command = command_or_toolkit(self._request, environ, self._toolkit)
        if opt_ml.is_wanted(environ):
            try:
                command = opt_ml.command(os.path.realpath(tree.path), command)
            except ClientError as error:
                raise StartFailure(str(error)) from None
        return ProcessHost(plan, tree, self._request, command, environ, log_path, self._job.path)

    def _stack_variables(self) -> dict[str, str]:
        """Return the variables by which processes of Python write their stacks when they hang."""
        if self._settings.hang_timeout is None:
            return {}
        folder = self._job.python_dir
        os.makedirs(folder, mode=0o755, exist_ok=True)
        with open(os.path.join(folder, stack_dump.HANDLER_FILE), "w", encoding="ascii") as file:
            file.write(stack_dump.HANDLER)
        found = self._variables.get("PYTHONPATH", self._environ.get("PYTHONPATH", ""))
        return {
            stack_dump.VARIABLE: str(int(stack_dump.SIGNAL)),
            "PYTHONPATH": os.pathsep.join(filter(None, [folder, found])),
        }

    def _link_data(self, tree: Tree, shown: dict[str, Shown]) -> None:
        """Link a host's channels into its files.

        Raises:
            StartFailure: the checkpoints cannot be where the request wants them.
        """
        for name, source in shown.items():
            folder = tree.part("input", "data", name)
            shutil.rmtree(folder, ignore_errors=True)
            os.symlink(source.path, folder)
        checkpoints = checkpoint_path(self._request)
        if checkpoints and not checkpoints.startswith(f"{BASE}/"):
            raise StartFailure(
                f"cannot show the checkpoints at {checkpoints} to a host that is a process of this"
                f" machine; let LocalPath be below {BASE}, or start a Docker daemon"
            )

    def _credentials(self) -> str:
        """Write this user's credentials where containers find them: in memory, never on disk."""
        path = os.path.join(self._secrets, "credentials")
        if os.path.exists(path):
            return path
        has_hints = any(os.environ.get(name) for name in _HINTS_OF_CREDENTIALS)
        if not self._is_in_memory or not (has_hints or os.path.isdir(os.path.expanduser("~/.aws"))):
            return ""
        try:
            import boto3
        except ImportError:
            return ""
        found = boto3.Session().get_credentials()
        if found is None:
            return ""
        frozen = found.get_frozen_credentials()
        lines = [
            "[default]",
            f"aws_access_key_id = {frozen.access_key}",
            f"aws_secret_access_key = {frozen.secret_key}",
        ]
        if frozen.token:
            lines.append(f"aws_session_token = {frozen.token}")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.chmod(path, 0o644)
        return path

    def reclaim(self) -> None:
        """Make the hosts' files this user's own."""
        if self.cluster is not None:
            reclaim(
                self.cluster.docker,
                self._request["AlgorithmSpecification"]["TrainingImage"],
                self._job.path,
                self._job.work,
            )

    def close(self) -> None:
        """Remove what hosts were made of, and their files."""
        if self.cluster is not None:
            remove_all(self.cluster.docker, self._job.path)
        self.cluster = None
        shutil.rmtree(self._secrets, ignore_errors=True)
        shutil.rmtree(self._job.work)
