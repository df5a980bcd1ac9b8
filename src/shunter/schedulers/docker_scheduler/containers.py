"""Making the containers of a job, with images, network, directories: all are made, or none is left."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping

from shunter._toolkit import stack_dump
from shunter.docker.command import DockerCommand, DockerRefused
from shunter.docker.engine import Engine
from shunter.docker.image_store import ensure_image
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
    """Makes the containers of a request, which a supervisor starts.

    Attributes:
        has_results_here: whether the daemon sees the directories of the job's results.
    """

    def __init__(self, engine: Engine, docker: DockerCommand, request: DockerRequest) -> None:
        self._engine = engine
        self._docker = docker
        self._request = request
        self._job = ContainerJob.of(request.app_id)
        self._lock = threading.Lock()
        #: By image: its working directory, and its PYTHONPATH.
        self._images: dict[str, tuple[str, str]] = {}
        self.has_results_here = True

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
            BackendError: there is none of this name.
            EngineUnavailableError: no daemon answers.
        """
        if name and self._docker.inspect("network", name) is None:
            raise BackendError(
                f"the Docker daemon has no network {name!r}", hint="`docker network ls` shows the networks."
            )

    def _find_image(self, image: str) -> None:
        config = ensure_image(self._engine, image, self._request.platform).get("Config") or {}
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
            body = {
                "Name": self._request.network,
                "Labels": {labels.APP_ID: self._request.app_id, labels.OWNER: labels.owner()},
            }
            made = for_all(
                lambda count: make_network(self._engine, body, count),
                [len(self._request.containers)],
                shielded=True,
            )
            self._request.place_hosts(made[0].addresses())
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
            for source in self._result_folders():
                make_private_dir(results)
                os.makedirs(source, exist_ok=True)
                os.chmod(source, 0o777)
        except OSError as error:
            raise state_error("make the directory of the job's results", results, error) from error

    def _result_folders(self) -> list[str]:
        prefix = f"source={self._job.file('ml')}{os.sep}"
        fields = [part for c in self._request.containers for mount in c.mounts for part in mount.split(",")]
        return [part.removeprefix("source=") for part in fields if part.startswith(prefix)]

    def _make_container(self, replica: ReplicaRequest) -> None:
        if self._request.hang_timeout is not None:
            found = replica.env.get("PYTHONPATH") or self._images[replica.image][1]
            replica.env["PYTHONPATH"] = ":".join(filter(None, [PYTHON_DIR, found]))
            replica.env[stack_dump.VARIABLE] = str(int(stack_dump.SIGNAL))
        name = f"{replica.role}/{replica.replica}"
        try:
            self._docker.run(*replica.words(), env=replica.env)
        except DockerRefused as error:
            if self._job.file("ml") + os.sep not in error.message or "source path" not in error.message:
                raise BackendError(
                    f"cannot make the container of {name}: {error.message}", hint=error.hint
                ) from error
            with self._lock:  # the daemon cannot see our files, for example from a container
                self._leave_results_in_containers()
            self._docker.run(*replica.words(), env=replica.env)
        self._check_script(replica)
        if self._request.hang_timeout is not None:
            self._docker.run("cp", self._job.python_dir(), f"{replica.name}:{PYTHON_DIR}")

    def _leave_results_in_containers(self) -> None:
        prefix = f"source={self._job.file('ml')}{os.sep}"
        for container in self._request.containers:
            container.mounts = [mount for mount in container.mounts if prefix not in mount]
        self.has_results_here = False

    def _check_script(self, replica: ReplicaRequest) -> None:
        """Refuse a container whose script is missing, before it is started, unless a mount may hold it."""
        if not replica.script or replica.replica:
            return
        path = os.path.normpath(os.path.join(self._images[replica.image][0], replica.script))
        fields = [part for mount in replica.mounts for part in mount.split(",")]
        targets = [part.removeprefix("target=") for part in fields if part.startswith("target=")]
        if any(path.startswith(target.rstrip("/") + "/") for target in targets):
            return
        done = subprocess.run(
            [self._docker.program, "cp", f"{replica.name}:{path}", "-"],
            env={**os.environ, **self._docker.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if b"could not find the file" in done.stderr.lower() or b"no such" in done.stderr.lower():
            raise BackendError(
                f"cannot start {replica.role}/{replica.replica}: there is no script {path} in its image",
                hint="Name a script of the workspace, relative to its top, or one that the image has.",
            )

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
