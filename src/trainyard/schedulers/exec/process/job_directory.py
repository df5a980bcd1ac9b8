r"""The directory of a local job, which is all that is known of it.

::

    STATE/jobs/APP_ID/
        job.json          what was asked for; written once, before anything starts
        state.json        what has become of it; replaced whole at every change
        cancel.json       somebody asked for its end
        supervisor.log    what the supervisor itself had to say
        ml/ROLE-K/        what stands for /opt/ml in replica K, with its results
        index/ROLE/K      order and times of replica K's output (`logindex`)
        logs/ROLE/K/      stdout.log, stderr.log, error.json (elsewhere with the option log_dir)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from trainyard.paths import jobs_dir, state_error
from trainyard.schedulers.exec.process.documents import read_json, reserve, write_json, write_json_last
from trainyard.specs.status import AppState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATE_RESERVE = 64 * 1024
#: A document without these is a damaged one.
JOB_KEYS = {"app", "created_at", "submitter", "submitted_from", "layout"}
STATE_KEYS = {"state", "host", "boot_id", "roles"}


class JobDir:
    """Paths and documents of one job.

    Args:
        path: the directory. It need not exist.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def of(cls, app_id: str) -> JobDir:
        """Return the directory of the job with this id."""
        return cls(os.path.join(jobs_dir(), app_id))

    @property
    def app_id(self) -> str:
        """The id, which is the directory's name."""
        return os.path.basename(self.path)

    def file(self, name: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.path, name)

    def exists(self) -> bool:
        """Tell whether there is a job in it."""
        return os.path.exists(self.file("job.json"))

    def index_path(self, role: str, replica: int) -> str:
        """Return the path of a replica's log index."""
        return os.path.join(self.path, "index", role, str(replica))

    def base_dir(self, role: str, replica: object) -> str:
        """Return the path of what stands for ``/opt/ml`` in a replica that runs under the toolkit."""
        return os.path.join(self.path, "ml", f"{role}-{replica}")

    # ---- documents

    def read_job(self) -> dict[str, Any] | None:
        """Return what was asked for; None if there is no such job, or no whole document of it."""
        document = read_json(self.file("job.json"))
        return document if document is not None and document.keys() >= JOB_KEYS else None

    def read_state(self) -> dict[str, Any] | None:
        """Return what has become of it; None if nothing has been written, or nothing that makes sense."""
        state = read_json(self.file("state.json"))
        sound = state is not None and state.keys() >= STATE_KEYS and state["state"] in AppState.__members__
        return state if sound else None

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace the state."""
        write_json(self.file("state.json"), state)

    def reserve_final_state(self, size: int) -> None:
        """Set room aside, so that the end of the job can be written even when the disk is full."""
        reserve(self.file("state.reserve"), size)

    def write_final_state(self, state: dict[str, Any]) -> None:
        """Replace the state for the last time, in the room set aside if there is no other."""
        write_json_last(self.file("state.json"), state, self.file("state.reserve"))

    def request_cancel(self, by: str) -> None:
        """Leave the wish for the job's end where its supervisor finds it."""
        write_json(self.file("cancel.json"), {"by": by, "at": time.time()})

    def cancel_request(self) -> dict[str, Any] | None:
        """Return that wish, if there is one."""
        return read_json(self.file("cancel.json"))


def all_jobs() -> Iterator[JobDir]:
    """Yield the directories of all jobs, in the order of their names."""
    return (job for job in _all_directories() if job.exists())


def interrupted_submissions() -> Iterator[JobDir]:
    """Yield directories whose submission was interrupted before there was a job in them."""
    return (job for job in _all_directories() if not job.exists())


def _all_directories() -> Iterator[JobDir]:
    try:
        names = sorted(os.listdir(jobs_dir()))
    except FileNotFoundError:
        return
    except OSError as error:
        raise state_error("read the state directory", jobs_dir(), error) from error
    for name in names:
        yield JobDir(os.path.join(jobs_dir(), name))
