"""Making the containers of a job, with images, network, directories: all are made, or none is left."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from shunter._toolkit import stack_dump
from shunter.docker.command import DockerCommand, DockerRefused, Mount
from shunter.docker.images import ensure_image
from shunter.docker.networks import make_network
from shunter.errors import BackendError
from shunter.parallel import for_all
from shunter.paths import make_private_dir, state_error
from shunter.schedulers.docker_scheduler import labels
from shunter.schedulers.docker_scheduler.job import ContainerJob
from shunter.schedulers.docker_scheduler.request import DockerRequest, ReplicaRequest
from shunter.schedulers.supervisor.process_plan import ContainerPlan, ProcessPlan, ReplicaPlan, RolePlan
from shunter.system.processes import JOB_VARIABLE

#: Where the module is in containers that makes Python processes write their stacks.
PYTHON_DIR = "/opt/shunter-python"


class ContainerMaker:
    """Makes the containers of a request, which a supervisor starts."""

    def __init__(self, docker: DockerCommand, request: DockerRequest) -> None:
        self._docker = docker
        self._request = request
        self._job = ContainerJob.of(request.app_id)
        self._lock = threading.Lock()
        #: By image: its working directory, and its PYTHONPATH.
        self._images: dict[str, tuple[str, str]] = {}

    def find_images(self) -> None:
        """Pull the images that the daemon does not have.

        Raises:
            BackendError: one cannot be pulled.
            EngineUnavailableError: no daemon answers.
        """
        for_all(self._find_image, dict.fromkeys(container.image for container in self._request.containers))

    def check_network(self, name: str) -> None:
        """Refuse a network that the daemon does not have; a container would only fail to start.

        Raises:
            BackendError: it has no network of this name.
            EngineUnavailableError: no daemon answers.
        """
        if name and not self._docker.inspect("network", name):
            raise BackendError(
                f"the Docker daemon has no network {name!r}", hint="`docker network ls` shows the networks."
            )

    def _find_image(self, image: str) -> None:
        config = ensure_image(self._docker, image, self._request.platform).get("Config") or {}
        values = dict(pair.partition("=")[::2] for pair in config.get("Env") or ())
        self._images[image] = (config.get("WorkingDir") or "/", values.get("PYTHONPATH", ""))

    def make(self) -> None:
        """Make directories, network and containers.

        Raises:
            BackendError: the daemon refused; the message says what and why.
            EngineUnavailableError: no daemon answers.
        """
        self._make_directories()
        if self._request.network:
            held = {labels.APP_ID: self._request.app_id, labels.OWNER: labels.owner()}
            count = len(self._request.containers)
            networks = for_all(
                lambda name: make_network(self._docker, name, count, held),
                [self._request.network],
                shielded=True,
            )
            self._request.place_hosts(networks[0].addresses())
        for_all(self._make_container, self._request.containers, shielded=True)

    def undo(self) -> None:
        """Remove what was made. `gc` finds later what cannot be removed now."""
        try:
            self._job.remove_belongings()
        except BackendError:
            pass

    def _make_directories(self) -> None:
        """Make the directories that containers write results to.

        Any user in a container may write to those of the job; other users of this machine cannot.
        """
        for folder in self._request.folders:
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise BackendError(
                    f"cannot make the folder {folder} for the job's results: {error.strerror or error}"
                ) from error
        results = self._job.file("ml")
        try:
            for mount in filter(self._is_of_results, self._mounts()):
                make_private_dir(results)
                os.makedirs(mount.source, exist_ok=True)
                os.chmod(mount.source, 0o777)
        except OSError as error:
            raise state_error("make the directory of the job's results", results, error) from error

    def _mounts(self) -> list[Mount]:
        return [mount for container in self._request.containers for mount in container.mounts]

    def _is_of_results(self, mount: Mount) -> bool:
        """Tell whether a mount brings results of the job here."""
        return mount.source.startswith(self._job.file("ml") + os.sep)

    def _make_container(self, replica: ReplicaRequest) -> None:
        if self._request.hang_timeout is not None:
            found = replica.env.get("PYTHONPATH") or self._images[replica.image][1]
            replica.env["PYTHONPATH"] = ":".join(filter(None, [PYTHON_DIR, found]))
            replica.env[stack_dump.VARIABLE] = str(int(stack_dump.SIGNAL))
        name = f"{replica.role}/{replica.replica}"
        try:
            self._docker.create(replica.words(), replica.env)
        except DockerRefused as error:
            if self._job.file("ml") + os.sep not in error.message or "source path" not in error.message:
                raise BackendError(
                    f"cannot make the container of {name}: {error.message}", hint=error.hint
                ) from error
            with self._lock:  # the daemon cannot see our files, for example from a container
                self._leave_results_in_containers()
            self._docker.create(replica.words(), replica.env)
        self._check_script(replica)
        if self._request.hang_timeout is not None:
            self._docker.run("cp", self._job.python_dir(), f"{replica.name}:{PYTHON_DIR}")

    def _leave_results_in_containers(self) -> None:
        for container in self._request.containers:
            container.mounts = [mount for mount in container.mounts if not self._is_of_results(mount)]
        self._request.shares_files = False

    def _check_script(self, replica: ReplicaRequest) -> None:
        """Refuse a container whose script is missing, before it is started, unless a mount may hold it."""
        if not replica.script or replica.replica:
            return
        path = os.path.normpath(os.path.join(self._images[replica.image][0], replica.script))
        if any(path.startswith(mount.target.rstrip("/") + "/") for mount in replica.mounts):
            return
        try:
            self._docker.run("cp", f"{replica.name}:{path}", "-")
        except DockerRefused as error:
            if error.is_absent:
                raise BackendError(
                    f"cannot start {replica.role}/{replica.replica}: there is no script {path} in its image",
                    hint="Name a script of the workspace, relative to its top, or one that the image has.",
                ) from error

    def plan(self, environ: Mapping[str, str]) -> ProcessPlan:
        """Return what the supervisor is to do; ``environ`` are the variables of the command."""
        request, job = self._request, self._job
        roles = {name: RolePlan(name, limit, policy, []) for name, (policy, limit) in request.retries.items()}
        for container in request.containers:
            roles[container.role].replicas.append(
                ReplicaPlan(
                    self._docker.program,
                    [self._docker.program, "start", "--attach", container.name],
                    {JOB_VARIABLE: job.path},
                    log_dir(job, container),
                    container=ContainerPlan(container.name, container.memory_mb, container.gpus),
                )
            )
        return ProcessPlan(
            app_id=request.app_id,
            job_dir=job.path,
            roles=list(roles.values()),
            timeout=request.timeout,
            grace_period=request.grace_period,
            fail_fast=request.fail_fast,
            cwd="/",
            env={**environ, **self._docker.environ},
            retry=request.rules,
            hang_timeout=request.hang_timeout,
            on_hang=request.on_hang,
            network=request.network,
        )


def log_dir(job: ContainerJob, container: ReplicaRequest) -> str:
    """Return the directory of a container's logs."""
    return job.file("logs", container.role, str(container.replica))
