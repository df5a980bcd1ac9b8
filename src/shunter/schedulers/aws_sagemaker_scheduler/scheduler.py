"""`aws_sagemaker`: jobs as SageMaker training jobs. The id of a job is the training job's name."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from shunter.errors import ConfigError, UnknownAppException
from shunter.parallel import for_all
from shunter.progress import Progress, Silent
from shunter.schedulers.api import (
    Check,
    DescribeAppResponse,
    ListAppResponse,
    LogBlock,
    LogQuery,
    Scheduler,
    if_reachable,
    not_ended,
    not_running,
)
from shunter.schedulers.aws.aws_errors import REGION_HINT
from shunter.schedulers.aws.batch_jobs import JobRef, KnownJobs
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws.session_manager import run_on_target
from shunter.schedulers.aws_sagemaker_scheduler import names, observe
from shunter.schedulers.aws_sagemaker_scheduler.channels import check_exists
from shunter.schedulers.aws_sagemaker_scheduler.code_archive import CodePackage, goes_into_image, plan_code
from shunter.schedulers.aws_sagemaker_scheduler.doctor import examine
from shunter.schedulers.aws_sagemaker_scheduler.logs import read_logs
from shunter.schedulers.aws_sagemaker_scheduler.observe import describe_job, layout, stop_job
from shunter.schedulers.aws_sagemaker_scheduler.option_rules import check_options
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.queued_jobs import QueuedJobs, list_all
from shunter.schedulers.aws_sagemaker_scheduler.reasons import is_over, state_of
from shunter.schedulers.aws_sagemaker_scheduler.request import (
    AWSSageMakerJob,
    Needs,
    check_requests,
    make_job,
)
from shunter.schedulers.aws_sagemaker_scheduler.submission import check_identity, prepare, submit
from shunter.schedulers.capabilities import Capabilities
from shunter.schedulers.kept_results import ResultPlace
from shunter.schedulers.lines import check_combined, check_replicas
from shunter.schedulers.sent_results import SentResults, results_sent_by
from shunter.specs.app import AppDef, Role
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.workspace import Workspace
from shunter.workspace.docker_workspace import DockerWorkspaceMixin
from shunter.workspace.images.image_shipment import WantedImage
from shunter.workspace.shipment import Shipment


class AWSSageMakerScheduler(DockerWorkspaceMixin, Scheduler[AWSSageMakerOpts]):
    """Runs jobs on AWS SageMaker. See ``docs/schedulers/aws_sagemaker.md``.

    Args:
        session_name: name of the runner's session.
        client: a SageMaker client of boto3 or botocore to use; made from the environment by default.
        docker_client: a client of docker-py, by which images are made.
        clients: further clients, by service: ``s3``, ``sts``, ``iam``, ``logs``.
    """

    capabilities = Capabilities(
        races=True,
        ships_by_default=True,
        pipes_streams=False,
        runs_images=True,
        reads_training_specs=True,
        list_filters=frozenset({"states", "since", "all"}),
        retries=("application",),
        notes={
            "retries": "application, in a Batch queue",
            "exec": "enable_remote_debug=true",
            "notify": "train.script",
            "hangs": "train.script",
        },
    )
    opts_class = AWSSageMakerOpts

    def __init__(
        self,
        session_name: str,
        client: Any | None = None,
        docker_client: Any | None = None,
        clients: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(names.BACKEND, session_name, docker_client=docker_client)
        self._given = {**(clients or {}), **({"sagemaker": client} if client is not None else {})}
        self._jobs = KnownJobs(self._given, lambda: self.context)
        self._queued = QueuedJobs(self._jobs)

    def close(self) -> None:
        """Close the connections. May be called more than once."""
        self._jobs.close()

    # ---- submitting

    def _validate(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        check_options(app, self.opts_class(**cfg), region=self._region(cfg))

    def _toolkit_place(self, role: Role) -> None:
        """Return None: images are sent as they are, and SageMaker brings the code."""

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan how the code travels: as an archive in S3, or in the image where ``image_repo`` is given.

        With ``image_repo`` a script's environment goes into the image, and its code to S3.
        """
        opts = self.opts_class(**cfg)
        if goes_into_image(app, workspace, opts):
            return super()._plan_shipment(app, workspace, cfg)
        code = plan_code(app, workspace, opts)
        if code is not None and opts.toolkit:
            code.image = self._plan_environment_image(app.roles[0], cfg)
        return code

    def _images_in(self, shipment: Shipment | None) -> Sequence[WantedImage]:
        return super()._images_in(shipment.image if isinstance(shipment, CodePackage) else shipment)

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[AWSSageMakerJob]:
        code = shipment if isinstance(shipment, CodePackage) else None
        planned = code.planned if code is not None else None
        job = make_job(app, self.opts_class(**cfg), code=planned, region=self._region(cfg))
        check_exists(job.needs.uploads)
        if shipment is not None and (code is None or code.image is not None):
            image = app.roles[0].image
            repository, _, tag = image.rpartition(":")
            job.images_to_push = {image: (repository, tag)}
        check_requests(job)
        info: AppDryRunInfo[AWSSageMakerJob] = AppDryRunInfo(job, str)
        info.app_id = job.app_id
        info.warnings += job.warnings
        return info

    def ship(self, info: AppDryRunInfo[Any], progress: Progress | None = None) -> None:
        """Upload code and data, look up the role, make the bucket; images are pushed.

        Raises:
            ConfigError: something cannot be read, or the role does not exist.
            AwsError: AWS refused or could not be reached. No job is started, and nothing is half uploaded.
        """
        cfg: Mapping[str, Any] = info.cfg
        code = info.shipment if isinstance(info.shipment, CodePackage) else None
        shown = Silent() if progress is None or cfg.get("quiet") else progress
        if code is None:
            super().ship(info, progress)
        else:
            if code.image is not None:
                self._check_before_shipping(info)
                self._put_images(info, code.ship(shown))
            info.images = {}  # the code is not in them
        try:
            prepare(info.request, code, self._session_of(cfg), self._region(cfg), shown)
        finally:
            if code is not None:
                code.close()

    def _check_before_shipping(self, info: AppDryRunInfo[Any]) -> None:
        """Check credentials and role before an image is pushed; code for S3 is sent after the same check."""
        check_identity(info.request, self._session_of(info.cfg), Silent())

    def schedule(self, dryrun_info: AppDryRunInfo[AWSSageMakerJob]) -> str:
        """Create the training job, or give it to its queue, once.

        Raises:
            ConfigError: the request is not valid.
            AwsError: AWS refused it or could not be reached.
        """
        job, cfg = dryrun_info.request, dryrun_info.cfg
        if job.needs != Needs():
            self.ship(dryrun_info)
        check_requests(job)
        arn = submit(self._session_of(cfg), job)
        ref = JobRef.from_arn(arn, cfg.get("profile") or "")
        self._jobs.remember(job.app_id, ref)
        if job.submission:
            self._jobs.submitted(job.app_id)
        dryrun_info.native_id = ref.to_text()
        return job.app_id

    # ---- observing

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what SageMaker says of a job: state, why, replicas, results, times and final metrics."""
        if names.split_queued(app_id) is not None:
            return self._queued.describe(app_id)
        job = self._job(app_id)
        return None if job is None else observe.describe(app_id, job)

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe several jobs, a few at a time."""
        wanted = builtins.list(app_ids)
        found: dict[str, DescribeAppResponse | None] = dict.fromkeys(wanted)
        direct = [app_id for app_id in found if names.is_job_name(app_id)]
        found |= zip(direct, for_all(self.describe, direct), strict=True)
        queued = [app_id for app_id in wanted if names.split_queued(app_id) is not None]
        return {**found, **self._queued.describe_many(queued)} if queued else found

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return our jobs, and the predecessor's, complete, the oldest first.

        Args:
            cfg: ``region`` and ``profile``, ``name`` (a part of the job's name), ``batch_queue`` (jobs of
                this queue alone; those of all queues and of none by default), and the filters of
                `list_filters`.
        """
        cfg = cfg or {}
        rows = list_all(
            self._session_of(cfg),
            cfg.get("since"),
            cfg.get("name") or "",
            queue=cfg.get("batch_queue") or "",
            everything=bool(cfg.get("all")),
        )
        states = cfg.get("states")
        rows = rows if states is None else [row for row in rows if row.state in states]
        return sorted(rows, key=lambda row: row.submitted_at or 0.0)

    def exists(self, app_id: str) -> bool:
        """Tell whether a job of this name exists."""
        if names.split_queued(app_id) is not None:
            return self._queued.exists(app_id)
        return self._job(app_id) is not None

    # ---- results

    def results(self, app_id: str, role_name: str, k: int) -> ResultPlace:
        """Return the results of a job: SageMaker packs those of all hosts into one archive."""
        client = partial(self._jobs.session_of(app_id).client, "s3")
        place = results_sent_by(self.backend, app_id, self.describe(app_id), role_name, k, client)
        if isinstance(place, SentResults):
            place.host = ""
        return place

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command on a host of a job with remote debugging. AWS does not tell its exit code.

        https://docs.aws.amazon.com/sagemaker/latest/dg/train-remote-debugging.html
        """
        is_queued = names.split_queued(app_id) is not None
        job = self._queued.training_job(app_id) if is_queued else self._job(app_id)
        if job is None:
            raise UnknownAppException(f"SageMaker has no training job of {app_id!r}")
        hosts = {(role, index): host for role, index, host in layout(job)}
        check_replicas(app_id, [(role_name, k)], hosts)
        state = job.get("SecondaryStatus") or job.get("TrainingJobStatus")
        if is_over(job) or state != "Training":
            raise not_running(f"{app_id} {role_name}/{k}", state)
        if not (job.get("RemoteDebugConfig") or {}).get("EnableRemoteDebug"):
            raise ConfigError(
                f"{app_id} was submitted without remote debugging, so AWS allows no connection",
                hint="Submit it with -cfg enable_remote_debug=true, and a role that may use ssmmessages.",
            )
        target = f"sagemaker-training-job:{job['TrainingJobName']}_{hosts[role_name, k]}"
        return run_on_target(self._jobs.session_of(app_id), target, command)

    # ---- ending

    def cancel(self, app_id: str) -> None:
        """Ask the job to stop; does nothing if it has ended or does not exist.

        SageMaker sends SIGTERM, and SIGKILL 120 seconds later; what the job has saved is still uploaded.
        """
        if names.split_queued(app_id) is not None:
            self._queued.cancel(app_id)
            return
        job = self._job(app_id)
        if job is not None and not is_over(job):
            stop_job(self._jobs.session_of(app_id), app_id)

    def _delete_existing(self, app_id: str) -> None:
        """Delete the training job. Its results in S3 and its logs stay."""
        if names.split_queued(app_id) is not None:
            self._queued.delete(app_id)
            return
        job = self._job(app_id)
        if job is None:
            return
        if not is_over(job):
            raise not_ended(app_id, state_of(job))
        self._jobs.session_of(app_id).call("sagemaker", "DeleteTrainingJob", TrainingJobName=app_id)

    # ---- keeping house

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check credentials, role, permissions, buckets, logs and image, and print the policies needed."""
        try:
            region = self._region(cfg)
        except ConfigError:
            region = ""
        of_any = super().doctor
        return if_reachable(examine(self._session_of(cfg), region, cfg), lambda: of_any(cfg, job))

    # ---- logs

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return the lines of several replicas, of all their starts in sequence, read by one poller."""
        check_combined(query, "AWSSageMakerScheduler", "CloudWatch keeps stdout and stderr as one stream.")
        if names.split_queued(app_id) is not None:
            service = self._queued.find(app_id)
            if service is None:
                raise UnknownAppException(f"AWS Batch knows no job {app_id!r}")
            known = self._queued.replicas(service, app_id)
            check_replicas(app_id, replicas, [(role, index) for role, index, _ in known])
            return self._queued.log_blocks(app_id, service, replicas, query)
        job = self._job(app_id)
        if job is None:
            raise UnknownAppException(f"SageMaker knows no training job {app_id!r}")
        check_replicas(app_id, replicas, [(role, index) for role, index, _ in layout(job)])
        return read_logs(self._jobs.session_of(app_id), job, replicas, query)

    # ---- sessions

    def _job(self, app_id: str) -> dict[str, Any] | None:
        if not names.is_job_name(app_id):
            return None
        return describe_job(self._jobs.session_of(app_id), app_id)

    def _session_of(self, cfg: Mapping[str, Any]) -> AwsSession:
        return self._jobs.session(cfg.get("region"), cfg.get("profile"))

    def _region(self, cfg: Mapping[str, Any]) -> str:
        """Return the region of a new job."""
        meta = getattr(self._given.get("sagemaker"), "meta", None)
        region = cfg.get("region") or (meta.region_name if meta is not None else "")
        region = region or self._session_of(cfg).region
        if not region:
            raise ConfigError("no AWS region is given for the training job", hint=REGION_HINT)
        return str(region)


def create_scheduler(
    session_name: str,
    client: Any | None = None,
    docker_client: Any | None = None,
    clients: Mapping[str, Any] | None = None,
    **kwargs: object,
) -> AWSSageMakerScheduler:
    """Make the scheduler; see `AWSSageMakerScheduler`."""
    return AWSSageMakerScheduler(session_name, client, docker_client, clients)
