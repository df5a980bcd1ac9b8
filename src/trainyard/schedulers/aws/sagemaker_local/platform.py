"""What hosts are made of on this machine: containers or processes, and what all attempts share."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.schedulers.aws.sagemaker_local.host import (
    PlatformFailure,
    ProcessHost,
    Running,
    StartFailure,
    hosts_file,
    platform_variables,
)
from trainyard.schedulers.aws.sagemaker_local.launch import Settings
from trainyard.schedulers.aws.sagemaker_local.layout import Host, Tree
from trainyard.schedulers.aws.sagemaker_local.store import JobDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.docker.engine import Engine
    from trainyard.schedulers.aws.sagemaker_local.cluster import Cluster

MEMORY = "/dev/shm"
_HINTS_OF_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)


class Platform:
    """Makes hosts.

    Args:
        job: the job's directory.
        request: the request.
        arn: the job's ARN.
        region: its region.
        settings: containers or processes.
    """

    def __init__(
        self, job: JobDir, request: dict[str, Any], arn: str, region: str, settings: Settings
    ) -> None:
        self._job = job
        self._request = request
        self._variables = platform_variables(request, arn, region)
        self._settings = settings
        self._engine: Engine | None = None
        self.cluster: Cluster | None = None
        self._is_chosen = False
        os.makedirs(job.work, exist_ok=True)
        base = MEMORY if os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK) else job.work
        self._secrets = tempfile.mkdtemp(prefix="trainyard-sagemaker-", dir=base)
        os.chmod(self._secrets, 0o711)  # mounted from here, whoever the container runs as
        os.symlink(self._secrets, job.file("work", ".secrets"))

    def choose(self) -> None:
        """Find out what hosts are to be.

        Raises:
            PlatformFailure: containers are wanted, and no daemon answers.
            StartFailure: there is no daemon, and the job cannot do without containers.
        """
        if self._is_chosen:
            return
        if self._settings.docker != "never":
            from trainyard.docker.engine import Engine
            from trainyard.schedulers.aws.sagemaker_local.cluster import Cluster

            try:
                self._engine = Engine.from_env()
                # First, so that whoever cleans up knows where to look
                with open(self._job.file("work", ".docker"), "w", encoding="utf-8"):
                    pass
                self.cluster = Cluster(self._engine, self._job.path, self._request)
            except TrainyardError as error:
                self._close_engine()
                os.unlink(self._job.file("work", ".docker"))
                if self._settings.docker == "always":
                    raise PlatformFailure(error.message) from error
        self._is_chosen = True

    def prepare(self, hosts: list[Host]) -> None:
        """Have the image and the network.

        Raises:
            StartFailure: the image is not to be had.
            PlatformFailure: the daemon cannot make a network.
        """
        if self.cluster is None:
            return
        from trainyard.schedulers.aws.sagemaker_local.cluster import ensure_image

        try:
            ensure_image(
                self.cluster.engine, self._request["AlgorithmSpecification"].get("TrainingImage", "")
            )
            if not self.cluster.network:
                self.cluster.make_network(hosts)
        except TrainyardError as error:
            raise PlatformFailure(error.message) from error

    def tree(self, host: Host) -> Tree:
        """Return where a host's files are to be; there are none yet."""
        config = os.path.join(self._secrets, host.name)
        path = self._job.file("work", host.name)
        for old in (config, path):
            shutil.rmtree(old, ignore_errors=True)
        os.makedirs(path)
        return Tree(path, config)

    def host(
        self, plan: Host, hosts: list[Host], tree: Tree, log_path: str, shown: dict[str, str]
    ) -> Running:
        """Return a host that is to be started."""
        if self.cluster is not None:
            from trainyard.schedulers.aws.sagemaker_local.container import ContainerHost

            return ContainerHost(
                plan, tree, self.cluster, self._variables, log_path, shown, self._credentials()
            )
        for name, source in shown.items():
            folder = tree.part("input", "data", name)
            shutil.rmtree(folder, ignore_errors=True)
            os.symlink(source, folder)
        environ = {**os.environ, **self._variables}
        names = hosts_file(hosts, self._job.file("work", "hosts"))
        return ProcessHost(plan, tree, self._request, environ, log_path, names, self._job.path)

    def _credentials(self) -> str:
        """Write this user's credentials where containers find them: in memory, never on disk."""
        path = os.path.join(self._secrets, "credentials")
        if os.path.exists(path):
            return path
        home = os.path.expanduser("~/.aws")
        if not any(os.environ.get(name) for name in _HINTS_OF_CREDENTIALS) and not os.path.isdir(home):
            return ""
        if not self._secrets.startswith(MEMORY):
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
            from trainyard.schedulers.aws.sagemaker_local.cluster import reclaim

            reclaim(
                self.cluster.engine,
                self._request["AlgorithmSpecification"]["TrainingImage"],
                self._job.path,
                self._job.work,
            )

    def close(self) -> None:
        """Remove what hosts were made of, and their files."""
        if self.cluster is not None:
            from trainyard.schedulers.aws.sagemaker_local.cluster import sweep

            sweep(self.cluster.engine, self._job.path)
        self._close_engine()
        shutil.rmtree(self._secrets, ignore_errors=True)
        shutil.rmtree(self._job.work)

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self.cluster = None


__all__ = ["Platform", "StartFailure"]
