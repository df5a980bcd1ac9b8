"""`ray`: jobs on a Ray cluster, submitted over HTTP to the dashboard of its head."""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from shunter.backoff import Backoff
from shunter.errors import BackendError, ConfigError, ShunterError, UnknownAppException, UnreachableError
from shunter.parallel import for_all
from shunter.schedulers.api import (
    Capabilities,
    Check,
    Dependency,
    DescribeAppResponse,
    Leftover,
    ListAppResponse,
    LogBlock,
    LogQuery,
    Scheduler,
    attempt,
    if_reachable,
    not_ended,
)
from shunter.schedulers.capabilities import SEPARATE_STREAMS
from shunter.schedulers.ids import make_unique
from shunter.schedulers.kept_results import LocalResults, ResultPlace
from shunter.schedulers.lines import all_replicas, check_replicas, compile_regex
from shunter.schedulers.ray_scheduler import logs, ray_package, request
from shunter.schedulers.ray_scheduler.dashboard import SILENCE, Dashboard, job_path
from shunter.schedulers.ray_scheduler.doctor import examine, examine_job
from shunter.schedulers.ray_scheduler.options import RayOpts
from shunter.schedulers.ray_scheduler.remote_command import run_inside
from shunter.schedulers.ray_scheduler.request import RayRequest, make_request, warnings_for
from shunter.schedulers.ray_scheduler.states import RayJob, find_job
from shunter.schedulers.sent_results import SentResults, results_sent_by
from shunter.schedulers.supervisor.directories import remove_leftovers
from shunter.specs.app import AppDef, Role, macros
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import make_app_handle
from shunter.specs.status import is_terminal
from shunter.specs.workspace import Workspace
from shunter.workspace.shipment import Shipment
from shunter.workspace.toolkit_files import ToolkitPlace

#: How long a job that Ray is just starting may ignore an order to stop, in seconds.
STOP_PATIENCE = 20.0


class RayScheduler(Scheduler[RayOpts]):
    """Runs jobs on a Ray cluster. See ``docs/schedulers/ray.md``."""

    capabilities = Capabilities(
        races=True,
        results_by_log=True,
        pipes_streams=False,
        ships_by_default=True,
        list_filters=frozenset({"states", "since", "all"}),
        streams=SEPARATE_STREAMS,
        elastic=True,
        notes={"after": "by the job's driver", "exec": "without stdin and terminal"},
    )
    opts_class = RayOpts

    def __init__(self, session_name: str) -> None:
        super().__init__("ray", session_name)

    # ---- which cluster

    def connection(self) -> dict[str, Any]:
        """Return the configured options that say how a dashboard is reached."""
        configured = self.context.configured_options()
        return {name: configured[name] for name in ("headers", "verify") if configured.get(name) is not None}

    def dashboard_of(self, app_id: str) -> Dashboard:
        """Return the dashboard of the cluster that a job was sent to; the configured one by default."""
        native = self.context.native_id(app_id) or ""
        return Dashboard.of(self.context.configured_options(), native.rpartition(" ")[0])

    # ---- submitting

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan the package with the code. A job without a workspace has one too: driver and toolkit."""
        return ray_package.RayPackage(workspace or None, lambda: Dashboard.of(cfg))

    def _toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where the toolkit will be beside a replica's code; each replica gets a base directory."""
        return ToolkitPlace(
            ("python", "-S", f"{macros.img_root}/../toolkit.pyz"),
            code=macros.img_root,
            base=f"{macros.img_root}/../ml",
            env={"SHUNTER_INSTALLER": "none"},
        )

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[RayRequest]:
        if not isinstance(shipment, ray_package.RayPackage):
            shipment = ray_package.RayPackage(None, lambda: Dashboard.of(cfg))
        opts, app_id = self.opts_class(**cfg), make_unique(app.name)
        made = make_request(app, opts, app_id, Dashboard.of(cfg).address, shipment.uri)
        if "notify" in made.plan:
            made.plan["notify"]["handle"] = make_app_handle("ray", self.session_name, app_id)
        info = AppDryRunInfo(made, str)
        info.app_id = app_id
        info.warnings = warnings_for(app, opts)
        return info

    def _depend_on(self, info: AppDryRunInfo[RayRequest], dependencies: Sequence[Dependency]) -> None:
        """Let the job's driver wait for other jobs of the same cluster, before it looks for room."""
        dashboard = Dashboard.of(info.cfg)
        for dependency in dependencies:
            there = self.dashboard_of(dependency.app_id)
            if there != dashboard:
                raise ConfigError(
                    f"{dependency.app_id} is on the cluster {there.address}, "
                    f"and the job goes to {dashboard.address}",
                    hint="A job can only wait for jobs of the same cluster.",
                )
            if dashboard.job(dependency.app_id) is None:
                raise UnknownAppException(f"Ray at {dashboard.address} has no job {dependency.app_id!r}")
        info.request.plan["after"] = [{"job": each.app_id, "any": each.any_end} for each in dependencies]

    def _check_before_shipping(self, info: AppDryRunInfo[Any]) -> None:
        """Check with one call that the cluster can be reached, and accepts our credentials."""
        Dashboard.of(info.cfg).ask("GET", "/api/version", silence=SILENCE)

    def schedule(self, dryrun_info: AppDryRunInfo[RayRequest]) -> str:
        """Submit the job exactly once: Ray accepts a submission id once, whatever is lost on the way.

        Raises:
            BackendError: Ray refused it or could not be reached.
        """
        made, dashboard = dryrun_info.request, Dashboard.of(dryrun_info.cfg)
        plan = ray_package.send_plan(dashboard, made.plan)
        submission = {
            **made.submission,
            "runtime_env": {**made.submission["runtime_env"], "py_modules": [plan]},
            "metadata": {**made.submission["metadata"], request.TOKEN: dryrun_info.client_token},
        }
        try:
            dashboard.ask("POST", "/api/jobs/", submission)
        except BackendError as error:
            if "entrypoint_label_selector" in error.message:
                error.hint = "This Ray is too old for entrypoint_label_selector (2.49)."
            try:  # it may have the job although its answer was lost
                job = find_job(dashboard, made.app_id)
            except BackendError:
                raise error from None
            if job is None or job.metadata.get(request.TOKEN) != dryrun_info.client_token:
                raise
        dryrun_info.native_id = f"{dashboard.address} {made.app_id}"
        return made.app_id

    # ---- observing

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the state of a job and its replicas; what was kept of its end if Ray has forgotten it."""
        dashboard = self.dashboard_of(app_id)
        job = find_job(dashboard, app_id, with_document=True)
        if job is None:
            job = logs.kept_job(app_id)
        elif is_terminal(job.state) and job.is_ours:
            logs.keep_end(dashboard, app_id)
        return None if job is None else job.response(dashboard)

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe several jobs by one request for each cluster, without their replicas."""
        ids = builtins.list(app_ids)
        if len(ids) == 1:
            return {ids[0]: self.describe(ids[0])}
        dashboards = {app_id: self.dashboard_of(app_id) for app_id in ids}
        records = {dashboard: dashboard.jobs() for dashboard in set(dashboards.values())}
        responses = {}
        for app_id, dashboard in dashboards.items():
            record = records[dashboard].get(app_id)
            job = logs.kept_job(app_id) if record is None else RayJob(app_id, record, {})
            responses[app_id] = None if job is None else job.response(dashboard, brief=not job.is_forgotten)
        return responses

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return the jobs of a cluster, the oldest first: one request.

        Args:
            cfg: ``dashboard_address``, and the filters of `list_filters`.
        """
        cfg = cfg or {}
        options = {name: cfg[name] for name in ("dashboard_address", "headers", "verify") if cfg.get(name)}
        records = Dashboard.of({**self.context.configured_options(), **options}).jobs()
        jobs = [RayJob(app_id, record, {}) for app_id, record in records.items()]
        shown = [job for job in jobs if (job.is_ours or cfg.get("all")) and not job.is_command]
        rows = [job.row() for job in shown]
        states, since = cfg.get("states"), cfg.get("since")
        if states:
            rows = [row for row in rows if row.state in states]
        if since is not None:
            rows = [row for row in rows if row.submitted_at is None or row.submitted_at >= since]
        return sorted(rows, key=lambda row: row.submitted_at or 0.0)

    def exists(self, app_id: str) -> bool:
        """Tell whether Ray knows a job of this id."""
        return self.dashboard_of(app_id).job(app_id) is not None

    # ---- results

    def results(self, app_id: str, role_name: str, k: int) -> ResultPlace:
        """Return the results of a replica: of ``job_dir``, if it is seen here, of its output, or its log."""
        response = self.describe(app_id)
        read_log = partial(self.log_iter, app_id, role_name, k)
        sent = results_sent_by(self.backend, app_id, response, role_name, k, read_log=read_log)
        if isinstance(sent, SentResults) and sent.uri.endswith(f"/{app_id}"):
            return LocalResults.below(f"{sent.uri}/{role_name}-{k}/ml")
        return sent

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command where a replica runs, without stdin and terminal: those Ray does not give."""
        return run_inside(self, app_id, role_name, k, command)

    # ---- ending

    def cancel(self, app_id: str) -> None:
        """Ask the job to stop: its replicas get SIGTERM, and SIGKILL after the grace period."""
        dashboard = self.dashboard_of(app_id)
        polls = Backoff(0.1, 1.0, limit=STOP_PATIENCE)
        while True:
            job = find_job(dashboard, app_id)
            if job is None or is_terminal(job.state):
                return
            if (dashboard.ask("POST", f"{job_path(app_id)}/stop") or {}).get("stopped"):
                return
            if not polls.pause():  # Ray stops nothing that it is just starting
                raise BackendError(
                    f"Ray at {dashboard.address} did not accept the request to stop {app_id}",
                    hint="Try again.",
                )

    def cancel_many(self, app_ids: Iterable[str]) -> dict[str, ShunterError | None]:
        """Ask jobs to stop, several at a time: Ray takes one in a request."""
        ids = builtins.list(dict.fromkeys(app_ids))
        return dict(zip(ids, for_all(lambda app_id: attempt(self.cancel, app_id), ids), strict=True))

    def delete(self, app_id: str) -> None:
        """Remove Ray's record of a job that has ended, and the log that is kept here."""
        dashboard = self.dashboard_of(app_id)
        job = find_job(dashboard, app_id)
        if job is not None:
            if not is_terminal(job.state):
                raise not_ended(app_id, job.state)
            dashboard.ask("DELETE", job_path(app_id))
        logs.forget(app_id)

    # ---- housekeeping

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check address, token, nodes and options; compare a job with the nodes that are up."""
        checks = examine(cfg)
        if job is None:
            return checks
        return if_reachable(checks, lambda: examine_job(Dashboard.of(job.cfg), job.request))

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return logs that are kept here."""
        return logs.leftovers(older_than)

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them; returns how many bytes that frees."""
        return remove_leftovers(leftovers, lambda item: os.remove(item.id))

    # ---- logs

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return the lines of several replicas and all their attempts, in the order in which Ray got them."""
        if query.regex is not None:
            compile_regex(query.regex)
        dashboard = self.dashboard_of(app_id)
        try:
            job = find_job(dashboard, app_id)
        except UnreachableError:
            if not logs.kept_log(app_id):
                raise
            job = None
        if job is None:
            kept = logs.kept_log(app_id)
            if not kept:
                raise UnknownAppException(f"Ray does not know the job {app_id!r}")
            return logs.read_logs(kept, replicas, query)
        check_replicas(app_id, replicas, all_replicas(job.layout))
        if query.should_tail:
            return logs.follow(dashboard, job, replicas, query)
        text = logs.whole_log(dashboard, app_id)
        if is_terminal(job.state):
            logs.keep(app_id, text)
        return logs.read_logs(text, replicas, query, job.is_ours)


def create_scheduler(session_name: str, **kwargs: object) -> RayScheduler:
    """Make the scheduler. It takes no arguments."""
    return RayScheduler(session_name)
