"""Futures of calls that run as jobs, and the thread that completes them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import html
import reprlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shunter.backoff import FIRST_POLL, LONGEST_POLL, Backoff
from shunter.errors import ResultError, ShunterError, UnknownAppException, UnreachableError
from shunter.functions.call_results import CallResults
from shunter.functions.job_display import html_of
from shunter.functions.submitted_job import Job, call_results, result_of, state_of_call
from shunter.redaction import redact_text
from shunter.runner import Runner, get_runner
from shunter.schedulers.api import CancelsReplicas
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState, AppStatus, is_terminal
from shunter.terminal import clean

#: Seconds between two looks at jobs of this machine, at first and at most: a look reads a file.
_FIRST_LOOK, _LONGEST_LOOK = 0.02, 0.2
#: After a look that saw calls end, how many times as long the next one waits, at most `_LONGEST_REST` s:
#: a look at thousands of calls takes long, and the calls need the CPUs.
_REST, _LONGEST_REST = 4.0, 2.0
#: How often a job that nobody knows is asked for before its futures fail: a backend may list it late.
_MOST_UNKNOWN = 5
#: Seconds that a result may be later than the end of its job, on shared storage or in a bucket.
_LATE_RESULT = 20.0
#: Characters of a result that a notebook shows.
_SHOWN_OUTCOME = 2000


class JobFuture(concurrent.futures.Future[Any]):
    """The outcome of a call that runs as a job, or as a replica of one.

    `cancel` works until the call has ended: it stops the job, or the replica.

    Attributes:
        job: the job; None as long as the call waits to be submitted.
        index: the call's number among those of the job.
    """

    def __init__(self) -> None:
        super().__init__()
        self.job: Job | None = None
        self.index = 0
        self.last_state = AppState.UNSUBMITTED
        self._of_job: Sequence[JobFuture] = ()
        self._is_stopped = False

    def submitted(self, handle: str, index: int, of_job: Sequence[JobFuture]) -> None:
        """Note the job that makes the call, and all futures of that job."""
        self.job, self.index, self._of_job = Job(handle), index, of_job

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what the call returned or raised, if it has ended, and its job."""
        if self.cancelled():
            outcome = "cancelled"
        elif not self.done():
            outcome = "has not ended"
        elif (error := self.exception()) is not None:
            outcome = f"raised {type(error).__name__}: {error}"
        else:
            outcome = f"returned {reprlib.repr(self.result())}"
        text = html.escape(clean(redact_text(outcome[:_SHOWN_OUTCOME])))
        return f"<p>Call {self.index} {text}</p>\n" + (html_of(self.job.handle) if self.job else "")

    def cancel(self) -> bool:
        """Stop the call; False if it has ended."""
        return cancel_all([self])

    def stop(self) -> None:
        """Stop the job if none of its calls is wanted any more, or else the replica that makes this call.

        Where single replicas cannot be stopped, the others have to go on, so the call does too.
        """
        if self.job is None or self._is_stopped:
            return
        is_last = all(future.done() for future in self._of_job)
        for future in self._of_job if is_last else [self]:
            future._is_stopped = True
        with get_runner() as runner:
            if is_last:
                runner.cancel(self.job.handle)
            elif isinstance(
                runner.scheduler(parse_app_handle(self.job.handle).scheduler_backend), CancelsReplicas
            ):
                results = call_results(runner, self.job.handle)
                runner.cancel_replicas(self.job.handle, [(results.role, self.index)])

    def running(self) -> bool:
        """Tell whether the call's job was running when it was last looked at."""
        return not self.done() and self.last_state == AppState.RUNNING

    def finish(self, value: Any = None, error: BaseException | None = None) -> None:
        """Set what the call returned or raised, unless the future was cancelled."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error.with_traceback(None))  # its cause has the traceback in the job


class _WatchedJob:
    """A job whose futures are to be completed."""

    def __init__(self, results: CallResults, futures: Sequence[JobFuture]) -> None:
        self.results = results
        self.open = dict(enumerate(futures)) if len(futures) > 1 else {futures[0].index: futures[0]}
        self.unknown = 0
        self.late: Backoff | None = None

    def look(self, runner: Runner, status: AppStatus | None) -> int:
        """Complete the futures whose calls have ended; returns how many."""
        if status is None:
            return self._not_known()
        self.unknown = 0
        before = len(self.open)
        for index, future in list(self.open.items()):
            if future.cancelled():
                future.set_running_or_notify_cancel()
                del self.open[index]
                continue
            future.last_state = state_of_call(self.results, index, status)
            if is_terminal(future.last_state) and self._complete(runner, future, index, status):
                del self.open[index]
        return before - len(self.open)

    def _complete(self, runner: Runner, future: JobFuture, index: int, status: AppStatus) -> bool:
        """Complete a future; False if its result may only be late."""
        if future.last_state == AppState.CANCELLED:
            if concurrent.futures.Future.cancel(future):
                future.set_running_or_notify_cancel()
            return True
        try:
            future.finish(result_of(runner, self.results, index, status))
        except UnreachableError:  # which says nothing about the result
            return False
        except ResultError as error:
            if future.last_state == AppState.SUCCEEDED and not self._is_over(runner):
                return False
            future.finish(error=error)
        except Exception as error:
            future.finish(error=error)
        return True

    def _is_over(self, runner: Runner) -> bool:
        """Tell whether a result that is not there will not come any more."""
        scheduler = runner.scheduler(parse_app_handle(self.results.handle).scheduler_backend)
        if scheduler.capabilities.is_local:
            return True
        if self.late is None:
            self.late = Backoff(FIRST_POLL, limit=_LATE_RESULT).start()
        return self.late.left() == 0

    def _not_known(self) -> int:
        self.unknown += 1
        if self.unknown < _MOST_UNKNOWN:
            return 0
        error = UnknownAppException(f"{self.results.handle} no longer exists, so its result is not known")
        return self.fail(error)

    def fail(self, error: Exception) -> int:
        """Let the open futures fail; returns how many."""
        count = len(self.open)
        for future in self.open.values():
            future.finish(error=error)
        self.open.clear()
        return count


class Watcher:
    """A thread that looks at jobs, several with one call, and completes their futures.

    Args:
        on_end: called in the thread when calls have ended.
    """

    def __init__(self, on_end: Callable[[], None] = lambda: None) -> None:
        self._on_end = on_end
        self._jobs: list[_WatchedJob] = []
        self._added = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, results: CallResults, futures: Sequence[JobFuture]) -> None:
        """Complete the futures of a job's calls when these end."""
        with self._lock:
            self._jobs.append(_WatchedJob(results, futures))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shunter-futures", daemon=True)
                self._thread.start()
        self._added.set()

    def join(self) -> None:
        """Wait until all futures are complete."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        with get_runner() as runner:
            pause = self._new_pause(runner)
            while True:
                with self._lock:
                    self._jobs = [job for job in self._jobs if job.open]
                    jobs = list(self._jobs)
                    if not jobs:
                        self._thread = None
                        return
                began = time.monotonic()
                if self._look(runner, jobs):
                    self._on_end()
                    pause = self._new_pause(runner)
                    time.sleep(min(_LONGEST_REST, _REST * (time.monotonic() - began)))
                elif self._added.is_set():
                    self._added.clear()
                    pause = self._new_pause(runner)
                else:
                    pause.pause()

    def _look(self, runner: Runner, jobs: Sequence[_WatchedJob]) -> int:
        """Look at all jobs; returns how many futures were completed."""
        try:
            statuses = runner.statuses([job.results.handle for job in jobs])
        except Exception as error:  # without this thread, nobody would complete the futures
            return sum(job.fail(error) for job in jobs) if not isinstance(error, ShunterError) else 0
        count = 0
        for job in jobs:
            try:
                count += job.look(runner, statuses[job.results.handle])
            except Exception as error:  # likewise
                count += job.fail(error)
        return count

    def _new_pause(self, runner: Runner) -> Backoff:
        """Return the delays between looks: short ones while all jobs are of this machine."""
        with self._lock:
            names = {parse_app_handle(job.results.handle).scheduler_backend for job in self._jobs}
        if all(runner.scheduler(name).capabilities.is_local for name in names):
            return Backoff(_FIRST_LOOK, _LONGEST_LOOK, factor=1.3, jitter=0, stop=self._added)
        return Backoff(FIRST_POLL, LONGEST_POLL, factor=1.5, jitter=0, stop=self._added)


def cancel_all(futures: Iterable[JobFuture]) -> bool:
    """Cancel calls; a job whose calls are all cancelled is stopped by one request.

    Returns:
        Whether all are cancelled: a call that has ended is not.
    """
    outcomes = [(future, concurrent.futures.Future.cancel(future)) for future in futures]
    for future, is_cancelled in outcomes:
        if is_cancelled:
            future.stop()
    return all(is_cancelled for _, is_cancelled in outcomes)


_watcher = Watcher()


def futures(name: str) -> list[JobFuture]:
    """Return the futures of all calls of a job that was submitted before, in order.

    Args:
        name: the job, as `shunter.job` takes it.

    Raises:
        UnknownAppException: there is no such job.
        ConfigError: it calls no function.
    """
    with get_runner() as runner:
        handle = runner.resolve_handle(name)
        results = call_results(runner, handle)
    made = [JobFuture() for _ in range(results.count)]
    for index, made_future in enumerate(made):
        made_future.submitted(handle, index, made)
    _watcher.watch(results, made)
    return made


def future(name: str) -> JobFuture:
    """Return the future of a job's only call; see `futures`.

    Raises:
        ResultError: the job makes several calls.
    """
    made = futures(name)
    if len(made) > 1:
        raise ResultError(
            f"{name} makes {len(made)} calls", hint="shunter.futures(NAME) returns all of them."
        )
    return made[0]
