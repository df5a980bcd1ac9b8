"""What the schedulers share whose jobs are run by a supervisor of this machine: everything but submitting.

Nothing of a job lives in the process that submits it: all that is known is in the job's directory.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from shunter.errors import BackendError, StateStoreError, UnknownAppException
from shunter.paths import state_error
from shunter.schedulers.api import (
    DescribeAppResponse,
    Leftover,
    ListAppResponse,
    LogBlock,
    LogPart,
    LogQuery,
    LogRange,
    Scheduler,
    Stream,
    not_ended,
    not_running,
)
from shunter.schedulers.kept_results import LocalResults, ResultPlace, without_toolkit
from shunter.schedulers.lines import check_replicas, compile_regex
from shunter.schedulers.supervisor import lease, recovery
from shunter.schedulers.supervisor.details import SupervisedJobDetails
from shunter.schedulers.supervisor.housekeeping import leftovers, remove, remove_job
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.job_watch import JobWatch, wait_for_end
from shunter.schedulers.supervisor.log_ranges import read_part
from shunter.schedulers.supervisor.log_reader import ReplicaLog, follow_logs, read_logs
from shunter.schedulers.supervisor.observe import describe
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.status import AppState, is_terminal
from shunter.specs.training import specification
from shunter.system import processes
from shunter.system.identity import user_name

Opts = TypeVar("Opts")


class SupervisedScheduler(Scheduler[Opts], Generic[Opts]):
    """A scheduler whose jobs have a supervisor. Subclasses submit, and say what kind of jobs they have."""

    job_class: type[JobDirectory]

    # ---- observing

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Describe a job, after ending it as FAILED if its supervisor is gone."""
        job = self.job_class.find(app_id)
        return None if job is None else describe(job)

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all jobs of this machine's user, the oldest first."""
        rows = []
        for job in self.job_class.all():
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
        return self.job_class.find(app_id) is not None

    def wait(self, app_id: str, timeout: float | None = None) -> DescribeAppResponse | None:
        """Block until the job ends, without polling."""
        job = self.job_class.find(app_id)
        if job is None:
            return None
        wait_for_end(job, timeout)
        return self.describe(app_id)

    def details(self, app_id: str) -> SupervisedJobDetails:
        """Return what else can be asked about a job: its points' directories, and what it uses."""
        return SupervisedJobDetails(self.job_class.of(app_id))

    def _find(self, app_id: str) -> JobDirectory:
        """Return an existing job.

        Raises:
            UnknownAppException: no job has this id.
        """
        job = self.job_class.find(app_id)
        if job is None:
            raise UnknownAppException(f"{self.backend} has no job {app_id!r} on this machine")
        return job

    def _running_replica(self, job: JobDirectory, role_name: str, k: int) -> dict[str, Any]:
        """Return a replica of the state document, which runs.

        Raises:
            ConfigError: it does not run.
            UnknownAppException: the job has no such replica.
        """
        name = f"{job.name} {role_name}/{k}"
        check_replicas(job.name, [(role_name, k)], job.log_dirs())
        state = recovery.await_start(job, role_name, k)
        if state["state"] != AppState.RUNNING.name or not state["pid"]:
            raise not_running(name, state["state"])
        return state

    # ---- results

    def results(self, app_id: str, role_name: str, k: int) -> ResultPlace:
        """Return the results of a replica: directories of this machine."""
        job = self._find(app_id)
        check_replicas(app_id, [(role_name, k)], job.log_dirs())
        return self._results_of(job, role_name, k)

    def _results_of(self, job: JobDirectory, role_name: str, k: int) -> ResultPlace:
        """Return the results of a replica that the job has."""
        if not specification(job.recorded_role(role_name).get("metadata", {})):
            raise without_toolkit(job.name, role_name)
        return LocalResults.below(job.base_dir(role_name, k))

    # ---- ending

    def _cancel_existing(self, app_id: str) -> None:
        job = self.job_class.of(app_id)
        state = self._state_to_end(job)
        if state is not None:
            recovery.stop(job, state, by=user_name())

    def _state_to_end(self, job: JobDirectory) -> dict[str, Any] | None:
        """Return the state of a job that is to be cancelled; None if there is nothing to do."""
        state = recovery.current_state(job)
        if state is None or is_terminal(AppState[state["state"]]):
            return None
        if AppState[state["state"]] == AppState.UNREACHABLE:
            raise BackendError(
                f"cannot cancel {job.name} from here: {state['msg']}", hint=f"Cancel it on {state['host']}."
            )
        return state

    def _delete_existing(self, app_id: str) -> None:
        job = self.job_class.of(app_id)
        state = recovery.current_state(job)
        is_unknown = state is not None and state["state"] == AppState.UNKNOWN.name
        if state is not None and (
            processes.members_of_job(job.path) if is_unknown else not is_terminal(AppState[state["state"]])
        ):
            raise not_ended(app_id, state["state"])
        remove_job(job)

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return jobs that ended long enough ago, and what interrupted submissions left."""
        return leftovers(self.job_class, older_than)

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them, with their logs; returns how many bytes that frees."""
        return remove(self.job_class, leftovers)

    # ---- logs

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return lines of several replicas in order of time, to some milliseconds."""
        job = self._find(app_id)
        if query.regex is not None:
            compile_regex(query.regex)
        stream = Stream(query.streams) if query.streams is not None else Stream.COMBINED
        log_dirs = _log_dirs(job)
        check_replicas(app_id, replicas, log_dirs)
        logs = {key: ReplicaLog.at(log_dirs[key], job.index_path(*key), stream) for key in replicas}
        return _read(job, logs, query)

    def log_part(self, app_id: str, role_name: str, k: int, wanted: LogRange) -> LogPart | None:
        """Return a part of a replica's log, found by its index."""
        job = self._find(app_id)
        log_dirs = _log_dirs(job)
        check_replicas(app_id, [(role_name, k)], log_dirs)
        return read_part(log_dirs[role_name, k], job.index_path(role_name, k), wanted)


class TakesLocalLeases:
    """A mix-in for schedulers whose submission hands the lease of a race to the supervisor."""

    job_class: type[JobDirectory]

    def lease_place(self, info: AppDryRunInfo[Any]) -> tuple[str, str]:
        """Say that a job sees every folder of this machine."""
        return "", ""

    def lease_holder(self, app_id: str) -> str:
        """Return the handle of the job that has the lease of a job's race; "" if none has it."""
        document = self.job_class.of(app_id).read_request() or {}
        try:
            return lease.holder(document["lease"]) if "lease" in document else ""
        except OSError as error:
            raise state_error("read the lease of a race in", document["lease"], error) from error


def _log_dirs(job: JobDirectory) -> dict[tuple[str, int], str]:
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


def _read(job: JobDirectory, logs: dict[tuple[str, int], Any], query: LogQuery) -> Iterator[LogBlock]:
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
