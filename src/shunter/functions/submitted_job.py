"""A job as an object: look at it, wait for it, read its log and its result, stop it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shunter.errors import ResultError, UnknownAppException, UsageError
from shunter.functions.call_results import CallResults
from shunter.functions.job_display import html_of
from shunter.metrics import Series, read
from shunter.runner import Runner, get_runner
from shunter.runner.fetched_results import Fetched
from shunter.runner.jobsearch import recorded
from shunter.schedulers.api import LogQuery
from shunter.schedulers.lines import iter_lines
from shunter.specs.app import AppDef
from shunter.specs.handles import parse_app_handle
from shunter.specs.serialize import from_json
from shunter.specs.status import AppState, AppStatus, ReplicaStatus, RoleStatus
from shunter.why.explanation import Explanation, explain


class JobFailedError(ResultError):
    """A call has no result since its job, or the replica that made it, failed or was stopped.

    Attributes:
        job: the job.
        explanation: why it failed; None if it was stopped.
    """

    def __init__(
        self, message: str, job: Job, explanation: Explanation | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.job = job
        self.explanation = explanation


class Job:
    """A job that was submitted, on any scheduler.

    Args:
        handle: its handle, such as ``slurm://shunter/train-x1``.
    """

    def __init__(self, handle: str) -> None:
        parse_app_handle(handle)
        self.handle = handle

    def __repr__(self) -> str:
        return f"Job({self.handle!r})"

    def _repr_html_(self) -> str:
        return html_of(self.handle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.handle == other.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    @property
    def id(self) -> str:
        """The job's id, the last part of its handle."""
        return parse_app_handle(self.handle).app_id

    def status(self) -> AppStatus:
        """Return the job's state now, with those of its replicas.

        Raises:
            UnknownAppException: there is no such job.
        """
        with get_runner() as runner:
            return self._known(runner.status(self.handle))

    @property
    def state(self) -> AppState:
        """The job's state now."""
        return self.status().state

    def wait(self, timeout: float | None = None) -> AppStatus:
        """Block until the job has ended, or ``timeout`` seconds have passed; return its state then.

        Raises:
            UnknownAppException: there is no such job.
        """
        with get_runner() as runner:
            return self._known(runner.wait(self.handle, timeout=timeout))

    def _known(self, status: AppStatus | None) -> AppStatus:
        if status is None:
            raise UnknownAppException(f"there is no job {self.handle}")
        return status

    def log(
        self, role: str | None = None, replica: int | None = None, *, follow: bool = False
    ) -> Iterator[str]:
        """Yield the lines of the job's logs, without line ends, in about the order of their times.

        Args:
            role: only replicas of this role.
            replica: only replicas of this index.
            follow: go on until the job has ended.

        Raises:
            UsageError: the job has no such role or replica.
        """
        with get_runner() as runner:
            replicas = self._replicas(runner, role, replica)
            for block in runner.log_blocks(self.handle, replicas, LogQuery(should_tail=follow)):
                for line in iter_lines(block.data):
                    yield line.decode("utf-8", "replace").rstrip("\r\n")

    def _replicas(self, runner: Runner, role: str | None, replica: int | None) -> list[tuple[str, int]]:
        existing = runner.replicas(self.handle)
        chosen = [(name, k) for name, k in existing if role in (None, name) and replica in (None, k)]
        if not chosen and existing:
            what = f"role {role!r}" if role is not None else ""
            what += f"{' with a' if what else ''} replica {replica!r}" if replica is not None else ""
            names = ", ".join(f"{name}/{k}" for name, k in existing[:20])
            raise UsageError(f"{self.handle} has no {what.strip()}", hint=f"It has: {names}.")
        return chosen

    def why(self) -> Explanation:
        """Return why the job failed or waits, as ``shunter why`` finds it."""
        with get_runner() as runner:
            return explain(runner, self.handle, self._known(runner.status(self.handle)))

    def resume(self, arguments: Sequence[str] = (), *, name: str = "") -> Job:
        """Start a job that goes on from the last checkpoint of this one, which has to have ended; return it.

        Args:
            arguments: words that replace those of the job, such as ``["--epochs", "20"]``.
            name: name of the new job; that of this one unless given.

        Raises:
            ConfigError: the job has not ended, or has no checkpoints.
        """
        with get_runner() as runner:
            return Job(runner.rerun(self.handle, from_checkpoint=True, arguments=arguments, name=name))

    def metrics(self, *names: str) -> dict[str, list[Series]]:
        """Return the metrics that the job has reported so far, by name the series of each replica.

        Args:
            names: only these; all by default.
        """
        with get_runner() as runner:
            return read(runner, self.handle, names or None)

    def cancel(self) -> None:
        """Ask the job to stop. Does not wait for it; does nothing if it has ended."""
        with get_runner() as runner:
            runner.cancel(self.handle)

    def delete(self) -> None:
        """Remove what the scheduler keeps of the job, which has ended."""
        with get_runner() as runner:
            runner.delete(self.handle)

    def fetch(
        self, to: str, patterns: Sequence[str] = (), *, role: str | None = None, replica: int | None = None
    ) -> Fetched:
        """Bring files that the job left, or has written so far, to a directory of this machine.

        Args:
            to: the directory. Several replicas go to ``ROLE/K`` below it.
            patterns: which files, such as ``model/*``; all by default.
            role: only of this role.
            replica: only of this index.

        Raises:
            ConfigError: there are no such files, or one here differs. The others have been fetched.
            BackendError: a file could not be read. The others have been fetched.
        """
        with get_runner() as runner:
            return runner.fetch(self.handle, to, patterns, replicas=self._replicas(runner, role, replica))

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the job and return what its function returned; of several calls, a list.

        Args:
            timeout: seconds to wait at most; None for as long as it takes.

        Raises:
            Exception: what the function raised, with its traceback in the job as the cause.
            JobFailedError: the job failed without a result.
            TimeoutError: the job has not ended in time.
            ConfigError: the job calls no function.
        """
        with get_runner() as runner:
            results = call_results(runner, self.handle)
            status = self._known(runner.wait(self.handle, timeout=timeout))
            if not status.is_terminal():
                raise TimeoutError(f"{self.handle} is {status.state} after {timeout:g} s")
            values = [result_of(runner, results, index, status) for index in range(results.count)]
        return values if results.count > 1 else values[0]


def job(name: str) -> Job:
    """Return the job that a handle or the beginning of an id means; see `Runner.resolve_handle`.

    Raises:
        UnknownAppException: there is no such job.
        UsageError: several jobs match.
    """
    with get_runner() as runner:
        return Job(runner.resolve_handle(name))


def call_results(runner: Runner, handle: str) -> CallResults:
    """Return the results of a job of the history.

    Raises:
        ConfigError: the job calls no function.
        UnknownAppException: the history does not have it.
    """
    record = recorded(runner.history, handle, "read the result of")
    return CallResults.of_job(handle, from_json(AppDef, record.app))


def result_of(runner: Runner, results: CallResults, index: int, status: AppStatus) -> Any:
    """Return the result of a call whose replica has ended.

    Args:
        runner: reads it.
        results: those of the job.
        index: the call's number.
        status: the job's.

    Raises:
        Exception: what the function raised.
        JobFailedError: the job, or the call's replica, failed or was stopped.
        ResultError: the result is not there, or cannot be read.
    """
    state = state_of_call(results, index, status)
    if state == AppState.SUCCEEDED:
        return results.read(runner, index)
    if state == AppState.FAILED:
        results.raise_error(runner, index)
        raise _failed(runner, results, index, status)
    raise JobFailedError(f"{results.handle} is {state}, so it has no result", Job(results.handle))


def state_of_call(results: CallResults, index: int, status: AppStatus) -> AppState:
    """Return the state of the replica that makes a call, or of the job if all replicas make one call."""
    if results.count > 1:
        replica = _replica_of(results, index, status)
        if replica is not None and (replica.state in _ENDED or not status.is_terminal()):
            return replica.state
    return status.state


_ENDED = (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)


def _replica_of(results: CallResults, index: int, status: AppStatus) -> ReplicaStatus | None:
    for role in status.roles:
        if role.role == results.role:
            usual = role.replicas[index : index + 1]  # most backends give all, in order
            return next((each for each in (*usual, *role.replicas) if each.id == index), None)
    return None


def _failed(runner: Runner, results: CallResults, index: int, status: AppStatus) -> JobFailedError:
    """Return the error of a call whose replica failed without leaving an exception, such as a killed one."""
    shown = status
    replica = _replica_of(results, index, status) if results.count > 1 else None
    if replica is not None:
        shown = AppStatus(AppState.FAILED, msg=replica.reason, roles=[RoleStatus(replica.role, [replica])])
    explanation = explain(runner, results.handle, shown)
    failure = explanation.failure
    message = explanation.headline if failure is not None else (shown.reason or "the job failed")
    hint = failure.cause.advice if failure is not None else ""
    return JobFailedError(f"{results.handle}: {message}", Job(results.handle), explanation, hint or "")
