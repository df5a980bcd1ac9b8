"""`aws_batch`: jobs on AWS Batch, as container, multi-node or array jobs.

The id of a job is ``queue:name``. Batch's id comes from the history, or from a search by name.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from shunter._toolkit.store import Store
from shunter.errors import ConfigError, ShunterError, UnknownAppException
from shunter.schedulers.api import (
    Check,
    Dependency,
    DescribeAppResponse,
    JobDetails,
    Leftover,
    ListAppResponse,
    LogBlock,
    LogQuery,
    Scheduler,
    if_reachable,
    not_ended,
    not_running,
    poll_until_ended,
)
from shunter.schedulers.aws.aws_names import region_of_arn
from shunter.schedulers.aws.batch_jobs import JobRef, KnownJobs, cancelled_by, check_queue
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws.session_manager import run_in_task
from shunter.schedulers.aws_batch_scheduler import observe
from shunter.schedulers.aws_batch_scheduler.code_delivery import RESULTS, CodeDelivery
from shunter.schedulers.aws_batch_scheduler.doctor import examine, examine_job
from shunter.schedulers.aws_batch_scheduler.housekeeping import delete, unused
from shunter.schedulers.aws_batch_scheduler.logs import read_logs
from shunter.schedulers.aws_batch_scheduler.options import AWSBatchOpts
from shunter.schedulers.aws_batch_scheduler.reasons import QueueInspector
from shunter.schedulers.aws_batch_scheduler.replicas import CONTAINER
from shunter.schedulers.aws_batch_scheduler.request import (
    BatchJob,
    add_dependencies,
    make_request,
    rename_by_content,
)
from shunter.schedulers.aws_batch_scheduler.rules import check_sizes, training_warnings
from shunter.schedulers.aws_batch_scheduler.submission import (
    register_definition,
    submit_once,
    terminate_all,
)
from shunter.schedulers.capabilities import ALL_MOUNTS, Capabilities
from shunter.schedulers.kept_results import ResultPlace
from shunter.schedulers.lines import check_combined, check_replicas
from shunter.schedulers.sent_results import SentResults, results_sent_by
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.status import is_terminal
from shunter.specs.training import CALL_KEY
from shunter.specs.workspace import Workspace
from shunter.workspace.docker_workspace import DockerWorkspaceMixin
from shunter.workspace.shipment import Shipment
from shunter.workspace.toolkit_files import needs_toolkit

Job = dict[str, Any]


class AWSBatchScheduler(DockerWorkspaceMixin, Scheduler[AWSBatchOpts]):
    """Runs jobs on AWS Batch. See ``docs/schedulers/aws_batch.md``.

    Args:
        session_name: name of the runner's session.
        client: a Batch client of boto3 or botocore; made from the environment by default.
        log_client: likewise for CloudWatch Logs.
        docker_client: a client of docker-py for making images.
    """

    capabilities = Capabilities(
        races=True,
        results_by_log=True,
        pipes_streams=False,
        ships_by_default=True,
        runs_images=True,
        list_filters=frozenset({"states", "since", "all"}),
        arrays=True,
        mounts=ALL_MOUNTS,
        ignores=("elastic",),
        notes={
            "arrays": "array=true",
            "retries": "application, or replica in arrays",
            "exec": "exec=true",
            "after": "after success",
            "notify": "train.script",
            "hangs": "train.script",
        },
    )
    opts_class = AWSBatchOpts

    def __init__(
        self,
        session_name: str,
        client: Any | None = None,
        log_client: Any | None = None,
        docker_client: Any | None = None,
    ) -> None:
        super().__init__("aws_batch", session_name, docker_client=docker_client)
        given = {name: c for name, c in (("batch", client), ("logs", log_client)) if c is not None}
        self._jobs = KnownJobs(given, lambda: self.context)
        self._inspector = QueueInspector()

    def close(self) -> None:
        """Close the connections. May be called more than once."""
        self._jobs.close()

    # ---- code

    def _image_options(self, cfg: Mapping[str, Any]) -> Mapping[str, Any]:
        # the option `platform` is Batch's; the image builder would take it for the platform of an image
        return {key: value for key, value in cfg.items() if key != "platform"}

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan images with ``image_repo``; without it an object of S3, or a part of the request.

        A workspace that is a mere default travels with functions, and where a place for code is given.
        """
        location = cfg.get("code_location") or ""
        if cfg.get("image_repo"):
            return super()._plan_shipment(app, workspace, cfg)
        if workspace.implicit and not location and not any(CALL_KEY in role.metadata for role in app.roles):
            workspace = Workspace()
        if not workspace and not any(needs_toolkit(role) for role in app.roles):
            return None
        own_region = cfg.get("region") or region_of_arn(cfg["queue"])

        def session_of(region: str | None) -> AwsSession:
            return self._jobs.session(region or own_region, cfg.get("profile"))

        is_in_image = bool(cfg.get("toolkit_in_image"))
        return CodeDelivery(app, workspace, location, toolkit_in_image=is_in_image, session=session_of)

    # ---- submitting

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[BatchJob]:
        code = shipment if isinstance(shipment, CodeDelivery) else None
        job = make_request(app, cfg, self.session_name, code)
        info = AppDryRunInfo(job, str)
        info.app_id = job.app_id
        info.warnings += job.warnings
        if code is not None:
            info.warnings += code.warnings()
        return info

    def _check_before_shipping(self, info: AppDryRunInfo[Any]) -> None:
        """Check with one call that the queue accepts jobs, and so the credentials."""
        job = info.request
        check_queue(self._jobs.session(job.region, job.profile), job.submission["jobQueue"])

    def _depend_on(self, info: AppDryRunInfo[BatchJob], dependencies: Sequence[Dependency]) -> None:
        """Let Batch start the job when others have succeeded (``dependsOn``); if one fails, it fails."""
        parents = {}
        for item in dependencies:
            if not self.exists(item.app_id):
                raise UnknownAppException(f"AWS Batch does not know the job {item.app_id!r}")
            region = self._jobs.session_of(item.app_id).region
            parents[item.app_id] = (self._jobs.ref(item.app_id).job_id, region)
        any_end = [item.app_id for item in dependencies if item.any_end]
        job = info.request
        add_dependencies(job, parents, any_end, self._jobs.session(job.region, job.profile).region)

    def schedule(self, dryrun_info: AppDryRunInfo[BatchJob]) -> str:
        """Register the job's definition if necessary, and submit the job exactly once.

        Raises:
            AwsError: Batch refused it or could not be reached.
        """
        shipment = dryrun_info.shipment
        manifest = shipment.manifest if shipment is not None else None
        roles = dryrun_info.app.roles if dryrun_info.app else []
        sends_results = isinstance(shipment, CodeDelivery) and shipment.sends_results
        for warning in training_warnings(roles, manifest, sends_results=sends_results):
            warnings.warn(warning, RuntimeWarning, stacklevel=3)
        job = dryrun_info.request
        session = self._jobs.session(job.region, job.profile)
        # shipping has changed the images, or put URLs in place of their names
        job_def = rename_by_content(job.job_def)
        check_sizes(job_def, job.submission)
        definition = register_definition(session, job_def)
        answer = submit_once(session, {**job.submission, "jobDefinition": definition})
        arn = answer.get("jobArn") or answer["jobId"]
        ref = JobRef.from_arn(arn, job.profile or "")._replace(job_id=answer["jobId"])
        self._jobs.remember(job.app_id, ref)
        self._jobs.submitted(job.app_id)
        dryrun_info.native_id = ref.to_text()
        return job.app_id

    # ---- observing

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the state of a job and its replicas, and why it waits."""
        job, session = self._find(app_id), self._jobs.session_of(app_id)
        if job is None:
            return self._jobs.describe_new(app_id)
        response = observe.app_response(app_id, job, observe.describe_replicas(session, job))
        if job.get("status") == "RUNNABLE":
            needs: dict[str, int] = {}
            for place in observe.replicas_of(job):
                for kind, value in observe.needs_of(place.container).items():
                    needs[kind] = max(needs.get(kind, 0), value)
            why = self._inspector.why(session, job.get("jobQueue", ""), needs)
            response.msg = f"{response.msg}: {why}" if why else response.msg
        return response

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe several jobs, a hundred per call, without the replicas of jobs that have several."""
        return {
            app_id: self._jobs.describe_new(app_id) if job is None else _brief(app_id, job)
            for app_id, job in observe.find(self._jobs, app_ids).items()
        }

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all of our jobs and TorchX's, the oldest first.

        Args:
            cfg: ``queue`` (all by default), ``region`` and ``profile``, and the filters of `list_filters`.
        """
        cfg = cfg or {}
        return observe.list_jobs(
            self._session(cfg), cfg.get("queue"), cfg.get("states"), cfg.get("since"), bool(cfg.get("all"))
        )

    def exists(self, app_id: str) -> bool:
        """Tell whether there is a job of this id."""
        return self._find(app_id) is not None or self._jobs.is_new(app_id)

    def wait(self, app_id: str, timeout: float | None = None) -> DescribeAppResponse | None:
        """Block until the job ends, polling only the job and not its replicas."""
        response = poll_until_ended(lambda: self.describe_many([app_id])[app_id], timeout)
        return None if response is None else self.describe(app_id)

    def details(self, app_id: str) -> BatchJobDetails:
        """Return what else can be asked about a job: its place in the queue."""
        return BatchJobDetails(self._find(app_id), self._jobs.session_of(app_id))

    # ---- results

    def results(self, app_id: str, role_name: str, k: int) -> ResultPlace:
        """Return the results of a replica: where the job sent them, by itself or by a form, or in its log."""
        client = partial(self._jobs.session_of(app_id).client, "s3")
        sent = self._sent_by_form(app_id, role_name, k, client)
        if sent is not None and sent.files():
            return sent
        read_log = partial(self.log_iter, app_id, role_name, k)
        return results_sent_by(self.backend, app_id, self.describe(app_id), role_name, k, client, read_log)

    def _sent_by_form(
        self, app_id: str, role_name: str, k: int, client: Callable[[], Any]
    ) -> SentResults | None:
        job = self._find(app_id)
        for place in observe.replicas_of(job) if job is not None else ():
            folder = observe.environment(place.container).get(RESULTS)
            if (place.role, place.replica) == (role_name, k) and folder:
                store = Store(warn=lambda text: None, client=client)
                return SentResults(f"{folder}/{role_name}/{k}", store=store)
        return None

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command in a replica's container, by ECS Exec. AWS does not tell its exit code."""
        session, job, places = self._find_replicas(app_id, [(role_name, k)])
        ((_, detail),) = observe.details_of(session, job, places)
        name = f"{app_id} {role_name}/{k}"
        if detail.get("status") != "RUNNING":
            raise not_running(name, detail.get("status"))
        container = detail.get("container") or {}
        if not container.get("enableExecuteCommand"):
            raise ConfigError(
                f"{name} was submitted without the option exec, so AWS allows no connection",
                hint="Submit it with -cfg exec=true, and a job_role_arn whose role may use ssmmessages.",
            )
        return run_in_task(session, str(container["taskArn"]), command)

    # ---- ending

    def cancel_many(self, app_ids: Iterable[str]) -> dict[str, ShunterError | None]:
        """Ask jobs to stop: they are described a hundred per call, and ended fifty per call."""
        wanted = dict.fromkeys(app_ids)
        open_ones = {}
        for app_id, job in observe.find(self._jobs, wanted).items():
            if self._jobs.is_new(app_id) if job is None else not is_terminal(observe.app_state(job)[0]):
                open_ones[app_id] = (self._jobs.session_of(app_id), self._jobs.ref(app_id).job_id)
        return {**wanted, **terminate_all(open_ones, cancelled_by())}

    def cancel(self, app_id: str) -> None:
        """Ask the job to stop; does nothing if it has ended or does not exist.

        ``TerminateJob`` works in every state. ``CancelJob`` would do nothing for a job that starts while the
        request is on its way, and report success.
        """
        error = self.cancel_many([app_id])[app_id]
        if error is not None:
            raise error

    def _delete_existing(self, app_id: str) -> None:
        """Delete the job's logs, and mark it as deleted."""
        job = self._find(app_id)
        if job is None:
            return
        state, _ = observe.app_state(job)
        if not is_terminal(state):
            raise not_ended(app_id, state)
        delete(self._jobs.session_of(app_id), job)

    # ---- housekeeping

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check credentials, queue, roles, log group and image, and show the policy that is needed.

        With a job, check that hosts of the queue could hold a replica, and that the images are there.
        """
        checks = examine(self._session(cfg), cfg)
        if job is None:
            return checks
        session = self._jobs.session(job.request.region, job.request.profile)
        return if_reachable(checks, lambda: examine_job(session, job))

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return our job definitions that no job needs."""
        session = self._session(cfg)
        return unused(session, older_than, observe.queue_names(session))

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Deregister job definitions. Jobs made from them are not affected."""
        session = self._session(cfg)
        for leftover in leftovers:
            session.call("batch", "DeregisterJobDefinition", jobDefinition=leftover.id)
        return 0

    # ---- logs

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return the lines of several replicas and all their attempts."""
        check_combined(query, "AWSBatchScheduler", "CloudWatch keeps stdout and stderr as one stream.")
        session, job, places = self._find_replicas(app_id, replicas)
        return read_logs(session, job, places, query)

    # ---- parts

    def _find_replicas(
        self, app_id: str, replicas: Sequence[tuple[str, int]]
    ) -> tuple[AwsSession, Job, builtins.list[observe.ReplicaRef]]:
        job = self._find(app_id)
        if job is None:
            raise UnknownAppException(f"AWS Batch does not know the job {app_id!r}")
        known = {(place.role, place.replica): place for place in observe.replicas_of(job)}
        check_replicas(app_id, replicas, known)
        return self._jobs.session_of(app_id), job, [known[replica] for replica in replicas]

    def _find(self, app_id: str) -> Job | None:
        """Find a job; None if it does not exist or was deleted."""
        return observe.find(self._jobs, [app_id])[app_id]

    def _session(self, cfg: Mapping[str, Any]) -> AwsSession:
        """Return the session for these options."""
        return self._jobs.session(
            cfg.get("region") or region_of_arn(cfg.get("queue") or ""), cfg.get("profile")
        )


class BatchJobDetails(JobDetails):
    """What AWS Batch can tell about a job beside its description."""

    def __init__(self, job: Job | None, session: AwsSession) -> None:
        self._job = job
        self._session = session

    def queue_position(self) -> str:
        """Return its place among the first hundred runnable jobs of its queue, as Batch lists them."""
        if self._job is None:
            return ""
        answer = self._session.call("batch", "GetJobQueueSnapshot", jobQueue=self._job["jobQueue"])
        jobs = (answer.get("frontOfQueue") or {}).get("jobs") or []
        place = next((n for n, each in enumerate(jobs, 1) if each["jobArn"] == self._job.get("jobArn")), 0)
        return f"number {place} of the first {len(jobs)} runnable jobs of its queue" if place else ""


def _brief(app_id: str, job: Job) -> DescribeAppResponse:
    """Describe a job without asking for its replicas."""
    alone = observe.kind_of(job) == CONTAINER
    replicas = [(observe.replicas_of(job)[0], job)] if alone else None
    return observe.app_response(app_id, job, replicas)


def create_scheduler(
    session_name: str,
    client: Any | None = None,
    log_client: Any | None = None,
    docker_client: Any | None = None,
    **kwargs: object,
) -> AWSBatchScheduler:
    """Make the scheduler; see `AWSBatchScheduler`."""
    return AWSBatchScheduler(session_name, client, log_client, docker_client)
