"""What code inside of a job asks for: which task it is, of which job."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shunter._toolkit.current import current
from shunter.specs.handles import parse_app_handle

#: Variables of a job, set by the executor.
TASKS_PER_NODE = "SHUNTER_SUBMITIT_TASKS_PER_NODE"
FOLDER = "SHUNTER_SUBMITIT_FOLDER"
#: The id of a job that runs in the submitting process.
DEBUG_ID = "SHUNTER_SUBMITIT_DEBUG_ID"


@contextlib.contextmanager
def environment_variables(**values: Any) -> Iterator[None]:
    """Set environment variables, and set them back at the end."""
    backup = {name: os.environ.get(name) for name in values}
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name, value in backup.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class JobPaths:
    """Where the files of a job are.

    Args:
        folder: as the executor was given it; ``%j`` and ``%A`` stand for the job's id, without an array's
            index, and ``%a`` for that index.
        job_id: the job.
        task_id: which of its tasks.

    Attributes:
        folder: the folder, with the id.
        stdout, stderr: links to the logs of a task. They appear when it starts, where it writes to files.
    """

    def __init__(self, folder: Path | str, job_id: str, task_id: int = 0) -> None:
        array, _, index = job_id.rpartition("_")
        name = str(folder)
        for placeholder, value in {"%j": array or job_id, "%A": array or job_id, "%a": index}.items():
            name = name.replace(placeholder, value)
        self.folder = Path(name).expanduser().absolute()
        self.stdout = self.folder / f"{job_id}_{task_id}_log.out"
        self.stderr = self.folder / f"{job_id}_{task_id}_log.err"

    @staticmethod
    def get_first_id_independent_folder(folder: Path | str) -> Path:
        """Return the folder above the first part of a path that has a placeholder."""
        parts = Path(folder).expanduser().absolute().parts
        return Path(*itertools.takewhile(lambda part: not any(x in part for x in ("%j", "%A", "%a")), parts))


class JobEnvironment:
    """The place of this process in its job.

    Raises:
        RuntimeError: this process is not in a job.
    """

    def __init__(self) -> None:
        if not self.activated():
            raise RuntimeError("this process is not in a job, so it has no JobEnvironment")
        here = current()
        tasks = int(os.environ.get(TASKS_PER_NODE, "1"))
        self.cluster: str = "debug"
        self.job_id: str = os.environ.get(DEBUG_ID, "")
        if not self.job_id:
            handle = parse_app_handle(here.job)
            self.cluster = handle.scheduler_backend.removesuffix("_cwd")
            self.job_id = handle.app_id
            # each call of an array is started with its number
            self.job_id += f"_{here.replica}" if "--index" in sys.argv else ""
        array, _, index = self.job_id.rpartition("_")
        self.array_job_id: str | None = array or None
        self.array_task_id: str | None = index if array else None
        self.raw_job_id: str = self.job_id
        self.num_tasks: int = here.world_size
        self.num_nodes: int = -(-here.world_size // tasks)
        self.global_rank: int = here.rank
        self.local_rank: int = here.rank % tasks
        self.node: int = here.rank // tasks
        self.hostname: str = os.uname().nodename
        self.hostnames: list[str] = list(dict.fromkeys(here.hosts))[::tasks]
        self.paths = JobPaths(os.environ.get(FOLDER) or ".", self.job_id, self.global_rank)

    @staticmethod
    def activated() -> bool:
        """Tell whether this process is in a job."""
        return bool(current().job or os.environ.get(DEBUG_ID))

    def __repr__(self) -> str:
        names = ("job_id", "num_tasks", "num_nodes", "node", "global_rank", "local_rank")
        return f"JobEnvironment({', '.join(f'{name}={getattr(self, name)}' for name in names)})"
