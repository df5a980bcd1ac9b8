"""submitit's helpers."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from shunter._toolkit.current import current
from shunter.compat.submitit.failures import FailedJobError
from shunter.compat.submitit.job_environment import JobEnvironment
from shunter.compat.submitit.submitted_function import DelayedSubmission as DelayedSubmission
from shunter.git import checkout_of

if TYPE_CHECKING:
    from shunter.compat.submitit.jobs import Job

R = TypeVar("R")


class Checkpointable:
    """A callable that, when its job was stopped, is called again with the same arguments as it is then."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Take whatever arguments the class is made with, also where it has no ``__init__``."""
        return super().__new__(cls)

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedSubmission:
        """Return what is to be called after the restart."""
        return DelayedSubmission(self, *args, **kwargs)  # type: ignore[arg-type]


class FunctionSequence(Checkpointable):
    """Calls functions one after another; those that have ended are not repeated after a restart.

    Args:
        verbose: whether to print with which it begins.
    """

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self.delayed_functions: list[DelayedSubmission] = []

    def add(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Add a call."""
        self.delayed_functions.append(DelayedSubmission(func, *args, **kwargs))

    def __len__(self) -> int:
        return len(self.delayed_functions)

    def __iter__(self) -> Iterator[DelayedSubmission]:
        return iter(self.delayed_functions)

    def __call__(self) -> list[Any]:
        """Make the calls that were not made; return the values of all."""
        if self.verbose:
            sys.stdout.write(f"Starting from {sum(call.done() for call in self)}/{len(self)}\n")
        return [call.result() for call in self]


class CommandFunction:
    """A command as a function, which returns what it prints.

    Args:
        command: its words. Arguments of the call are added: ``f(1, lr=2)`` adds ``1 --lr=2``.
        verbose: whether its output is printed too.
        cwd: the directory to run in.
        env: variables for it besides those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        verbose: bool = True,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(command, str):
            raise TypeError("a command is a list of words")
        self.command = list(command)
        self.verbose = verbose
        self.cwd = cwd
        self.env = env

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Run the command.

        Raises:
            FailedJobError: it failed; the message has what it wrote to its standard error.
        """
        words = [*self.command, *map(str, args), *(f"--{name}={value}" for name, value in kwargs.items())]
        lines = []
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self.cwd,
                env={**os.environ, **(self.env or {})},
            )
            with process:
                for line in process.stdout or ():
                    lines.append(line)
                    if self.verbose:
                        sys.stdout.write(line)
                        sys.stdout.flush()
            errors.seek(0)
            message = errors.read()
        if process.returncode:
            raise FailedJobError(f"{words[0]} failed with code {process.returncode}:\n{message}")
        return "".join(lines).strip()


class RsyncSnapshot:
    """A copy of a Git repository's files; inside of the ``with`` block it is the current directory.

    So jobs that are submitted there run in the copy, and import its code.

    Args:
        snapshot_dir: where the copy goes; on a cluster, a directory that the nodes see.
        root_dir: a directory of the repository; by default the current one.
        with_submodules: whether files of submodules are copied too.
        exclude: patterns of files and directories that are left out: of names, or of paths if with a ``/``.
        include: files that are copied although Git does not know them, relative to the repository.
    """

    def __init__(
        self,
        snapshot_dir: Path | str,
        root_dir: Path | str | None = None,
        with_submodules: bool = False,
        exclude: Sequence[str] = (),
        include: Sequence[str] = (),
    ) -> None:
        self.snapshot_dir = Path(snapshot_dir).absolute()
        self.original_dir = Path.cwd()
        self._root = checkout_of(str(Path(root_dir or ".").absolute())) or str(root_dir or self.original_dir)
        self._submodules = ["--recurse-submodules"] if with_submodules else []
        self._excluded = list(exclude)
        self._included = include

    @staticmethod
    def available() -> bool:
        """Tell whether this machine has Git; rsync is not needed."""
        return shutil.which("git") is not None

    def __enter__(self) -> RsyncSnapshot:
        """Make the copy and go there.

        Raises:
            FailedJobError: Git failed; the message has what it said.
        """
        self.original_dir = Path.cwd()
        self.snapshot_dir.mkdir(parents=True, exist_ok=True)
        listing = CommandFunction(["git", "ls-files", "-z", *self._submodules], verbose=False, cwd=self._root)
        for name in filter(None, [*listing().split("\0"), *self._included]):
            if not self._is_excluded(name):
                self._copy(name)
        os.chdir(self.snapshot_dir)
        return self

    def _is_excluded(self, name: str) -> bool:
        parts = name.split("/")
        paths = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        return any(
            fnmatchcase(candidate, pattern.strip("/"))
            for pattern in self._excluded
            for candidate in (paths if "/" in pattern.rstrip("/") else parts)
        )

    def _copy(self, name: str) -> None:
        source, target = Path(self._root, name), self.snapshot_dir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir() and not source.is_symlink():  # a submodule
            target.mkdir(exist_ok=True)
        else:
            target.unlink(missing_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)

    def __exit__(self, *_: object) -> None:
        os.chdir(self.original_dir)


class TorchDistributedEnvironment:
    """What ``torch.distributed`` needs to know of this process."""

    def __init__(self) -> None:
        job = JobEnvironment()
        self.master_addr: str = current().master_address
        self.master_port: int = 20000 + zlib.crc32(job.job_id.encode()) % 40000  # the same for all tasks
        self.rank: int = job.global_rank
        self.world_size: int = job.num_tasks
        self.local_rank: int = job.local_rank
        self.local_world_size: int = job.num_tasks // job.num_nodes

    def export(
        self, set_cuda_visible_devices: bool = True, overwrite: bool = False
    ) -> TorchDistributedEnvironment:
        """Set the variables that ``init_process_group`` reads.

        Args:
            set_cuda_visible_devices: whether this process shall see only the GPU of its local rank, where it
                sees several.
            overwrite: whether variables that are set may be replaced.

        Raises:
            RuntimeError: one is set already.
        """
        values = {
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": self.master_port,
            "RANK": self.rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world_size,
        }
        for name, value in values.items():
            if name in os.environ and not overwrite:
                raise RuntimeError(f"{name} is set already, to {os.environ[name]!r}")
            os.environ[name] = str(value)
        if set_cuda_visible_devices:
            devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            if len(devices) > 1:
                os.environ["CUDA_VISIBLE_DEVICES"] = devices[self.local_rank]
        return self


def as_completed(
    jobs: Sequence[Job[R]], timeout: float | None = None, poll_frequency: float = 10
) -> Iterator[Job[R]]:
    """Yield jobs as they end.

    Args:
        jobs: the jobs.
        timeout: seconds after which `TimeoutError` is raised.
        poll_frequency: without effect.
    """
    waiting: dict[Any, list[Job[R]]] = {}
    for job in jobs:
        job.done()  # makes the call of a DebugJob
        waiting.setdefault(job._future, []).append(job)
    for future in concurrent.futures.as_completed(waiting, timeout):
        yield from waiting[future]


def monitor_jobs(jobs: Sequence[Job[Any]], poll_frequency: float = 30, test_mode: bool = False) -> None:
    """Print how many jobs are in which state, until all have ended.

    Args:
        jobs: the jobs.
        poll_frequency: seconds between two looks.
        test_mode: without effect.
    """
    while True:
        states = collections.Counter(job.state for job in jobs)
        ended = sum(job.done() for job in jobs)
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        sys.stdout.write(f"{ended} of {len(jobs)} jobs have ended: {counts}\n")
        if ended == len(jobs):
            return
        time.sleep(poll_frequency)


@contextlib.contextmanager
def clean_env(extra_names: Iterable[str] = ()) -> Iterator[None]:
    """Take the variables of this process's job away, so that it can submit other jobs; set them back.

    Args:
        extra_names: other variables to take away.
    """
    names = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    prefixes = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SUBMITIT_")
    removed = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name in names or name in extra_names or (name.startswith(prefixes) and name != "SLURM_CONF")
    }
    try:
        yield
    finally:
        os.environ.update(removed)
