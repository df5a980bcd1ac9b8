"""`ray`: jobs on a Ray cluster, submitted over HTTP to the dashboard of its head."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shunter.backoff import Backoff
from shunter.errors import BackendError, ConfigError, ShunterError, UnknownAppException
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
    poll_until_ended,
)
from shunter.schedulers.capabilities import SEPARATE_STREAMS
from shunter.schedulers.ids import make_unique
from shunter.schedulers.lines import all_replicas, check_replicas, compile_regex
from shunter.schedulers.ray_scheduler import logs, observe, reasons, request
from shunter.schedulers.ray_scheduler.dashboard import Dashboard, DashboardUnreachableError, job_path
from shunter.schedulers.ray_scheduler.doctor import examine, examine_job
from shunter.schedulers.ray_scheduler.housekeeping import forget, leftovers, remove
from shunter.schedulers.ray_scheduler.logs import keep_end, kept_state
from shunter.schedulers.ray_scheduler.options import RayOpts
from shunter.schedulers.ray_scheduler.ray_package import RayPackage
from shunter.schedulers.ray_scheduler.remote_command import run_inside
from shunter.schedulers.ray_scheduler.request import RayRequest, make_request
from shunter.schedulers.ray_scheduler.rules import warnings_for
from shunter.schedulers.ray_scheduler.submission import submit
from shunter.specs.app import AppDef, Role, macros
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import make_app_handle
from shunter.specs.status import NONE, AppState, is_terminal
from shunter.specs.workspace import Workspace
from shunter.workspace.shipment import Shipment
from shunter.workspace.toolkit_files import ToolkitPlace

#: How long a job that Ray is just starting may ignore an order to stop, in seconds.
STOP_PATIENCE = 20.0


class RayScheduler(Scheduler[RayOpts]):
    """Runs jobs on a Ray cluster. See ``docs/schedulers/ray.md``."""

    capabilities = Capabilities(
        ships_by_default=True,
        list_filters=frozenset({"states", "since", "all"}),
        streams=SEPARATE_STREAMS,
        elastic=True,
        notes={"after": "by the job's driver", "exec": "without stdin and terminal"},
    )
    opts_class = RayOpts

    def __init__(self, session_name: str) -> None:
        super().__init__("ray", session_name)
        self._made: dict[str, Dashboard] = {}

    def close(self) -> None:
        """Close the connections. May be called more than once."""
        for dashboard in self._made.values():
            dashboard.close()

    # ---- which cluster

    def _dashboard(self, cfg: Mapping[str, Any], address: str = "") -> Dashboard:
        """Return the dashboard that options name, or the one at an address."""
        found = Dashboard.of(cfg, address)
        return self._made.setdefault(found.address, found)

    def connection(self) -> dict[str, Any]:
        """Return the configured options that say how a dashboard is reached."""
        configured = self.context.configured_options()
        return {name: configured[name] for name in ("headers", "verify") if configured.get(name) is not None}

    def dashboard_of(self, app_id: str) -> Dashboard:
        """Return the dashboard of the cluster that a job was sent to; the configured one by default."""
        native = self.context.native_id(app_id) or ""
        return self._dashboard(self.context.configured_options(), native.rpartition(" ")[0])

    # ---- code

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan the package with the code. A job without a workspace has one too: driver and toolkit."""
        return self._package(workspace or None, cfg)

    def _package(self, workspace: Workspace | None, cfg: Mapping[str, Any]) -> RayPackage:
        return RayPackage(workspace, lambda: self._dashboard(cfg))

    def _toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where the toolkit will be beside a replica's code; each replica gets a base directory."""
        return ToolkitPlace(
            ("python", "-S", f"{macros.img_root}/../toolkit.pyz"),
            code=macros.img_root,
            base=f"{macros.img_root}/../ml",
            env={"SHUNTER_INSTALLER": "none"},
        )

    # ---- submitting

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[RayRequest]:
        package = shipment if isinstance(shipment, RayPackage) else self._package(None, cfg)
        opts = self.opts_class(**cfg)
        app_id = make_unique(app.name)
        request = make_request(app, opts, app_id, self._dashboard(cfg).address, package.uri)
        if "notify" in request.plan:
            request.plan["notify"]["handle"] = make_app_handle("ray", self.session_name, app_id)
        info = AppDryRunInfo(request, str)
        info.app_id = app_id
        info.warnings = warnings_for(app, opts)
        return info

    def _depend_on(self, info: AppDryRunInfo[RayRequest], dependencies: Sequence[Dependency]) -> None:
        """Let the job's driver wait for other jobs of the same cluster, before it looks for room."""
        dashboard = self._dashboard(info.cfg)
        for dependency in dependencies:
            there = self.dashboard_of(dependency.app_id)
            if there.address != dashboard.address:
                raise ConfigError(
                    f"{dependency.app_id} is on the cluster {there.address}, "
                    f"and the job goes to {dashboard.address}",
                    hint="A job can only wait for jobs of the same cluster.",
                )
            if observe.find_job(dashboard, dependency.app_id) is None:
                raise UnknownAppException(f"Ray at {dashboard.address} has no job {dependency.app_id!r}")
        info.request.plan["after"] = [{"job": each.app_id, "any": each.any_end} for each in dependencies]

    def _check_before_shipping(self, info: AppDryRunInfo[Any]) -> None:
        """Check with one call that the cluster can be reached, and accepts our credentials."""
        self._dashboard(info.cfg).get("/api/version")

    def schedule(self, dryrun_info: AppDryRunInfo[RayRequest]) -> str:
        """Submit the job exactly once.

        Raises:
            BackendError: Ray refused it or could not be reached.
        """
        request = dryrun_info.request
        dashboard = self._dashboard(dryrun_info.cfg)
        submit(dashboard, request, dryrun_info.client_token)
        dryrun_info.native_id = f"{dashboard.address} {request.app_id}"
        return request.app_id

    # ---- observing

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the state of a job and its replicas; what was kept of its end if Ray has forgotten it."""
        dashboard = self.dashboard_of(app_id)
        job = observe.find_job(dashboard, app_id)
        if job is None:
            return self._kept(dashboard, app_id)
        document = observe.state_document(dashboard, app_id, job)
        response = observe.describe(dashboard, app_id, job, document)
        if is_terminal(response.state) and observe.is_ours(job):
            keep_end(dashboard, app_id)
        return response

    def _kept(self, dashboard: Dashboard, app_id: str) -> DescribeAppResponse | None:
        document = kept_state(app_id)
        if document is None or not document.get("state"):
            return None
        status = "STOPPED" if document["state"] == AppState.CANCELLED.name else document["state"]
        job = {"status": status, "metadata": {request.VERSION: ""}}
        response = observe.describe(dashboard, app_id, job, document)
        note = "as kept here; Ray has forgotten the job"
        response.msg = note if response.msg == NONE else f"{response.msg} ({note})"
        response.ui_url = None
        return response

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe several jobs by one request for each cluster, without their replicas."""
        wanted = builtins.list(app_ids)
        if len(wanted) == 1:
            return {wanted[0]: self.describe(wanted[0])}
        groups: dict[Dashboard, builtins.list[str]] = {}
        for app_id in wanted:
            groups.setdefault(self.dashboard_of(app_id), []).append(app_id)
        found: dict[str, DescribeAppResponse | None] = {}
        for dashboard, ids in groups.items():
            jobs = observe.all_jobs(dashboard)
            for app_id in ids:
                job = jobs.get(app_id)
                known = None if job is None else observe.brief(dashboard, app_id, job)
                found[app_id] = known or self._kept(dashboard, app_id)
        return found

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return the jobs of a cluster, the oldest first: one request.

        Args:
            cfg: ``dashboard_address``, and the filters of `list_filters`.
        """
        cfg = cfg or {}
        options = {name: cfg[name] for name in ("dashboard_address", "headers", "verify") if cfg.get(name)}
        jobs = observe.all_jobs(self._dashboard({**self.context.configured_options(), **options}))
        states, since = cfg.get("states"), cfg.get("since")
        wanted = frozenset(states) if states else None
        return observe.list_jobs(jobs.items(), wanted, since, everybodys=bool(cfg.get("all")))

    def exists(self, app_id: str) -> bool:
        """Tell whether Ray knows a job of this id."""
        return observe.find_job(self.dashboard_of(app_id), app_id) is not None

    def wait(self, app_id: str, timeout: float | None = None) -> DescribeAppResponse | None:
        """Block until the job ends, polling only the job and not its replicas."""
        dashboard = self.dashboard_of(app_id)

        def describe_job() -> DescribeAppResponse | None:
            job = observe.find_job(dashboard, app_id)
            return self._kept(dashboard, app_id) if job is None else observe.brief(dashboard, app_id, job)

        return None if poll_until_ended(describe_job, timeout) is None else self.describe(app_id)

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command where a replica runs, without stdin and terminal: those Ray does not give."""
        if not self.exists(app_id):
            raise UnknownAppException(f"Ray does not know the job {app_id!r}")
        return run_inside(self, app_id, role_name, k, command)

    # ---- ending

    def cancel(self, app_id: str) -> None:
        """Ask the job to stop: its replicas get SIGTERM, and SIGKILL after the grace period."""
        dashboard = self.dashboard_of(app_id)
        polls = Backoff(0.1, 1.0, limit=STOP_PATIENCE)
        while True:
            job = observe.find_job(dashboard, app_id)
            if job is None or is_terminal(reasons.state_of(job)):
                return
            answer = dashboard.post(f"{job_path(app_id)}/stop") or {}
            if answer.get("stopped"):
                return
            if not polls.pause():  # Ray stops nothing that it is just starting
                raise BackendError(
                    f"Ray at {dashboard.address} did not accept the request to stop {app_id}",
                    hint="Try again.",
                )

    def cancel_many(self, app_ids: Iterable[str]) -> dict[str, ShunterError | None]:
        """Ask jobs to stop, several at a time: Ray takes one in a request."""
        wanted = builtins.list(dict.fromkeys(app_ids))
        for app_id in wanted:  # the dashboards are made in this thread
            self.dashboard_of(app_id)
        return dict(zip(wanted, for_all(lambda app_id: attempt(self.cancel, app_id), wanted), strict=True))

    def delete(self, app_id: str) -> None:
        """Remove Ray's record of a job that has ended, and the log that is kept here."""
        dashboard = self.dashboard_of(app_id)
        job = observe.find_job(dashboard, app_id)
        if job is not None:
            state = reasons.state_of(job)
            if not is_terminal(state):
                raise not_ended(app_id, state)
            dashboard.delete(job_path(app_id))
        forget(app_id)

    # ---- housekeeping

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check address, token, nodes and options; compare a job with the nodes that are up."""
        checks = examine(cfg)
        if job is None:
            return checks
        return if_reachable(checks, lambda: examine_job(self._dashboard(job.cfg), job.request))

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return logs that are kept here."""
        return leftovers(older_than)

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them; returns how many bytes that frees."""
        return remove(leftovers)

    # ---- logs

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return the lines of several replicas and all their attempts, in the order in which Ray got them."""
        if query.regex is not None:
            compile_regex(query.regex)
        dashboard = self.dashboard_of(app_id)
        try:
            job = observe.find_job(dashboard, app_id)
        except DashboardUnreachableError:
            if logs.kept_log(app_id) is None:
                raise
            job = None
        if job is None:
            kept = logs.kept_log(app_id)
            if kept is None:
                raise UnknownAppException(f"Ray does not know the job {app_id!r}")
            return logs.read_logs(kept, replicas, query, None)
        check_replicas(app_id, replicas, all_replicas(observe.layout_of(job)))
        foreign = logs.foreign_replica(job)
        if query.should_tail:
            return logs.LogFollower(dashboard, app_id, replicas, query, foreign).blocks()
        text = logs.whole_log(dashboard, app_id) or ""
        if text and is_terminal(reasons.state_of(job)):
            logs.keep(app_id, text)
        return logs.read_logs(text, replicas, query, foreign)


def create_scheduler(session_name: str, **kwargs: object) -> RayScheduler:
    """Make the scheduler. It takes no arguments."""
    return RayScheduler(session_name)
