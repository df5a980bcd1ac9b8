"""A submitted call, as submitit's `Job`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import uuid
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from shunter.compat.submitit.failures import FailedJobError, UncompletedJobError
from shunter.compat.submitit.job_environment import DEBUG_ID, JobPaths, environment_variables
from shunter.compat.submitit.submitted_function import DelayedSubmission
from shunter.errors import ShunterError
from shunter.functions.call_results import CallResults, RemoteTraceback
from shunter.functions.debugging import called_here
from shunter.functions.futures import JobFuture, futures
from shunter.functions.packing import Call
from shunter.functions.submitted_job import JobFailedError, call_results, state_of_call
from shunter.runner import get_runner
from shunter.schedulers.api import LogQuery, Stream
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState

R = TypeVar("R")

#: Our states in submitit's words, which are Slurm's.
_STATES = {
    AppState.SUCCEEDED: "COMPLETED",
    AppState.FAILED: "FAILED",
    AppState.CANCELLED: "CANCELLED",
    AppState.RUNNING: "RUNNING",
    AppState.UNKNOWN: "UNKNOWN",
    AppState.UNREACHABLE: "UNKNOWN",
}
#: Causes of failures, likewise.
_FAILURES = {"timeout": "TIMEOUT", "out_of_memory": "OUT_OF_MEMORY", "node_lost": "NODE_FAIL"}


class Job(Generic[R]):
    """A call that was submitted; ``Job[int]`` is one that returns a number.

    Args:
        folder: the executor's.
        job_id: the id of a job of the history; of a call of an array, with ``_`` and its number.
        tasks: the task that this object stands for, as one element.

    Raises:
        UnknownAppException: there is no such job.
    """

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        name, _, index = job_id.rpartition("_")
        self._prepare(folder, futures(name or job_id)[int(index) if name else 0], tasks[0])

    def _prepare(self, folder: Path | str, future: JobFuture | None, task: int = 0) -> None:
        self._folder = folder
        self._submitted = future
        self.task_id = task
        self._is_one_task = False
        self._merges_streams = False
        self._canceller: Any = None

    @classmethod
    def of_future(
        cls, folder: Path | str, future: JobFuture | None, *, merges_streams: bool = False
    ) -> Job[R]:
        """Return the job of a call; ``future`` is None until `set_future` gives it."""
        job = cls.__new__(cls)
        job._prepare(folder, future)
        job._merges_streams = merges_streams
        return job

    def set_future(self, future: JobFuture) -> None:
        """Note what the call was submitted as."""
        self._submitted = future

    @property
    def _future(self) -> JobFuture:
        if self._submitted is None:
            raise AttributeError("the job is submitted when the batch ends, so it cannot be used before")
        return self._submitted

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._folder, self.job_id, (self.task_id,))

    def __repr__(self) -> str:
        job_id = getattr(self, "job_id", "not submitted")
        return f"{type(self).__name__}<job_id={job_id}, task_id={self.task_id}>"

    # ---- what it is

    @property
    def _handle(self) -> str:
        if self._future.job is None:
            raise AttributeError("the job has no id before others of its batch have ended")
        return self._future.job.handle

    @functools.cached_property
    def _results(self) -> CallResults:
        with get_runner() as runner:
            return call_results(runner, self._handle)

    @property
    def job_id(self) -> str:
        """The job's id; of a call of an array, with ``_`` and its number."""
        name = parse_app_handle(self._handle).app_id
        return f"{name}_{self._future.index}" if self._results.count > 1 else name

    @property
    def num_tasks(self) -> int:
        """How many processes make the call."""
        count: int = self._results.ranks
        return count

    @property
    def paths(self) -> JobPaths:
        """Where links to its logs are."""
        return JobPaths(self._folder, self.job_id, self.task_id)

    @property
    def state(self) -> str:
        """Its state now, in Slurm's words: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, UNKNOWN."""
        if self._future.job is None:
            return "PENDING"
        with get_runner() as runner:
            status = runner.status(self._handle)
            if status is None:
                return "UNKNOWN"
            state = state_of_call(self._results, self._future.index, status)
        return _STATES.get(state, "PENDING")

    def task(self, task_id: int) -> Job[R]:
        """Return one of the processes that make the call together, as a job.

        Raises:
            ValueError: it has fewer tasks.
        """
        count = self.num_tasks
        if not 0 <= task_id < count:
            raise ValueError(f"task {task_id} of {self.job_id} must be between 0 and {count - 1}")
        if count == 1:
            return self
        job = self.of_future(self._folder, self._future, merges_streams=self._merges_streams)
        job.task_id, job._is_one_task = task_id, True
        return job

    # ---- waiting and results

    def done(self, force_check: bool = False) -> bool:
        """Tell whether it has ended. ``force_check`` has no effect, since jobs are looked at all the time."""
        return self._future.done()

    def wait(self) -> None:
        """Block until it has ended."""
        concurrent.futures.wait([self._future])

    def results(self) -> list[R]:
        """Wait, and return what its tasks returned, in their order.

        Raises:
            FailedJobError: the function raised an exception, which is the cause.
            UncompletedJobError: there is no result.
        """
        error = self.exception()
        if error is not None:
            raise error
        values: list[R] = self._future.result() if self.num_tasks > 1 else [self._future.result()]
        return [values[self.task_id]] if self._is_one_task else values

    def result(self) -> R:
        """Wait, and return what the function returned.

        Raises:
            FailedJobError: the function raised an exception, which is the cause.
            UncompletedJobError: there is no result.
            AssertionError: it has several tasks, whose values `results` returns.
        """
        values = self.results()
        assert len(values) == 1, "a job with several tasks has results()"
        return values[0]

    def exception(self) -> Exception | None:
        """Wait, and return why there is no result; None if there is one."""
        try:
            error: Any = self._future.exception()
        except concurrent.futures.CancelledError:
            return UncompletedJobError(f"{self!r} was cancelled")
        if error is None:
            return None
        if isinstance(error.__cause__, RemoteTraceback):
            failed = FailedJobError(f"{self!r}: the function raised an exception:\n{error.__cause__.text}")
            failed.__cause__ = error
            return failed
        if isinstance(error, ShunterError):
            missing = UncompletedJobError(
                f"{self!r} has no result: {error.message}. {error.hint or ''}".strip()
            )
            missing.__cause__ = error
            return missing
        exception: Exception | None = error
        return exception

    def submission(self) -> DelayedSubmission:
        """Return the function and the arguments that were submitted."""
        function, args, kwargs = self._results.call(self._future.index)
        return DelayedSubmission(getattr(function, "func", function), *args, **kwargs)

    def awaitable(self) -> AwaitableJob[R]:
        """Return its methods as coroutines."""
        return AwaitableJob(self)

    # ---- stopping and logs

    def cancel(self, check: bool = True) -> None:
        """Stop it. ``check`` has no effect: a failure is raised."""
        self._future.cancel()

    def cancel_at_deletion(self, value: bool = True) -> Job[R]:
        """Stop it when this object, or the program, ends; or no longer do so."""
        if self._canceller is not None:
            self._canceller.detach()
        self._canceller = weakref.finalize(self, self._future.cancel) if value else None
        return self

    def stdout(self) -> str | None:
        """Return what it has written to its standard output so far; None if it has not begun."""
        return self._log(Stream.COMBINED if self._merges_streams else Stream.STDOUT)

    def stderr(self) -> str | None:
        """Return what it has written to its standard error; None with ``stderr_to_stdout``."""
        return None if self._merges_streams else self._log(Stream.STDERR)

    def _log(self, stream: Stream) -> str | None:
        if self._future.job is None:
            return None
        with get_runner() as runner:
            replicas = runner.replicas(self._handle)
            if self._results.count > 1:
                replicas = [replicas[self._future.index]]
            elif self._is_one_task:
                replicas = [replicas[self.task_id]]
            query = LogQuery(streams=stream)
            try:
                data = b"".join(block.data for block in runner.log_blocks(self._handle, replicas, query))
            except ShunterError:
                if not self.done():
                    return None
                raise
        return data.decode("utf-8", "replace")


class SlurmJob(Job[R]):
    """A job on Slurm."""

    @property
    def state(self) -> str:
        """Its state now, in Slurm's words; also TIMEOUT, OUT_OF_MEMORY and NODE_FAIL."""
        state = super().state
        error = self._future.exception() if state == "FAILED" and self.done() else None
        explanation = error.explanation if isinstance(error, JobFailedError) else None
        failure = explanation and explanation.failure
        return _FAILURES.get(failure.cause.name, state) if failure else state


class LocalJob(Job[R]):
    """A job on this machine."""

    @property
    def state(self) -> str:
        """RUNNING until its end, then FINISHED if the function returned or raised, else INTERRUPTED."""
        if not self.done():
            return "RUNNING"
        return "INTERRUPTED" if type(self.exception()) is UncompletedJobError else "FINISHED"


class DebugJob(Job[R]):
    """A call that is made in this process when something asks for its outcome."""

    def __init__(self, folder: Path | str, call: Call) -> None:
        self._prepare(folder, JobFuture())
        self._submission = DelayedSubmission(call.function, *call.args, **call.kwargs)
        self._id = f"DEBUG_{uuid.uuid4().hex[:12]}"

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._id

    @property
    def num_tasks(self) -> int:
        """How many processes make the call."""
        return 1

    @property
    def state(self) -> str:
        """QUEUED before the call, then DONE; or CANCELLED."""
        if self._future.cancelled():
            return "CANCELLED"
        return "DONE" if self._future.done() else "QUEUED"

    def done(self, force_check: bool = False) -> bool:
        """Make the call, and return True."""
        self.wait()
        return True

    def wait(self) -> None:
        """Make the call, unless it was made or cancelled."""
        if not self._future.done():
            with environment_variables(**{DEBUG_ID: self._id}):
                self.set_future(called_here(Call(self._submission.result)))

    def submission(self) -> DelayedSubmission:
        """Return the call."""
        return self._submission

    def exception(self) -> Exception | None:
        """Make the call, and return what it raised, as it is."""
        self.wait()
        return super().exception()

    def _log(self, stream: Stream) -> str | None:
        return None  # it was written to this process's own


class AwaitableJob(Generic[R]):
    """The methods of a job that wait, as coroutines.

    Args:
        job: the job.
    """

    def __init__(self, job: Job[R]) -> None:
        self._job = job

    async def wait(self) -> None:
        """Wait for its end. A coroutine that is cancelled does not cancel the job."""
        future = asyncio.wrap_future(self._job._future)
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # asyncio reports exceptions that nobody looks at

    async def result(self) -> R:
        """Return what the function returned; see `Job.result`."""
        await self.wait()
        return self._job.result()

    async def results(self) -> list[R]:
        """Return what the tasks returned; see `Job.results`."""
        await self.wait()
        return self._job.results()

    async def exception(self) -> Exception | None:
        """Return why there is no result; None if there is one."""
        await self.wait()
        return self._job.exception()

    def results_as_completed(self) -> Iterator[Any]:
        """Yield a coroutine for the value of each task."""
        return iter([AwaitableJob(self._job.task(k)).result() for k in range(self._job.num_tasks)])
