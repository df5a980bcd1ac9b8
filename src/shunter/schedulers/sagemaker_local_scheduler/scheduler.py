"""`sagemaker_local`: SageMaker jobs on this machine. Same options, same request, carried out here."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shunter.docker.command import DockerCommand
from shunter.errors import BackendError, ConfigError, UnknownAppException
from shunter.progress import Progress, Silent
from shunter.schedulers.api import (
    Check,
    DescribeAppResponse,
    Leftover,
    ListAppResponse,
    LogBlock,
    LogPart,
    LogQuery,
    LogRange,
    not_ended,
)
from shunter.schedulers.aws_sagemaker_scheduler import names
from shunter.schedulers.aws_sagemaker_scheduler.code_archive import CodePackage, plan_code
from shunter.schedulers.aws_sagemaker_scheduler.request import AWSSageMakerJob
from shunter.schedulers.capabilities import Capabilities
from shunter.schedulers.joined_terminal import run_in_container
from shunter.schedulers.kept_results import ResultPlace
from shunter.schedulers.lines import check_combined
from shunter.schedulers.sagemaker_local_scheduler import doctor, housekeeping, observe, submission
from shunter.schedulers.sagemaker_local_scheduler.hosts.host_containers import LABEL
from shunter.schedulers.sagemaker_local_scheduler.job_results import place_of_results
from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL
from shunter.schedulers.sagemaker_local_scheduler.options import SageMakerLocalOpts
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor import recovery
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.process_command import run_beside
from shunter.schedulers.supervisor.scheduler import SupervisedScheduler
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.workspace import Workspace
from shunter.workspace.shipment import Shipment

BACKEND = names.LOCAL_BACKEND
_ONE_STREAM = "SageMaker keeps stdout and stderr as one stream, and so does this."


class SageMakerLocalScheduler(SupervisedScheduler[SageMakerLocalOpts]):
    """Runs SageMaker jobs on this machine. See ``docs/schedulers/sagemaker_local.md``."""

    capabilities = Capabilities(
        races=True,
        notifies=True,
        is_local=True,
        ships_by_default=True,
        reads_training_specs=True,
        retries=("application",),
        notes={"retries": "application, in a Batch queue"},
    )
    opts_class = SageMakerLocalOpts
    job_class = TrainingJob

    def __init__(self, session_name: str) -> None:
        super().__init__(BACKEND, session_name)

    # ---- submitting

    def _validate(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        submission.check(app, self.opts_class(**cfg))

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan how the code travels: as a channel of the job, from a directory of this machine."""
        return plan_code(app, workspace, self.opts_class(**cfg))

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[AWSSageMakerJob]:
        code = shipment if isinstance(shipment, CodePackage) else None
        job = submission.make_request(app, self.opts_class(**cfg), code)
        info: AppDryRunInfo[AWSSageMakerJob] = AppDryRunInfo(job, str)
        info.app_id = job.job_name
        info.warnings += filter(None, [submission.unchecked()])
        python = submission.python_of(app, job.job_def)
        if python is not None:
            info.python, info.python_origin = str(python), python.origin
            info.warnings += filter(None, [python.warning])
        return info

    def ship(self, info: AppDryRunInfo[Any], progress: Progress | None = None) -> None:
        """Put the code into a directory named by its content, where the job finds it."""
        told = Silent() if progress is None or info.cfg.get("quiet") else progress
        unused = submission.not_acted_upon(self.opts_class(**info.cfg))
        if unused:
            told.done(unused)
        if not isinstance(info.shipment, CodePackage):
            return
        info.images = {}
        submission.ship(info.request, info.shipment, told)

    def schedule(self, dryrun_info: AppDryRunInfo[AWSSageMakerJob]) -> str:
        """Start the job's supervisor; the job runs when this returns.

        Raises:
            ConfigError: the request is not valid.
            BackendError: the supervisor could not be started, or there is a job of this name.
        """
        return submission.submit(dryrun_info)

    # ---- observing

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Describe a job: state, reason, every host, results, times and final metrics."""
        job = TrainingJob.find(app_id)
        state = None if job is None else recovery.current_state(job)
        return None if job is None or state is None else observe.describe(job, state)

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all training jobs of this machine's user, the oldest first."""
        states = [(job, recovery.current_state(job)) for job in TrainingJob.all()]
        rows = [observe.listed(job, state) for job, state in states if state is not None]
        return sorted(rows, key=lambda row: row.submitted_at or 0.0)

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command on a host: in its container, or beside its processes, as those see things."""
        job = self._find(app_id)
        replica = self._running_replica(job, role_name, k)
        document, name = job.read_request() or {}, f"{app_id} {role_name}/{k}"
        if not document.get("containers"):
            return run_beside(replica["pid"], name, command)
        host = document["hostnames"][f"{role_name}/{k}"]
        docker = DockerCommand()
        ids = docker.ids("container", LABEL, job.path)
        for container in docker.inspect("container", *ids) if ids else ():
            if container["Config"]["Hostname"] == host:
                return run_in_container(docker, container["Id"], name, command, tty=tty)
        raise ConfigError(f"no container of {name} runs on the Docker daemon")

    # ---- results

    def _results_of(self, job: JobDirectory, role_name: str, k: int) -> ResultPlace:
        """Return the results of a host while it has them, and afterwards those of all hosts, merged."""
        if isinstance(job, TrainingJob):
            return place_of_results(job, job.base_dir(role_name, k))
        return super()._results_of(job, role_name, k)

    # ---- ending

    def interrupt(self, app_id: str, absence: float = 0.0) -> None:
        """Simulate a spot interruption: SIGTERM, SIGKILL two minutes later, then a restart on new hosts."""
        job = TrainingJob.find(app_id)
        state = None if job is None else recovery.current_state(job)
        if job is None or state is None:
            raise UnknownAppException(f"there is no training job {app_id!r} on this machine")
        job.interrupt(state, absence)

    def _delete_existing(self, app_id: str) -> None:
        job = TrainingJob.of(app_id)
        state = recovery.current_state(job)
        if state is not None and state["status"] not in TERMINAL:
            raise not_ended(app_id, state["status"])
        try:
            housekeeping.remove_results(app_id)
            job.remove()
        except OSError as error:
            raise BackendError(f"cannot remove {job.path}: {error.strerror or error}") from error

    # ---- keeping house

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check whether hosts would be containers or processes."""
        return doctor.check()

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return jobs, results, code and data of S3 that no job has needed for this many seconds."""
        return housekeeping.leftovers(older_than)

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them; returns how many bytes that frees."""
        return housekeeping.remove(leftovers)

    # ---- logs

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return lines of several replicas in order of time, of all starts in sequence."""
        check_combined(query, BACKEND, _ONE_STREAM)
        return super().log_blocks(app_id, replicas, query)

    def log_part(self, app_id: str, role_name: str, k: int, wanted: LogRange) -> LogPart | None:
        """Return a part of a host's log, of all starts in sequence."""
        check_combined(LogQuery(streams=wanted.streams), BACKEND, _ONE_STREAM)
        return super().log_part(app_id, role_name, k, wanted)


def create_scheduler(session_name: str, **kwargs: object) -> SageMakerLocalScheduler:
    """Make the scheduler. It takes no arguments."""
    return SageMakerLocalScheduler(session_name)
