"""`local_docker`: jobs as containers of a Docker daemon, which a supervisor of this machine runs."""

from __future__ import annotations

import builtins
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from shunter._toolkit.layout import DEFAULT_BASE
from shunter.schedulers.api import Check, Leftover, if_reachable, not_running
from shunter.schedulers.capabilities import ALL_MOUNTS, SEPARATE_STREAMS, Capabilities
from shunter.schedulers.docker_scheduler import housekeeping
from shunter.schedulers.docker_scheduler.container_results import is_mounted, results_in
from shunter.schedulers.docker_scheduler.containers import ContainerMaker, log_dir
from shunter.schedulers.docker_scheduler.doctor import examine, examine_job
from shunter.schedulers.docker_scheduler.job import ContainerJob
from shunter.schedulers.docker_scheduler.options import DockerOpts
from shunter.schedulers.docker_scheduler.request import IN_CONTAINERS, DockerRequest, make_request
from shunter.schedulers.ids import make_unique
from shunter.schedulers.joined_terminal import run_in_container
from shunter.schedulers.kept_results import JoinedResults, LocalResults, ResultPlace
from shunter.schedulers.supervisor import documents
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.process_plan import ProcessPlan
from shunter.schedulers.supervisor.scheduler import SupervisedScheduler, TakesLocalLeases
from shunter.schedulers.supervisor.submission import submit
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.training import RESULTS
from shunter.workspace.docker_workspace import DockerWorkspaceMixin
from shunter.workspace.shipment import Shipment


class DockerScheduler(DockerWorkspaceMixin, TakesLocalLeases, SupervisedScheduler[DockerOpts]):
    """Runs jobs as containers of a Docker daemon.

    Args:
        session_name: name of the runner's session.
        docker_client: a `docker.DockerClient` of the daemon; by default the daemon is found as the ``docker``
            command finds it.
    """

    capabilities = Capabilities(
        notifies=True,
        is_local=True,
        ships_by_default=True,
        runs_images=True,
        streams=SEPARATE_STREAMS,
        mounts=ALL_MOUNTS,
        ignores=("elastic",),
    )
    opts_class = DockerOpts
    job_class = ContainerJob
    requires_image_repo = False

    def __init__(self, session_name: str, docker_client: Any = None) -> None:
        super().__init__("local_docker", session_name, docker_client=docker_client)

    # ---- submitting

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[DockerRequest]:
        app_id = make_unique(app.name)
        request = make_request(
            app, self.opts_class(**cfg), app_id, self.session_name, shares_files=self.docker.is_local
        )
        info = AppDryRunInfo(request, str)
        info.app_id = app_id
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[DockerRequest]) -> str:
        """Make the job's containers, and start the supervisor that starts them.

        When this returns all of them exist, or none.

        Raises:
            BackendError: the daemon refused; the message says what and why.
            EngineUnavailableError: no daemon answers.
        """
        request = dryrun_info.request
        for warning in request.warnings:
            warnings.warn(warning, RuntimeWarning, stacklevel=3)
        job = ContainerJob.of(request.app_id)
        docker = self.docker.pinned()
        maker = ContainerMaker(docker, request)
        maker.check_network(str(dryrun_info.cfg.get("network") or ""))
        maker.find_images()

        def make_plan() -> ProcessPlan:
            shares_files = request.shares_files
            maker.make()
            if request.shares_files != shares_files:
                document = job.read_request() or {}
                documents.write_json(job.file(job.REQUEST), {**document, "results_in": IN_CONTAINERS})
            return maker.plan(os.environ)

        facts = {
            "daemon": docker.environ,
            "ports": request.ports,
            "hostnames": {f"{c.role}/{c.replica}": c.name for c in request.containers},
            **({} if request.shares_files else {"results_in": IN_CONTAINERS}),
        }
        layout = [(c.role, c.replica, log_dir(job, c)) for c in request.containers]
        return submit(
            job, dryrun_info, layout, make_plan, facts=facts, environ=docker.environ, undo=maker.undo
        )

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check the daemon, and the network of the options; with a job, that it has the images and room."""
        checks = examine(self.docker, cfg)
        return checks if job is None else if_reachable(checks, lambda: examine_job(self.docker, job))

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command in a replica's container, by ``docker exec``."""
        self._running_replica(self._find(app_id), role_name, k)
        job = ContainerJob.of(app_id)
        name = f"{app_id} {role_name}/{k}"
        docker = job.docker()
        container = (job.read_request() or {})["hostnames"][f"{role_name}/{k}"]
        found = docker.inspect("container", container)
        state = found[0]["State"]["Status"] if found else "not there"
        if state != "running":
            raise not_running(name, state)
        return run_in_container(docker, container, name, command, tty=tty)

    # ---- results

    def _results_of(self, job: JobDirectory, role_name: str, k: int) -> ResultPlace:
        """Return the results of a replica: directories of this machine, or what is in its container."""
        here = super()._results_of(job, role_name, k)
        document = job.read_request() or {}
        role = job.recorded_role(role_name)
        own = {} if "results_in" in document else LocalResults.below(job.base_dir(role_name, k)).folders
        base = role.get("env", {}).get("SAGEMAKER_BASE_DIR", DEFAULT_BASE)
        taken = {part for part in RESULTS if is_mounted(f"{base}/{part}", role.get("mounts", []))}
        container = document.get("hostnames", {}).get(f"{role_name}/{k}", "")
        copied = [part for part in RESULTS if part not in own or part in taken]
        if not copied:
            return here
        kept = LocalResults({part: own[part] for part in RESULTS if part not in copied})
        docker = ContainerJob.of(job.name).docker()
        return JoinedResults([kept, *(results_in(docker, container, f"{base}/{part}") for part in copied)])

    # ---- collecting

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return jobs that ended long enough ago, what belongs to no job, and unused images with code."""
        ended = super().leftovers(cfg, older_than)
        return ended + housekeeping.leftovers(self.docker, ended, older_than)

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them; returns how many bytes that frees."""
        others = [item for item in leftovers if housekeeping.is_of_daemon(item)]
        jobs = [item for item in leftovers if not housekeeping.is_of_daemon(item)]
        return super().remove_leftovers(cfg, jobs) + housekeeping.remove(self.docker, others)


def create_scheduler(session_name: str, **kwargs: object) -> DockerScheduler:
    """Make the scheduler. ``docker_client`` may be a `docker.DockerClient` to speak through."""
    return DockerScheduler(session_name, kwargs.get("docker_client"))
