"""submitit's executors: they submit functions by `shunter.Executor`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shunter.compat.submitit.failures import FailedSubmissionError
from shunter.compat.submitit.job_environment import FOLDER, TASKS_PER_NODE
from shunter.compat.submitit.job_parameters import OF_EXECUTOR, OWN, SHARED, checked, prefixed, words_of
from shunter.compat.submitit.jobs import DebugJob, Job, LocalJob, SlurmJob
from shunter.compat.submitit.submitted_function import checkpoint_of, submitted
from shunter.errors import ShunterError
from shunter.functions.executor import Executor
from shunter.functions.packing import Call

_SCHEDULERS = {"slurm": "slurm", "local": "local_cwd"}


R = TypeVar("R")


class AutoExecutor:
    """Submits functions to Slurm, to processes of this machine, or to this process.

    Args:
        folder: where jobs put links to their logs; ``%j`` stands for a job's id.
        cluster: ``slurm``, ``local`` or ``debug``; by default Slurm where there is one, else this machine.
        parameters: ``CLUSTER_max_num_timeout``, how often a call that says how to go on (``checkpoint``)
            is continued after its time limit, 3 times by default; ``CLUSTER_python``, which Python runs the
            jobs; ``CLUSTER_max_pickle_size_gb``, without effect.

    Raises:
        ValueError: there is no such cluster.
        TypeError: there is no such parameter.
    """

    def __init__(self, folder: Path | str, cluster: str | None = None, **parameters: Any) -> None:
        self.cluster = cluster or ("slurm" if shutil.which("srun") else "local")
        if self.cluster not in OWN:
            raise ValueError(f"there is no cluster {cluster!r}, only {', '.join(OWN)}")
        parameters = prefixed(parameters, {"slurm": set(OF_EXECUTOR)})
        for name in parameters:
            prefix, _, rest = name.partition("_")
            if prefix not in OWN or rest not in OF_EXECUTOR:
                raise TypeError(f"AutoExecutor has no parameter {name!r}")
        self.folder = Path(folder).expanduser().absolute()
        self._python: str = parameters.get(f"{self.cluster}_python") or sys.executable
        self._most_timeouts: int = parameters.get(f"{self.cluster}_max_num_timeout", 3)
        self.parameters: dict[str, Any] = {}
        self._executors: dict[tuple[int, str], Executor] = {}
        self._batch: list[tuple[Job[Any], Call]] | None = None

    def update_parameters(self, **parameters: Any) -> None:
        """Set parameters of the jobs that are submitted from now on.

        Args:
            parameters: ``name``, ``timeout_min``, ``mem_gb`` and ``gpus_per_node`` (of a node), ``nodes``,
                ``tasks_per_node``, ``cpus_per_task``, ``stderr_to_stdout``, and with the name of a cluster
                before them those that only it has, such as ``slurm_partition``. Those of other clusters have
                no effect.

        Raises:
            NameError: a parameter is not known.
            AssertionError: a shared one has a wrong type.
            RuntimeError: a batch is open.
        """
        if self._batch is not None:
            raise RuntimeError("parameters cannot change inside `with executor.batch()`")
        self.parameters |= checked(prefixed(parameters, OWN), self.cluster)
        self._executors.clear()

    def submit(self, fn: Callable[..., R], *args: Any, **kwargs: Any) -> Job[R]:
        """Submit a call; in `batch`, when that ends.

        Raises:
            FailedSubmissionError: it was refused; the cause says why.
        """
        call = Call(fn, args, kwargs)
        if self.cluster == "debug":
            return DebugJob(self.folder, call)
        job_class: type[Job[R]] = SlurmJob if self.cluster == "slurm" else LocalJob
        is_merged = self.parameters.get("stderr_to_stdout", False)
        job = job_class.of_future(self.folder, None, merges_streams=is_merged)
        if self._batch is not None:
            self._batch.append((job, call))
        else:
            self._submit([(job, call)])
        return job

    def map_array(self, fn: Callable[..., R], *iterable: Iterable[Any]) -> list[Job[R]]:
        """Submit a call for each group of arguments, as one array."""
        calls = list(zip(*iterable, strict=False))
        if not calls:
            return []
        with self.batch():
            return [self.submit(fn, *group) for group in calls]

    def submit_array(self, fns: Sequence[Callable[[], R]]) -> list[Job[R]]:
        """Submit calls of functions without arguments, as one array."""
        if not fns:
            return []
        with self.batch():
            return [self.submit(fn) for fn in fns]

    @contextlib.contextmanager
    def batch(self, allow_implicit_submissions: bool = False) -> Iterator[None]:
        """Submit the calls that are made inside as one array, when the block ends.

        Args:
            allow_implicit_submissions: not available.

        Raises:
            RuntimeError: a batch is open.
        """
        if self._batch is not None:
            raise RuntimeError("a batch cannot be inside another one")
        if allow_implicit_submissions:
            raise NotImplementedError("the calls of a batch are submitted together, when it ends")
        self._batch = []
        try:
            yield
            calls = self._batch
        finally:
            self._batch = None
        if calls:
            self._submit(calls)
        elif self.cluster != "debug":
            warnings.warn("the batch has no calls", RuntimeWarning, stacklevel=3)

    def _submit(self, jobs: Sequence[tuple[Job[Any], Call]]) -> None:
        # an array cannot be continued after its time limit
        goes_on = len(jobs) == 1 and checkpoint_of(jobs[0][1].function) and "timeout_min" in self.parameters
        try:
            executor = self._executor(1 + self._most_timeouts if goes_on else 1)
            with executor.batch():
                for job, call in jobs:
                    job.set_future(executor.submit(submitted(call.function), *call.args, **call.kwargs))
        except ShunterError as error:
            raise FailedSubmissionError(f"{error.message}. {error.hint or ''}".strip()) from error

    def _executor(self, attempts: int) -> Executor:
        """Return the executor for the current parameters and directory."""
        key = attempts, os.getcwd()
        if key not in self._executors:
            words = words_of(self.parameters, self.cluster)
            if attempts > 1:
                words["chain"] = attempts
            words["env"] = {
                "SHUNTER_PYTHON": self._python,
                "SHUNTER_USAGE": "0",  # programs read the logs' files
                FOLDER: str(self.folder),
                TASKS_PER_NODE: str(self.parameters.get("tasks_per_node", 1)),
            }
            self._executors[key] = Executor(_SCHEDULERS[self.cluster], **words)
        return self._executors[key]


class _ExecutorOfCluster(AutoExecutor):
    """An executor whose parameters need no prefix."""

    _cluster = ""

    def __init__(self, folder: Path | str, **parameters: Any) -> None:
        super().__init__(folder, self._cluster, **{f"{self._cluster}_{k}": v for k, v in parameters.items()})

    def update_parameters(self, **parameters: Any) -> None:
        """Set parameters of the jobs that are submitted from now on, by their names at the cluster.

        Raises:
            ValueError: a parameter is not known.
        """
        own = {k if k in SHARED else f"{self._cluster}_{k}": v for k, v in parameters.items()}
        try:
            super().update_parameters(**own)
        except NameError as error:
            raise ValueError(str(error)) from None


class SlurmExecutor(_ExecutorOfCluster):
    """Submits functions to Slurm."""

    _cluster = "slurm"


class LocalExecutor(_ExecutorOfCluster):
    """Submits functions to processes of this machine."""

    _cluster = "local"


class DebugExecutor(_ExecutorOfCluster):
    """Calls functions in this process."""

    _cluster = "debug"
