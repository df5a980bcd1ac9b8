"""`Executor`: a `concurrent.futures.Executor` whose calls are jobs, on any scheduler."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shunter._toolkit import function_call, script_command
from shunter.components import train
from shunter.errors import ConfigError, UsageError
from shunter.functions.call_results import CallResults
from shunter.functions.debugging import called_here
from shunter.functions.futures import JobFuture, Watcher, cancel_all
from shunter.functions.packing import Call, check_call, pack
from shunter.runner import Runner, get_runner
from shunter.runner.calls import keep_call, key_of
from shunter.runner.config import effective_options
from shunter.specs.app import AppDef, RetryPolicy
from shunter.specs.job_words import job_of_words
from shunter.specs.submission import Submission
from shunter.specs.training import CALL_KEY, SWEEP_KEY, new_call
from shunter.specs.workspace import Workspace
from shunter.sweeps.planning import array_options, jobs_at_a_time, separate_results

DEBUG = "debug"
#: Calls of an array: the commands of all are given to each replica, and Linux limits their length.
MOST_CALLS = 5000


class Executor(concurrent.futures.Executor):
    """Runs functions as jobs.

    ::

        with shunter.Executor("slurm", partition="gpu", gpu=1, mem="16G", time="1h") as executor:
            futures = [executor.submit(train, lr) for lr in rates]  # a job each
            losses = list(executor.map(train, rates))  # one job, an array

    Every call is a job that ``list``, ``log``, ``why`` and ``rerun`` know. Functions of importable modules
    travel by name, with the code; those of ``__main__`` and of notebooks whole.

    Args:
        scheduler: where the jobs run; by default the configured one. ``debug`` makes the calls in this
            process.
        workspace: the code that travels, see `Workspace.from_str`; by default what ``shunter run`` would take
            on this scheduler.
        max_running: how many calls of this executor's arrays run at a time; None for as many as there is room
            for.
        job: the words that ``shunter run`` takes before a script (``gpu``, ``mem``, ``time``, ``nodes``,
            ``processes``, ``image``, ``env``, ``name``, ``retries``, ``output``, ...) and the scheduler's
            options. A call on several nodes or with several processes returns a list, by rank.

    Raises:
        ConfigError: a word or an option is wrong. All are checked here, before anything is submitted.
    """

    def __init__(
        self,
        scheduler: str = "",
        *,
        workspace: Workspace | str | None = None,
        max_running: int | None = None,
        **job: Any,
    ) -> None:
        if max_running is not None and max_running < 1:
            raise ConfigError(f"max_running={max_running}: at least one call has to run")
        self._max_running = max_running
        self._lock = threading.RLock()
        self._watcher = Watcher(self._start_waiting)
        self._batch: list[tuple[Call, JobFuture]] | None = None
        #: Calls that wait for others to end, where the backend has no arrays.
        self._waiting: deque[tuple[Call, JobFuture]] = deque()
        self._started: list[JobFuture] = []
        self._is_shut = False
        self._runner: Runner | None = None
        self.is_debug = scheduler == DEBUG
        if not self.is_debug:
            self._runner = get_runner()
            self._configure(scheduler, workspace, job)

    def _configure(self, scheduler: str, workspace: Workspace | str | None, job: Mapping[str, Any]) -> None:
        """Join words, options and configuration, as ``shunter run`` does for a script."""
        runner = self.runner
        config = runner.config
        chosen = config.command("run").get("scheduler")
        name = scheduler or (chosen.value if chosen is not None else "") or runner.default_scheduler()
        backend = runner.scheduler(name)
        name = backend.backend
        opts = runner.scheduler_run_opts(name)
        parameters, options = job_of_words(job, name, opts)
        configured = config.component("train.script")
        withheld = {key: value for key, value in configured.withheld.items() if key not in parameters}
        config.refuse_withheld(withheld, "component.train.script", "Or give it to the executor.")
        self._parameters = {**{key: setting.value for key, setting in configured.items()}, **parameters}
        if self._parameters.get("nproc", 1) > 1:
            self._parameters.setdefault("distribution", "torchrun")
        settings = effective_options(config, name, opts, options)
        cfg = {key: setting.value for key, setting in settings.items()}
        if workspace is None and backend.capabilities.ships_by_default:
            travelling = Workspace.implied()
        else:
            travelling = workspace if isinstance(workspace, Workspace) else Workspace.from_str(workspace)
        self._submission = Submission(scheduler=name, options=cfg, workspace=travelling)
        runner.plan(replace(self._submission, app=self._app([Call(function)], keep=False)))

    @property
    def runner(self) -> Runner:
        """The runner that submits the jobs."""
        if self._runner is None:
            raise UsageError("the executor was shut down, or calls in this process")
        return self._runner

    # ---- submitting

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobFuture:
        """Submit a call as a job; within `batch`, when that ends.

        Raises:
            ConfigError: the arguments do not fit the function, or cannot be pickled.
            BackendError: the scheduler refused.
        """
        call = Call(fn, args, kwargs)
        check_call(call)
        if self.is_debug:
            return called_here(call)
        with self._lock:
            self._refuse_if_shut()
            future = JobFuture()
            if self._batch is not None:
                self._batch.append((call, future))
            else:
                self._start([(call, future)])
            return future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """Submit a call for each group of arguments, as one array where the scheduler has arrays.

        Args:
            fn: the function.
            iterables: its arguments, as of the builtin `map`.
            timeout: seconds, from now on, after which the iterator raises `TimeoutError`.
            chunksize: how many calls a replica makes one after another.

        Returns:
            The results in order, each as soon as it is there. An exception of a call is raised in its turn.
        """
        if chunksize < 1:
            raise ConfigError(f"chunksize={chunksize}: a replica makes at least one call")
        groups = list(zip(*iterables, strict=False))
        chunks = [groups[start : start + chunksize] for start in range(0, len(groups), chunksize)]
        with self.batch():
            if chunksize == 1:
                futures = [self.submit(fn, *group) for group in groups]
            else:
                futures = [self.submit(function_call.call_each, fn, chunk) for chunk in chunks]
        return _in_order(futures, timeout, is_chunked=chunksize > 1)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Submit the calls that are made inside as one array, when the block ends without an exception."""
        with self._lock:
            self._refuse_if_shut()
            if self._batch is not None:
                raise UsageError("a batch cannot be inside another one")
            self._batch = []
        calls: list[tuple[Call, JobFuture]] = []
        try:
            yield
            with self._lock:
                calls, self._batch = self._batch, None
                if calls:
                    self._start(calls)
        except BaseException:
            with self._lock:
                for _, future in self._batch or calls:
                    future.cancel()
                self._batch = None
            raise

    def _start(self, calls: Sequence[tuple[Call, JobFuture]]) -> None:
        if len(calls) > MOST_CALLS:
            raise ConfigError(
                f"an array of {len(calls):,} calls is too large: it has at most {MOST_CALLS:,}",
                hint="Let a replica make several calls: map(function, ..., chunksize=10).",
            )
        backend = self.runner.scheduler(self._submission.scheduler)
        has_limit = self._max_running is None or "max_running" in backend.run_opts()
        is_one_replica = self._parameters.get("num_replicas", 1) == 1 == self._parameters.get("nproc", 1)
        if len(calls) == 1 or (backend.capabilities.arrays and has_limit and is_one_replica):
            self._submit_job(calls)
        else:
            self._waiting.extend(calls)
            self._start_waiting()

    def _start_waiting(self) -> None:
        """Submit calls that wait, as many as may run. The watcher calls this when others have ended."""
        with self._lock:
            if not self._waiting or self._runner is None:
                return
            limit = self._max_running
            if limit is None:
                backend = self._runner.scheduler(self._submission.scheduler)
                app = self._app([self._waiting[0][0]], keep=False)
                limit = jobs_at_a_time(backend, app, self._submission.options)
            self._started = [future for future in self._started if not future.done()]
            while self._waiting and (limit is None or len(self._started) < limit):
                call, future = self._waiting.popleft()
                if future.cancelled():
                    future.set_running_or_notify_cancel()
                    continue
                try:
                    self._submit_job([(call, future)])
                except Exception as error:
                    future.set_exception(error)
                    continue
                self._started.append(future)

    def _submit_job(self, calls: Sequence[tuple[Call, JobFuture]]) -> None:
        """Submit a job that makes calls, a replica for each."""
        app = self._app([call for call, _ in calls])
        submission = replace(self._submission, app=app)
        if len(calls) > 1:
            backend = self.runner.scheduler(submission.scheduler)
            options = array_options(backend, submission.options, self._max_running)
            submission = replace(submission, options=options)
        handle = self.runner.submit(submission)
        results = CallResults.of_job(handle, app)
        futures = [future for _, future in calls]
        for index, future in enumerate(futures):
            future.submitted(handle, index, futures)
        self._watcher.watch(results, futures)

    def _app(self, calls: Sequence[Call], *, keep: bool = True) -> AppDef:
        """Return the job that makes calls; ``keep`` says whether the calls are kept for it."""
        name = self._parameters.get("name") or calls[0].name.strip("<>")
        parameters = {**self._parameters, "name": name}
        app = train.script("call", script=script_command.TOOLKIT, **parameters)
        role = app.roles[0]
        role.name = name
        metadata = role.metadata[CALL_KEY] = new_call(len(calls))
        if keep:
            packed = pack(calls, key_of(metadata["nonce"]))
            metadata |= {"digest": keep_call(packed.data), "libraries": packed.libraries}
        if len(calls) > 1:
            role.num_replicas = len(calls)
            role.retry_policy = RetryPolicy.REPLICA
            role.metadata[SWEEP_KEY] = {
                "points": [
                    {"values": call.values(), "args": ["call", "--index", str(index)]}
                    for index, call in enumerate(calls)
                ]
            }
            separate_results(role)
        return app

    # ---- ending

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Jobs go on without the executor; calls that wait to be submitted need it.

        Args:
            wait: return when all calls have ended.
            cancel_futures: cancel the calls that have not been submitted.
        """
        with self._lock:
            self._is_shut = True
            if cancel_futures:
                for _, future in self._waiting:
                    future.cancel()
        if wait:
            self._watcher.join()
            with self._lock:
                if self._runner is not None:
                    self._runner.close()
                    self._runner = None

    def _refuse_if_shut(self) -> None:
        if self._is_shut:
            raise RuntimeError("cannot submit a call: the executor was shut down")


def function() -> None:
    """Plan with a call of this to check the options."""


def _in_order(futures: Sequence[JobFuture], timeout: float | None, *, is_chunked: bool) -> Iterator[Any]:
    """Yield results in order; cancel the calls that are left when the iterator is closed or a call fails."""
    end = None if timeout is None else time.monotonic() + timeout
    waiting = deque(futures)

    def results() -> Iterator[Any]:
        try:
            while waiting:
                left = None if end is None else end - time.monotonic()
                value = waiting[0].result(left)
                waiting.popleft()
                if is_chunked:
                    yield from value
                else:
                    yield value
        finally:
            cancel_all(waiting)

    return results()
