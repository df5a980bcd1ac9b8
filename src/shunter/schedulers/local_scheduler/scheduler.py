"""`local_cwd`: jobs as processes of this machine, in the directory they are submitted from or a workspace's.

Nothing of a job lives in the process that submits it: `schedule` starts a detached supervisor, and
everything else reads and writes the job's directory.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shunter.backoff import polling
from shunter.errors import BackendError, ConfigError, StateStoreError, UnknownAppException
from shunter.schedulers.api import (
    Check,
    Dependency,
    DescribeAppResponse,
    Leftover,
    ListAppResponse,
    LogBlock,
    LogPart,
    LogQuery,
    LogRange,
    Scheduler,
    Stream,
    if_reachable,
    not_ended,
    not_running,
)
from shunter.schedulers.capabilities import SEPARATE_STREAMS, Capabilities
from shunter.schedulers.ids import make_unique
from shunter.schedulers.lines import check_replicas, compile_regex
from shunter.schedulers.local_scheduler.details import LocalJobDetails
from shunter.schedulers.local_scheduler.doctor import examine, examine_job
from shunter.schedulers.local_scheduler.housekeeping import leftovers, remove, remove_job
from shunter.schedulers.local_scheduler.observe import describe
from shunter.schedulers.local_scheduler.options import LocalOpts
from shunter.schedulers.local_scheduler.request import LocalRequest, make_request
from shunter.schedulers.local_scheduler.submission import submit
from shunter.schedulers.supervisor import recovery
from shunter.schedulers.supervisor.job_directory import ProcessJob
from shunter.schedulers.supervisor.job_watch import JobWatch, wait_for_end
from shunter.schedulers.supervisor.log_ranges import read_part
from shunter.schedulers.supervisor.log_reader import ReplicaLog, follow_logs, read_logs
from shunter.schedulers.supervisor.process_command import run_beside
from shunter.specs.app import AppDef, Role
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.macro_substitution import macros
from shunter.specs.status import AppState, is_terminal
from shunter.specs.workspace import Workspace
from shunter.system import processes
from shunter.system.identity import user_name
from shunter.workspace.directory_shipment import DirectoryShipment, make_view, remove_view
from shunter.workspace.shipment import Shipment
from shunter.workspace.toolkit_files import ToolkitPlace, local_command, put_toolkit

#: For how long a command waits for a replica that was submitted just now.
STARTING_SECONDS = 5.0
_STARTING = frozenset({AppState.SUBMITTED.name, AppState.PENDING.name})


class LocalScheduler(Scheduler[LocalOpts]):
    """Runs jobs as processes of this machine. See `shunter.schedulers.local_scheduler`."""

    capabilities = Capabilities(
        notifies=True, is_local=True, streams=SEPARATE_STREAMS, arrays=True, ignores=("mounts", "elastic")
    )
    opts_class = LocalOpts

    def __init__(self, session_name: str) -> None:
        super().__init__("local_cwd", session_name)

    # ---- submitting

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan a working directory for the job. Without a workspace it runs where it is submitted from."""
        if not workspace:
            return None
        return DirectoryShipment(workspace)

    def _toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where the toolkit will be in the state directory; each replica gets a base directory."""
        base = ProcessJob.of(macros.app_id).base_dir(role.name, macros.replica_id)
        # This is the user's own Python: the user decides which requirements of a project are installed there.
        return ToolkitPlace(
            local_command(), code=macros.img_root, base=base, env={"SHUNTER_INSTALLER": "none"}
        )

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[LocalRequest]:
        app_id = make_unique(app.name)
        manifest = None if shipment is None else shipment.manifest
        sources = getattr(shipment, "sources", ())
        request = make_request(app, self.opts_class(**cfg), app_id, manifest, sources)
        info = AppDryRunInfo(request, str)
        info.app_id = app_id
        info.python, info.python_origin = request.python, request.python_origin
        return info

    def _depend_on(self, info: AppDryRunInfo[LocalRequest], dependencies: Sequence[Dependency]) -> None:
        """Have the job's supervisor wait for others' ends before it starts the replicas."""
        info.request.after = [
            {**vars(item), "job_dir": ProcessJob.of(item.app_id).path} for item in dependencies
        ]

    def schedule(self, dryrun_info: AppDryRunInfo[LocalRequest]) -> str:
        """Start the job's supervisor; the job runs when this returns.

        Raises:
            StateStoreError: the state directory cannot be written.
            BackendError: the supervisor could not be started.
        """
        if dryrun_info.app is not None and any(
            "train" in role.metadata or "program" in role.metadata for role in dryrun_info.app.roles
        ):
            put_toolkit()
        if dryrun_info.shipment is None:
            return submit(dryrun_info)
        return _submit_with_workspace(dryrun_info)

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check where jobs keep their files, and say what this machine has; compare a job with it."""
        app = None if job is None else job.app
        return examine() if app is None else if_reachable(examine(), lambda: examine_job(app))

    # ---- observing

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Describe a job, after ending it as FAILED if its supervisor is gone."""
        job = ProcessJob.find(app_id)
        return None if job is None else describe(job)

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all jobs of this machine's user, the oldest first."""
        rows = []
        for job in ProcessJob.all():
            document, state = job.read_request(), recovery.current_state(job)
            if state is None:
                continue
            row = ListAppResponse(job.name, AppState[state["state"]])
            replicas = [replica for role in state["roles"] for replica in role["replicas"]]
            attempts = [each for replica in replicas for each in (*replica.get("earlier", ()), replica)]
            starts = [each["started_at"] for each in attempts if each.get("started_at")]
            row.ended_at, row.started_at = state["ended_at"], min(starts, default=None)
            if document is not None:
                row.name, row.submitted_at = document["app"]["name"], document["created_at"]
            rows.append((row.submitted_at or 0.0, row))
        return [row for _, row in sorted(rows, key=lambda pair: pair[0])]

    def exists(self, app_id: str) -> bool:
        """Tell whether there is a job of this id."""
        return ProcessJob.find(app_id) is not None

    def wait(self, app_id: str, timeout: float | None = None) -> DescribeAppResponse | None:
        """Block until the job ends, without polling."""
        job = ProcessJob.find(app_id)
        if job is None:
            return None
        wait_for_end(job, timeout)
        return self.describe(app_id)

    def details(self, app_id: str) -> LocalJobDetails:
        """Return what else can be asked about a job: its points' directories, and what it uses."""
        return LocalJobDetails(app_id)

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command beside a replica: with its directory and environment, in its namespaces."""
        job = _find(app_id)
        state = recovery.current_state(job)
        if state is None:
            raise _unknown(app_id)
        check_replicas(app_id, [(role_name, k)], job.log_dirs())
        polls = polling(STARTING_SECONDS)
        while (replica := _replica(state, role_name, k))["state"] in _STARTING and not state["msg"]:
            if not polls.pause():
                break
            state = recovery.current_state(job) or state
        if replica["state"] != AppState.RUNNING.name or not replica["pid"]:
            raise not_running(f"{app_id} {role_name}/{k}", replica["state"])
        return run_beside(replica["pid"], f"{app_id} {role_name}/{k}", command)

    # ---- ending

    def _cancel_existing(self, app_id: str) -> None:
        job = ProcessJob.of(app_id)
        state = recovery.current_state(job)
        if state is None or is_terminal(AppState[state["state"]]):
            return
        if AppState[state["state"]] == AppState.UNREACHABLE:
            raise BackendError(
                f"cannot cancel {app_id} from here: {state['msg']}", hint=f"Cancel it on {state['host']}."
            )
        recovery.stop(job, state, by=user_name())

    def _delete_existing(self, app_id: str) -> None:
        job = ProcessJob.of(app_id)
        state = recovery.current_state(job)
        is_unknown = state is not None and state["state"] == AppState.UNKNOWN.name
        if state is not None and (
            processes.members_of_job(job.path) if is_unknown else not is_terminal(AppState[state["state"]])
        ):
            raise not_ended(app_id, state["state"])
        remove_job(job)

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return jobs that ended long enough ago, and what interrupted submissions left."""
        return leftovers(older_than)

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them, with their logs; returns how many bytes that frees."""
        return remove(leftovers)

    # ---- logs

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return lines of several replicas in order of time, to a quarter of a second."""
        job = _find(app_id)
        if query.regex is not None:
            compile_regex(query.regex)
        stream = Stream(query.streams) if query.streams is not None else Stream.COMBINED
        log_dirs = _log_dirs(job)
        check_replicas(app_id, replicas, log_dirs)
        logs = {key: ReplicaLog.at(log_dirs[key], job.index_path(*key), stream) for key in replicas}
        return _read(job, logs, query)

    def log_part(self, app_id: str, role_name: str, k: int, wanted: LogRange) -> LogPart | None:
        """Return a part of a replica's log, found by its index."""
        job = _find(app_id)
        log_dirs = _log_dirs(job)
        check_replicas(app_id, [(role_name, k)], log_dirs)
        return read_part(log_dirs[role_name, k], job.index_path(role_name, k), wanted)


def _find(app_id: str) -> ProcessJob:
    job = ProcessJob.find(app_id)
    if job is None:
        raise _unknown(app_id)
    return job


def _log_dirs(job: ProcessJob) -> dict[tuple[str, int], str]:
    """Return the log directory of every replica.

    Raises:
        StateStoreError: the job's document does not tell.
    """
    if job.read_request() is None:
        raise StateStoreError(
            f"cannot tell where the logs of {job.name} are: {job.file(job.REQUEST)} is damaged",
            hint=f"By default they are in {job.file('logs')}.",
        )
    return job.log_dirs()


def _unknown(app_id: str) -> UnknownAppException:
    return UnknownAppException(f"there is no local job {app_id!r}")


def _replica(state: dict[str, Any], role: str, index: int) -> dict[str, Any]:
    """Return a replica of a state document, which has none before its supervisor writes it."""
    found = {(group["role"], item["id"]): item for group in state["roles"] for item in group["replicas"]}
    replica: dict[str, Any] = found.get((role, index), {"state": state["state"], "pid": 0})
    return replica


def _submit_with_workspace(info: AppDryRunInfo[LocalRequest]) -> str:
    """Make the job's working directory and start the job; remove the directory if the job cannot start."""
    if not isinstance(info.shipment, DirectoryShipment):
        raise ConfigError(f"local_cwd cannot run a job from {type(info.shipment).__name__}")
    app_id = info.request.app_id
    if ProcessJob.of(app_id).exists():
        raise BackendError(f"the job {app_id} has been submitted already")
    make_view(info.shipment, app_id)
    try:
        return submit(info)
    except BaseException:
        if not ProcessJob.of(app_id).exists():
            remove_view(app_id)
        raise


def _read(job: ProcessJob, logs: dict[tuple[str, int], Any], query: LogQuery) -> Iterator[LogBlock]:
    try:
        if not query.should_tail:
            recovery.current_state(job)  # ends a job that no process runs
            yield from read_logs(logs, query)
            return
        watch = JobWatch(job, [log.index_path for log in logs.values()])
        try:
            if query.last is not None:
                yield from read_logs(logs, query, to_be_continued=True)
            yield from follow_logs(logs, query, watch, lambda: recovery.has_ended(job))
        finally:
            watch.close()
    except OSError as error:
        raise StateStoreError(f"cannot read the log of {job.name}: {error}") from error
    finally:
        for log in logs.values():
            log.close()


def create_scheduler(session_name: str, **kwargs: object) -> LocalScheduler:
    """Make the scheduler. It takes no arguments."""
    return LocalScheduler(session_name)
