"""`local_docker`: jobs as containers of a Docker daemon.

The state of a job is in the daemon alone (containers, a network and labelled markers), so that all clients of
the daemon see the same.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shunter.docker.engine import Engine
from shunter.errors import UnknownAppException
from shunter.paths import existing
from shunter.schedulers.api import (
    Check,
    DescribeAppResponse,
    Leftover,
    ListAppResponse,
    LogBlock,
    LogQuery,
    Scheduler,
    if_reachable,
    not_ended,
    not_running,
)
from shunter.schedulers.capabilities import ALL_MOUNTS, SEPARATE_STREAMS, Capabilities
from shunter.schedulers.docker_scheduler.details import DockerJobDetails
from shunter.schedulers.docker_scheduler.doctor import examine, examine_job
from shunter.schedulers.docker_scheduler.options import DockerOpts
from shunter.schedulers.docker_scheduler.request import make_request
from shunter.schedulers.exec import outbox
from shunter.schedulers.exec.container import housekeeping, inventory, labels
from shunter.schedulers.exec.container.container_command import run_in_container
from shunter.schedulers.exec.container.inventory import Job
from shunter.schedulers.exec.container.job_events import wait_until
from shunter.schedulers.exec.container.judge import Judgement, judge
from shunter.schedulers.exec.container.logs import LogWindow, follow, read_many
from shunter.schedulers.exec.container.submission import DockerRequest, submit
from shunter.schedulers.exec.container.watcher import ensure_watcher
from shunter.schedulers.ids import make_unique
from shunter.schedulers.lines import check_replicas
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.status import NONE, is_terminal
from shunter.system.identity import user_name
from shunter.workspace.docker_workspace import DockerWorkspaceMixin
from shunter.workspace.shipment import Shipment


class DockerScheduler(DockerWorkspaceMixin, Scheduler[DockerOpts]):
    """Runs jobs as containers of a Docker daemon.

    Args:
        session_name: name of the runner's session.
        docker_client: a `docker.DockerClient` to speak through; by default the daemon is found as the
            ``docker`` command finds it.
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
    requires_image_repo = False

    def __init__(self, session_name: str, docker_client: Any = None) -> None:
        super().__init__("local_docker", session_name, docker_client=docker_client)

    @property
    def engine(self) -> Engine:
        """The client of the daemon, made at its first use.

        Raises:
            ConfigError: the environment does not name a daemon.
        """
        return self.docker_engine()

    def close(self) -> None:
        """Close the connections to the daemon; a client that was handed in stays open."""
        self._close_images()

    # ---- submitting

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[DockerRequest]:
        app_id = make_unique(app.name)
        request = make_request(
            app, self.opts_class(**cfg), app_id, self.session_name, shares_files=self.engine.is_local
        )
        info = AppDryRunInfo(request, str)
        info.app_id = app_id
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[DockerRequest]) -> str:
        """Make and start the job's containers; when this returns all of them run, or none exists.

        Raises:
            BackendError: the daemon refused; the message says what and why.
            EngineUnavailableError: no daemon answers.
        """
        return submit(self.engine, dryrun_info.request)

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check the daemon, and the network of the options; with a job, that it has the images and room."""
        checks = examine(self.engine, cfg)
        return checks if job is None else if_reachable(checks, lambda: examine_job(self.engine, job))

    # ---- observing

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Describe a job.

        Raises:
            EngineUnavailableError: no daemon answers, which says nothing about the job.
        """
        return self.describe_many([app_id])[app_id]

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe jobs: two requests for all of them, and one for each container."""
        wanted = list(app_ids)
        found = inventory.load_jobs(self.engine, wanted)
        return {app_id: self._describe(found[app_id]) if app_id in found else None for app_id in wanted}

    def _describe(self, job: Job) -> DescribeAppResponse:
        judgement = self._judge(job)
        if judgement.is_over:
            outbox.send_if_waiting(inventory.results_dir(job.app_id))
        ports = {
            f"{container.role}/{container.replica}": container.named_ports
            for container in job.containers
            if container.state == "running"
        }
        places = {f"port.{replica}.{name}": p for replica, held in ports.items() for name, p in held.items()}
        results = job.labels.get(labels.RESULTS)
        return DescribeAppResponse(
            app_id=job.app_id,
            state=judgement.state,
            num_restarts=judgement.restarts,
            msg=judgement.msg or NONE,
            ui_url=f"http://{next(iter(places.values()))}" if len(places) == 1 else None,
            metadata={**job.metadata, **places},
            roles_statuses=judgement.roles,
            # what failed may have sent nothing to its output
            results=results and existing(results, inventory.results_dir(job.app_id)),
            ended_at=judgement.ended_at,
        )

    def _judge(self, job: Job) -> Judgement:
        """Judge a job, and ensure that a watcher does what is left to do for it."""
        judgement = judge(job)
        if not judgement.is_over and (job.is_watched or judgement.steps) and job.was_submitted_here:
            ensure_watcher(self.engine, job.app_id)
        return judgement

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all jobs of the daemon, the oldest first, including those that TorchX started."""
        found = inventory.load_jobs(self.engine, details=False).values()
        rows = []
        for job in sorted(found, key=lambda job: job.submitted_at):
            row = ListAppResponse(job.app_id, self._judge(job).state, name=job.name)
            row.submitted_at = job.submitted_at or None
            rows.append(row)
        return rows

    def exists(self, app_id: str) -> bool:
        """Tell whether the daemon has a container of this job."""
        return bool(inventory.load_jobs(self.engine, [app_id], details=False))

    def wait(self, app_id: str, timeout: float | None = None) -> DescribeAppResponse | None:
        """Block until the job ends; the daemon's events are awaited, without polling."""
        response = self.describe(app_id)

        def is_done() -> bool:
            nonlocal response
            response = self.describe(app_id)
            return response is None or is_terminal(response.state)

        if response is not None and not is_terminal(response.state):
            wait_until(self.engine, app_id, is_done, timeout)
        return response

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command in a replica's container, by the daemon's exec API."""
        job = inventory.load_job(self.engine, app_id)
        if job is None:
            raise UnknownAppException(f"there is no job {app_id!r} on the Docker daemon")
        check_replicas(app_id, [(role_name, k)], job.places())
        container = job.by_replica().get((role_name, k))
        name = f"{app_id} {role_name}/{k}"
        if container is None or container.state != "running":
            raise not_running(name, "not there" if container is None else container.state)
        return run_in_container(self.engine, container.id, name, command, tty=tty)

    # ---- ending

    def cancel(self, app_id: str) -> None:
        """Ask the job to stop: SIGTERM, and SIGKILL after the grace period. Does not wait for it."""
        job = inventory.load_job(self.engine, app_id)
        if job is None or judge(job).is_over:
            return
        facts = {"by": user_name(), "at": time.time_ns()}
        inventory.make_marker(self.engine, app_id, inventory.CANCELLED, facts)
        ensure_watcher(self.engine, app_id)

    def _delete_existing(self, app_id: str) -> None:
        job = inventory.load_job(self.engine, app_id)
        if job is None:
            return
        judgement = judge(job)
        if not judgement.is_over:
            raise not_ended(app_id, judgement.state)
        inventory.remove_job(self.engine, app_id)

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return jobs that ended long enough ago, what belongs to no job, and unused images with code."""
        return housekeeping.leftovers(self.engine, older_than)

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them; returns how many bytes that frees."""
        return housekeeping.remove(self.engine, leftovers)

    # ---- what it uses

    def details(self, app_id: str) -> DockerJobDetails:
        """Return what else can be asked about a job: what it uses."""
        return DockerJobDetails(self.engine, app_id)

    # ---- logs

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return the lines of several replicas, in order of time unless they are followed.

        Times are exact; the order between a replica's two streams is that in which the daemon read them.
        """
        job = inventory.load_jobs(self.engine, [app_id], details=False).get(app_id)
        if job is None:
            raise UnknownAppException(f"there is no job {app_id!r} on the Docker daemon")
        check_replicas(app_id, replicas, job.places())
        window = LogWindow(query)
        if query.should_tail:
            return follow(self.engine, app_id, builtins.list(replicas), window, self._judge)
        containers = job.by_replica()
        ids = {key: containers[key].id for key in replicas if key in containers}
        return read_many(self.engine, ids, window)


def create_scheduler(session_name: str, **kwargs: object) -> DockerScheduler:
    """Make the scheduler. ``docker_client`` may be a `docker.DockerClient` to speak through."""
    return DockerScheduler(session_name, kwargs.get("docker_client"))
