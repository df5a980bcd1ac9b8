"""`sagemaker_local`: SageMaker jobs on this machine. Same options, same request, carried out here."""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shunter.errors import BackendError, UnknownAppException
from shunter.progress import Progress, Silent
from shunter.schedulers.api import (
    Check,
    DescribeAppResponse,
    JobDetails,
    Leftover,
    ListAppResponse,
    LogBlock,
    LogPart,
    LogQuery,
    LogRange,
    Scheduler,
    not_ended,
    not_running,
)
from shunter.schedulers.aws_sagemaker_scheduler import names
from shunter.schedulers.aws_sagemaker_scheduler.code_archive import CodePackage, plan_code
from shunter.schedulers.aws_sagemaker_scheduler.request import AWSSageMakerJob
from shunter.schedulers.capabilities import Capabilities
from shunter.schedulers.lines import check_combined, check_replicas
from shunter.schedulers.responses import ReplicaUsage
from shunter.schedulers.sagemaker_local_scheduler import doctor, housekeeping, logs, observe, submission
from shunter.schedulers.sagemaker_local_scheduler.host_command import run_on_host
from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL
from shunter.schedulers.sagemaker_local_scheduler.options import SageMakerLocalOpts
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor import recovery
from shunter.schedulers.supervisor.job_watch import wait_for_end
from shunter.schedulers.supervisor.usage_file import replica_usage
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.workspace import Workspace
from shunter.workspace.shipment import Shipment

BACKEND = names.LOCAL_BACKEND
_ONE_STREAM = "SageMaker keeps stdout and stderr as one stream, and so does this."


class SageMakerLocalScheduler(Scheduler[SageMakerLocalOpts]):
    """Runs SageMaker jobs on this machine. See ``docs/schedulers/sagemaker_local.md``."""

    capabilities = Capabilities(
        notifies=True,
        is_local=True,
        ships_by_default=True,
        reads_training_specs=True,
        retries=("application",),
        notes={"retries": "application, in a Batch queue"},
    )
    opts_class = SageMakerLocalOpts

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
        rows = []
        for job in TrainingJob.all():
            state = recovery.current_state(job)
            if state is not None:
                rows.append(observe.listed(job, state))
        return sorted(rows, key=lambda row: row.submitted_at or 0.0)

    def exists(self, app_id: str) -> bool:
        """Tell whether there is a job of this name."""
        return TrainingJob.find(app_id) is not None

    def wait(self, app_id: str, timeout: float | None = None) -> DescribeAppResponse | None:
        """Block until the job ends; the system notifies."""
        job = TrainingJob.find(app_id)
        if job is None:
            return None
        wait_for_end(job, timeout)
        return self.describe(app_id)

    def details(self, app_id: str) -> TrainingJobDetails:
        """Return what else can be asked about a job: what it uses."""
        return TrainingJobDetails(app_id)

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command on a host: in its container, or beside its processes, as those see things."""
        job, names = self._job_with_hosts(app_id, [(role_name, k)])
        state = _state_of(job)
        host = next(host for host in state["hosts"] if host["name"] == names[role_name, k])
        if host["state"] != "running":
            raise not_running(f"{app_id} {role_name}/{k}", host["state"])
        return run_on_host(job, host["name"], command, tty=tty)

    # ---- ending

    def cancel(self, app_id: str) -> None:
        """Ask the job to stop: SIGTERM, and SIGKILL 120 seconds later. What it has saved is kept."""
        job = TrainingJob.find(app_id)
        state = None if job is None else recovery.current_state(job)
        if job is not None and state is not None and state["status"] not in TERMINAL:
            recovery.stop(job, state, by=os.getuid())

    def interrupt(self, app_id: str, absence: float = 0.0) -> None:
        """Simulate a spot interruption: SIGTERM, SIGKILL two minutes later, then a restart on new hosts."""
        job = _find_job(app_id)
        job.interrupt(_state_of(job), absence)

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
        """Return lines of several replicas in order of time (kept to 50 ms), of all starts in sequence."""
        check_combined(query, BACKEND, _ONE_STREAM)
        job, known = self._job_with_hosts(app_id, replicas)
        hosts = {key: logs.HostLog(job, known[key]) for key in replicas}

        def current_state() -> tuple[dict[str, Any], bool]:
            state = recovery.current_state(job) or {"status": "Failed", "hosts": []}
            return state, state["status"] in TERMINAL

        return logs.read(hosts, query, current_state)

    def log_part(self, app_id: str, role_name: str, k: int, wanted: LogRange) -> LogPart | None:
        """Return a part of a host's log, of all starts in sequence."""
        check_combined(LogQuery(streams=wanted.streams), BACKEND, _ONE_STREAM)
        job, known = self._job_with_hosts(app_id, [(role_name, k)])
        state = recovery.current_state(job) or {"hosts": []}
        return logs.read_part(job, known[role_name, k], state, wanted)

    def _job_with_hosts(
        self, app_id: str, replicas: Sequence[tuple[str, int]]
    ) -> tuple[TrainingJob, dict[tuple[str, int], str]]:
        """Return a job, and the names of its hosts by role and index; these replicas are among them."""
        job = _find_job(app_id)
        known = {(role, index): host for role, index, host in observe.layout(job)}
        check_replicas(app_id, replicas, known)
        return job, known


class TrainingJobDetails(JobDetails):
    """What can be asked about the training job with a name beside its description."""

    def __init__(self, app_id: str) -> None:
        self._app_id = app_id

    def usage(self, after: float) -> Iterator[ReplicaUsage]:
        """Return the samples that the job's supervisor has taken."""
        job = TrainingJob.find(self._app_id)
        state = None if job is None else job.read_state()
        if job is None or state is None:
            return iter(())
        names_of = {host: (role, index) for role, index, host in observe.layout(job)}
        return replica_usage(job.usage_path, [names_of[host["name"]] for host in state["hosts"]], after)


def _find_job(app_id: str) -> TrainingJob:
    job = TrainingJob.find(app_id)
    if job is None:
        raise _unknown(app_id)
    return job


def _state_of(job: TrainingJob) -> dict[str, Any]:
    state = recovery.current_state(job)
    if state is None:
        raise _unknown(job.name)
    return state


def _unknown(app_id: str) -> UnknownAppException:
    return UnknownAppException(f"there is no training job {app_id!r} on this machine")


def create_scheduler(session_name: str, **kwargs: object) -> SageMakerLocalScheduler:
    """Make the scheduler. It takes no arguments."""
    return SageMakerLocalScheduler(session_name)
