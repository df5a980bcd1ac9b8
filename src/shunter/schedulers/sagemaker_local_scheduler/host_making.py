"""What hosts are made of on this machine: containers or processes, and what all attempts share."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shunter import system
from shunter._toolkit import host_names, opt_ml, stack_dump
from shunter._toolkit.errors import ClientError
from shunter.docker.command import DockerCommand
from shunter.docker.daemon_errors import EngineUnavailableError, NoSubnetLeftError
from shunter.docker.images import ensure_image
from shunter.errors import ShunterError
from shunter.schedulers.sagemaker_local_scheduler.hosts.host_containers import Cluster, reclaim, remove_all
from shunter.schedulers.sagemaker_local_scheduler.hosts.host_processes import (
    CURRENT_HOST,
    command_or_toolkit,
    free_ports,
    link_checkpoints,
)
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import (
    BASE,
    INTERFACE,
    Host,
    Shown,
    Tree,
    checkpoint_path,
    hosts_of,
)
from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.system.processes import JOB_VARIABLE, find_program

#: The toolkit's variables for the ports at which a job's hosts meet: process hosts share the machine's ports.
PORT_VARIABLES = ("SHUNTER_RENDEZVOUS_PORT", "SHUNTER_MASTER_PORT")
LOOPBACK = "lo"
NOT_FOUND = 127
_HINTS_OF_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)


class NotPrepared(Exception):
    """An attempt at a job cannot be made.

    Attributes:
        is_internal: whether that is this machine's fault, so that another attempt may succeed.
    """

    def __init__(self, reason: str, *, is_internal: bool = False) -> None:
        super().__init__(f"{'InternalServerError: ' if is_internal else ''}{reason}")
        self.is_internal = is_internal


def not_started(reason: str) -> NotPrepared:
    """Return the error for a host's program that cannot be started: the image or the command is wrong."""
    return NotPrepared(f"AlgorithmError: {reason}, exit code: {NOT_FOUND}")


@dataclass(frozen=True)
class HostProgram:
    """The program of a host that is a process: its path, arguments, environment, and working directory."""

    program: str
    argv: list[str]
    env: dict[str, str]
    cwd: str


class HostMaker:
    """Makes the hosts of a job.

    Args:
        job: the job.
        plan: what the supervisor got: ``request``, ``arn``, ``region``, ``programs``.
        settings: how the job is carried out.
        containers: the names of the hosts' containers; empty if hosts are processes.

    Raises:
        OSError: the directory for the hosts' files cannot be made.
    """

    def __init__(
        self, job: TrainingJob, plan: dict[str, Any], settings: Settings, containers: Sequence[str]
    ) -> None:
        self.job = job
        self.request: dict[str, Any] = plan["request"]
        self.arn: str = plan["arn"]
        self.settings = settings
        self.hosts = hosts_of(self.request)
        self._containers = containers
        self._toolkit: list[str] = plan["programs"]["toolkit"]
        changed = {**os.environ, **plan["programs"]["environment"]}
        self._environ = {name: str(value) for name, value in changed.items() if value is not None}
        self._variables: dict[str, str] = {
            "TRAINING_JOB_NAME": self.request["TrainingJobName"],
            "TRAINING_JOB_ARN": self.arn,
            "AWS_REGION": plan["region"],
            **(self.request.get("Environment") or {}),
        }
        self._cluster: Cluster | None = None
        self._ports: dict[str, str] = {}
        os.makedirs(job.work, exist_ok=True)
        memory = system.memory_directory()
        self._is_in_memory = bool(memory)
        self._secrets = os.path.join(memory or job.work, f"shunter-sagemaker-{os.urandom(8).hex()}")
        # first, so that cleaning up knows where to look
        os.symlink(self._secrets, job.file("work", ".secrets"))
        os.mkdir(self._secrets, 0o700)
        os.chmod(self._secrets, 0o711)  # mounted from here, for any user of the container

    def connect(self) -> str:
        """Get the network for containers; returns why none is available now, "" if one is.

        Raises:
            NotPrepared: no daemon answers, or it cannot make a network.
        """
        if not self._containers:
            return ""
        try:
            if self._cluster is None:
                self._cluster = Cluster(DockerCommand(), self.job.path, self.request)
            if not self._cluster.network:
                self._cluster.join_network(self.hosts)
        except NoSubnetLeftError as error:
            return error.message
        except ShunterError as error:
            raise NotPrepared(error.message, is_internal=True) from error
        return ""

    def prepare(self) -> None:
        """Get the image, or ports that no other job uses.

        Raises:
            NotPrepared: the image cannot be obtained, or no daemon answers.
            OSError: the machine has no more ports.
        """
        if self._cluster is None:
            if len(self.hosts) > 1 and not self._ports:
                ports = free_ports(len(PORT_VARIABLES))
                self._ports = {name: str(port) for name, port in zip(PORT_VARIABLES, ports, strict=True)}
            return
        try:
            ensure_image(
                self._cluster.docker, self.request["AlgorithmSpecification"].get("TrainingImage", "")
            )
        except EngineUnavailableError as error:
            raise NotPrepared(error.message, is_internal=True) from error
        except ShunterError as error:
            raise not_started(error.message) from error

    def views(self) -> str:
        """Return the path at which data for hosts are put together, after removing old data."""
        path = self.job.file("work", ".views")
        shutil.rmtree(path, ignore_errors=True)
        return path

    def names(self) -> dict[str, str]:
        """Return what hosts call each other: containers by their names, processes by loopback addresses."""
        names = [host.name for host in self.hosts]
        if self._containers:
            return {name: name for name in names}
        return host_names.loopback_addresses(self.job.path, names)

    def tree(self, host: Host) -> Tree:
        """Return the tree for a host's files, after removing old files."""
        config = os.path.join(self._secrets, host.name)
        path = self.job.file("work", host.name)
        for old in (config, path):
            shutil.rmtree(old, ignore_errors=True)
        os.makedirs(path)
        if self._containers:
            return Tree(path, config)
        there = {name for _, name in socket.if_nameindex()}
        return Tree(path, config, path, INTERFACE if INTERFACE in there else LOOPBACK)

    def make(self, host: Host, tree: Tree, shown: dict[str, Shown]) -> HostProgram | None:
        """Make a host; returns its program if it is a process.

        Raises:
            NotPrepared: the daemon refuses the container, or the checkpoints cannot be where the request
                wants them.
        """
        if self._cluster is None:
            return self._program(host, tree, shown)
        name = self._containers[host.number]
        try:
            self._cluster.make(name, host, tree, self._variables, shown, self._credentials())
        except EngineUnavailableError as error:
            raise NotPrepared(error.message, is_internal=True) from error
        except ShunterError as error:
            raise not_started(f"cannot make the container: {error.message}") from error
        return None

    def gives_gpus(self, host: Host) -> bool:
        """Tell whether a host that is a container gets the machine's GPUs."""
        return self._cluster is not None and self._cluster.gives_gpus(host)

    def _program(self, host: Host, tree: Tree, shown: dict[str, Shown]) -> HostProgram:
        self._link_data(tree, shown)
        link_checkpoints(tree, self.request)
        environ = {**self._environ, **self._ports, **self._variables, **self._stack_variables()}
        argv = command_or_toolkit(self.request, environ.get("PATH", ""), self._toolkit)
        if opt_ml.is_wanted(environ):
            try:
                argv = opt_ml.command(os.path.realpath(tree.path), argv)
            except ClientError as error:
                raise not_started(str(error)) from None
        environ |= {"SAGEMAKER_BASE_DIR": tree.path, CURRENT_HOST: host.name, JOB_VARIABLE: self.job.path}
        program = find_program(argv[0], environ.get("PATH", "")) or argv[0]
        cwd = tree.part("code") if os.path.isdir(tree.part("code")) else tree.path
        return HostProgram(program, argv, environ, cwd)

    def _stack_variables(self) -> dict[str, str]:
        """Return the variables by which processes of Python write their stacks when they hang."""
        if self.settings.hang_timeout is None:
            return {}
        folder = self.job.python_dir()
        os.makedirs(folder, mode=0o755, exist_ok=True)
        with open(os.path.join(folder, stack_dump.HANDLER_FILE), "w", encoding="ascii") as file:
            file.write(stack_dump.HANDLER)
        search_path = self._variables.get("PYTHONPATH", self._environ.get("PYTHONPATH", ""))
        return {
            stack_dump.VARIABLE: str(int(stack_dump.SIGNAL)),
            "PYTHONPATH": os.pathsep.join(filter(None, [folder, search_path])),
        }

    def _link_data(self, tree: Tree, shown: dict[str, Shown]) -> None:
        """Link a host's channels into its files.

        Raises:
            NotPrepared: the checkpoints cannot be where the request wants them.
        """
        for name, source in shown.items():
            folder = tree.part("input", "data", name)
            shutil.rmtree(folder, ignore_errors=True)
            os.symlink(source.path, folder)
        checkpoints = checkpoint_path(self.request)
        if checkpoints and not checkpoints.startswith(f"{BASE}/"):
            raise not_started(
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
        credentials = boto3.Session().get_credentials()
        if credentials is None:
            return ""
        frozen = credentials.get_frozen_credentials()
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
        """Make the hosts' files this user's own.

        Raises:
            EngineUnavailableError: no daemon answers.
        """
        if self._cluster is not None:
            image = self.request["AlgorithmSpecification"]["TrainingImage"]
            reclaim(self._cluster.docker, image, self.job.path, self.job.work)

    def close(self) -> None:
        """Remove the hosts, and their files.

        Raises:
            ShunterError: a container cannot be removed.
        """
        if self._cluster is not None:
            remove_all(self._cluster.docker, self.job.path)
        shutil.rmtree(self._secrets, ignore_errors=True)
        shutil.rmtree(self.job.work, ignore_errors=True)
