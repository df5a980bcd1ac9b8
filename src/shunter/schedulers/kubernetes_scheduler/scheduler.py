"""`kubernetes`: jobs as Jobs, JobSets or Volcano jobs of a cluster.

The id of a job is ``namespace:name``. Where it is (kind, context, kubeconfig) comes from the history; a job
that is not in the history is searched for by its label.
"""

from __future__ import annotations

import builtins
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from shunter._toolkit import logged_results
from shunter.errors import ConfigError, ShunterError, UnknownAppException, UnreachableError
from shunter.schedulers.api import (
    Check,
    Dependency,
    DescribeAppResponse,
    Leftover,
    ListAppResponse,
    LogBlock,
    LogQuery,
    Scheduler,
    accepted,
    if_reachable,
    not_running,
)
from shunter.schedulers.capabilities import ALL_MOUNTS, ALL_RETRIES, Capabilities
from shunter.schedulers.joined_terminal import SHELL, run_joined
from shunter.schedulers.kept_results import ResultPlace
from shunter.schedulers.kubernetes_scheduler import (
    doctor,
    housekeeping,
    jobs,
    names,
    result_containers,
    states,
    submission,
)
from shunter.schedulers.kubernetes_scheduler.api_server import WATCH_SECONDS, ApiServer, Watches
from shunter.schedulers.kubernetes_scheduler.code_objects import CodeObjects
from shunter.schedulers.kubernetes_scheduler.jobs import ClusterJob
from shunter.schedulers.kubernetes_scheduler.logs import read_logs
from shunter.schedulers.kubernetes_scheduler.names import ClusterJobRef
from shunter.schedulers.kubernetes_scheduler.options import JOBSET, REPLACED, KubernetesOpts
from shunter.schedulers.kubernetes_scheduler.request import KubernetesJob, as_jobset, make_request
from shunter.schedulers.lines import all_replicas, check_combined, check_replicas
from shunter.schedulers.sent_results import results_sent_by
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import as_mapping
from shunter.specs.status import AppState
from shunter.specs.workspace import Workspace
from shunter.workspace.docker_workspace import DockerWorkspaceMixin
from shunter.workspace.shipment import Shipment
from shunter.workspace.toolkit_files import needs_toolkit


class KubernetesScheduler(DockerWorkspaceMixin, Scheduler[KubernetesOpts]):
    """Runs jobs on Kubernetes. See ``docs/schedulers/kubernetes.md``.

    Args:
        session_name: name of the runner's session.
        client: unused; kept for callers of TorchX.
        docker_client: a client of docker-py for making images.
    """

    capabilities = Capabilities(
        races=True,
        results_by_log=True,
        notifies=True,
        ships_by_default=True,
        runs_images=True,
        list_filters=frozenset({"states", "since"}),
        arrays=True,
        elastic=True,
        mounts=ALL_MOUNTS,
        retries=ALL_RETRIES,
        notes={
            "elastic": "with Volcano or gang=true",
            "retries": "replica; all with JobSet or Volcano",
            "notify": "train.script",
            "hangs": "train.script",
        },
    )
    opts_class = KubernetesOpts

    def __init__(
        self, session_name: str, client: Any | None = None, docker_client: Any | None = None
    ) -> None:
        super().__init__("kubernetes", session_name, docker_client=docker_client)
        self._servers: dict[tuple[str, str], ApiServer] = {}
        self._refs: dict[str, ClusterJobRef] = {}

    def close(self) -> None:
        """Close the connections. May be called more than once."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()

    # ---- submitting

    def submit_dryrun(
        self,
        app: AppDef,
        cfg: Any,
        workspace: Workspace | str | None = None,
        after: Sequence[Dependency] = (),
    ) -> AppDryRunInfo[Any]:
        """Make the request; options of TorchX's ``kubernetes_mcad`` are refused with what replaces them."""
        for name, replacement in REPLACED.items():
            if as_mapping(cfg).get(name) is not None:
                raise ConfigError(
                    f"{name} was an option of kubernetes_mcad, which no longer exists",
                    hint=f"Give instead: {replacement}.",
                )
        return super().submit_dryrun(app, cfg, workspace, after)

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[KubernetesJob]:
        code = shipment if isinstance(shipment, CodeObjects) else None
        job = make_request(app, cfg, self.session_name, code=code)
        info = AppDryRunInfo(job, str)
        info.app_id = job.app_id
        info.warnings += job.warnings
        return info

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan images with the code where there is a repository for them, and else Secrets.

        A workspace that is a mere default travels with roles that need the toolkit: their scripts are in it.
        """
        with_toolkit = any(needs_toolkit(role) for role in app.roles)
        if cfg.get("image_repo") or not (with_toolkit or (workspace and not workspace.implicit)):
            return super()._plan_shipment(app, workspace, cfg)
        return CodeObjects(workspace, with_toolkit=with_toolkit)

    def _check_before_shipping(self, info: AppDryRunInfo[Any]) -> None:
        """Have the API server check the job, admission and quota included, before code is pushed."""
        self._adapt(info)
        if info.cfg.get("validate_spec", True):
            job = info.request
            submission.try_out(self._server(job.context, job.kubeconfig), job)

    def _adapt(self, info: AppDryRunInfo[Any]) -> None:
        """Adapt the request to the kinds and versions that the cluster has."""
        job = info.request
        server = self._server(job.context, job.kubeconfig)
        if job.may_be_jobset and info.app is not None and jobs.GROUP_OF_KIND[JOBSET] in server.groups():
            job = as_jobset(job, info.app, info.cfg, self.session_name)
        submission.adapt(server, job)
        info.request = job

    def schedule(self, dryrun_info: AppDryRunInfo[KubernetesJob]) -> str:
        """Make the job's objects, exactly once.

        Raises:
            KubernetesError: the API server refused one or could not be reached.
        """
        self._adapt(dryrun_info)
        job = dryrun_info.request
        server = self._server(job.context, job.kubeconfig)
        submission.submit(server, job)
        connection = server.connection
        # the kubeconfig's current context may be another one tomorrow
        ref = ClusterJobRef(job.kind, connection.context, server.kubeconfig, connection.server)
        self._refs[job.app_id] = ref
        dryrun_info.native_id = ref.to_text()
        return job.app_id

    # ---- finding

    def _server(self, context: str, kubeconfig: str) -> ApiServer:
        configured: Mapping[str, Any] = {} if context and kubeconfig else self.context.configured_options()
        key = (context or configured.get("context") or "", kubeconfig or configured.get("kubeconfig") or "")
        if key not in self._servers:
            self._servers[key] = ApiServer(*key)
        return self._servers[key]

    def _server_of(self, cfg: Mapping[str, Any]) -> ApiServer:
        return self._server(cfg.get("context") or "", cfg.get("kubeconfig") or "")

    def _ref(self, app_id: str) -> ClusterJobRef:
        if app_id not in self._refs:
            text = self.context.native_id(app_id)
            if not text:
                return ClusterJobRef("")
            self._refs[app_id] = ClusterJobRef.from_text(text)
        return self._refs[app_id]

    def _find_many(self, app_ids: Iterable[str]) -> dict[str, ClusterJob | ShunterError | None]:
        """Find jobs, with few calls for each cluster and namespace; an error is that of its jobs alone."""
        jobs_by_id: dict[str, ClusterJob | ShunterError | None] = dict.fromkeys(app_ids)
        places: dict[tuple[ClusterJobRef, str], dict[str, str]] = {}
        for app_id in jobs_by_id:
            namespace, name = names.split_app_id(app_id)
            if names.DNS_LABEL.fullmatch(name) and names.DNS_LABEL.fullmatch(namespace):
                place = self._ref(app_id)._replace(kind="")
                places.setdefault((place, namespace), {})[app_id] = name
        for (place, namespace), names_of_jobs in places.items():
            kinds = {name: self._ref(app_id).kind for app_id, name in names_of_jobs.items()}
            try:
                found = jobs.find_jobs(self._server_at(place), namespace, kinds)
            except ShunterError as error:
                jobs_by_id.update(dict.fromkeys(names_of_jobs, error))
            else:
                jobs_by_id.update({app_id: found.get(name) for app_id, name in names_of_jobs.items()})
        return jobs_by_id

    def _server_at(self, place: ClusterJobRef) -> ApiServer:
        """Return the API server of a job.

        Raises:
            UnreachableError: its context is now one of another cluster.
        """
        server = self._server(place.context, place.kubeconfig)
        if place.server and server.connection.server != place.server:
            raise UnreachableError(
                f"the context {place.context!r} is now of the cluster {server.connection.server}, and the job"
                f" is on {place.server}",
                hint="Restore the context, or `shunter delete --forget` the job.",
            )
        return server

    def _find(self, app_id: str) -> ClusterJob | None:
        job = self._find_many([app_id])[app_id]
        if isinstance(job, ShunterError):
            raise job
        return job

    def _get(self, app_id: str) -> ClusterJob:
        job = self._find(app_id)
        if job is None:
            raise UnknownAppException(f"the cluster has no job {app_id!r}")
        return job

    # ---- observing

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the state of a job and its replicas, and why it waits."""
        job = self._find(app_id)
        return None if job is None else jobs.describe(job)

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | ShunterError | None]:
        """Describe several jobs, a hundred per call, without their replicas."""
        found = self._find_many(app_ids)
        return {
            app_id: jobs.brief(job) if isinstance(job, ClusterJob) else job for app_id, job in found.items()
        }

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all of our jobs, the oldest first.

        Args:
            cfg: ``namespace`` ("default" by default, "*" for all), ``context`` and ``kubeconfig``, and the
                filters of `list_filters`.
        """
        cfg = cfg or {}
        namespace = cfg.get("namespace") or names.DEFAULT_NAMESPACE
        selected, since = cfg.get("states"), int(cfg.get("since") or 0)
        listed = jobs.list_jobs(self._server_of(cfg), "" if namespace == "*" else namespace)
        rows = [row for row in map(jobs.row, listed) if selected is None or row.state in selected]
        rows = [row for row in rows if (row.submitted_at or 0.0) >= since]
        return sorted(rows, key=lambda row: row.submitted_at or 0.0)

    def exists(self, app_id: str) -> bool:
        """Tell whether there is a job of this id."""
        return self._find(app_id) is not None

    def wait(self, app_id: str, timeout: float | None = None) -> DescribeAppResponse | None:
        """Block until the job ends, is gone, or the time is over: the cluster reports changes."""
        job = self._find(app_id)
        if job is None:
            return None
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        with closing(Watches(job.server, [jobs.list_path(job.kind, job.namespace)], job.selector)) as watches:
            while not job.has_ended and time.monotonic() < deadline:
                watches.wait(min(deadline - time.monotonic(), WATCH_SECONDS))
                job = self._find(app_id)
                if job is None:
                    return None
        return jobs.describe(job)

    # ---- results

    def results(self, app_id: str, role_name: str, k: int) -> ResultPlace:
        """Return the results of a replica: they are where the job sent them, or in its logs."""
        read_log = partial(self._lines_with_results, app_id, role_name, k)
        response = self.describe(app_id)
        return results_sent_by(self.backend, app_id, response, role_name, k, read_log=read_log)

    def _lines_with_results(self, app_id: str, role_name: str, k: int) -> builtins.list[str]:
        """Return the lines of a replica's logs that have results."""
        mark = logged_results.MARK.decode()
        lines = [line for line in self.log_iter(app_id, role_name, k) if mark in line]
        if logged_results.read(line.encode("utf-8", "replace") for line in lines) is None:
            job = self._get(app_id)
            place = [role for role, _ in job.layout].index(role_name), k
            lines = [*result_containers.lines_of(job, place), *lines]
        return lines

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command in a replica's container by ``kubectl exec``, which says itself what is wrong."""
        job = self._get(app_id)
        check_replicas(app_id, [(role_name, k)], all_replicas(job.layout))
        place = ([role for role, _ in job.layout].index(role_name), k)
        attempts = jobs.group_pods(job.pods()).get(place, [])
        name = f"{app_id} {role_name}/{k}"
        if not attempts:
            raise ConfigError(
                f"{name} is not running: it has no pod", hint=f"`shunter status {app_id}` says why."
            )
        pod = attempts[-1]
        reason = states.pod_reason(pod)
        if reason.state is not AppState.RUNNING:
            raise not_running(name, f"{reason.state}: {reason.text}" if reason.text else reason.state)
        words = ["kubectl"]
        if job.server.kubeconfig:
            words.append(f"--kubeconfig={os.path.expanduser(job.server.kubeconfig)}")
        if job.server.connection.context:  # a pod's own account has none
            words.append(f"--context={job.server.connection.context}")
        words += ["exec", names.name_of(pod), f"--namespace={job.namespace}"]
        words += [f"--container={states.main_container(pod)}", "--stdin", *(["--tty"] if tty else [])]
        try:
            return run_joined([*words, "--", *(command or SHELL)])
        except FileNotFoundError:
            raise ConfigError(
                "entering a pod needs kubectl, which is not installed",
                hint="https://kubernetes.io/docs/tasks/tools/ says how to install it.",
            ) from None

    # ---- ending

    def cancel(self, app_id: str) -> None:
        """Ask the job to stop; does nothing if it has ended or does not exist."""
        job = self._find(app_id)
        if job is not None:
            housekeeping.cancel(job)

    def cancel_many(self, app_ids: Iterable[str]) -> dict[str, ShunterError | None]:
        """Ask jobs to stop: they are found by a few calls, and each is then changed by one."""
        results: dict[str, ShunterError | None] = {}
        for app_id, job in self._find_many(app_ids).items():
            results[app_id] = job if isinstance(job, ShunterError) else None
            try:
                if isinstance(job, ClusterJob):
                    housekeeping.cancel(job)
            except ShunterError as error:
                results[app_id] = error
        return results

    def delete(self, app_id: str) -> None:
        """Delete the objects of a job that has ended."""
        job = self._find(app_id)
        if job is not None:
            housekeeping.delete(job)

    # ---- housekeeping

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check connection, permissions, namespace, queue and what the cluster has.

        With a job, the API server checks it too, and it is compared with the nodes and its images.
        """
        checks = doctor.examine(self._server_of(cfg), cfg)
        if job is None:
            return checks
        server = self._server(job.request.context, job.request.kubeconfig)
        remarks: builtins.list[str] = []

        def send() -> None:
            self._adapt(job)
            remarks.extend(submission.try_out(server, job.request))

        def more() -> builtins.list[Check]:
            checks = [accepted("the job", send, "would be accepted")]
            checks += [Check("its pods", None, remark) for remark in remarks]
            return checks + doctor.examine_job(server, job)

        return if_reachable(checks, more)

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return Secrets and Services of ours whose job is gone, and code of jobs that have ended."""
        return housekeeping.unused(
            self._server_of(cfg), cfg.get("namespace") or names.DEFAULT_NAMESPACE, older_than
        )

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Delete what `leftovers` found."""
        server = self._server_of(cfg)
        for leftover in leftovers:
            server.delete(leftover.id)
        return 0

    # ---- logs

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return the lines of several replicas and all their attempts."""
        check_combined(query, "KubernetesScheduler", "Containers have stdout and stderr as one stream there.")
        job = self._get(app_id)
        check_replicas(app_id, replicas, all_replicas(job.layout))
        return read_logs(job, replicas, query)


def create_scheduler(
    session_name: str, client: Any | None = None, docker_client: Any | None = None, **kwargs: object
) -> KubernetesScheduler:
    """Make the scheduler; see `KubernetesScheduler`."""
    return KubernetesScheduler(session_name, client, docker_client)
