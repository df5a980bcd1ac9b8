"""The directory of a training job, which is all that is known of it.

::

    STATE/sagemaker/NAME/
        request.json      the request, without secrets; changed by UpdateTrainingJob alone
        state.json        what has become of it; replaced whole at every change
        state.reserve     room for its last change, should the disk be full then
        tags.json         its tags
        stop.json         somebody asked for its end
        interrupt.json    somebody asked for its machines (`trainyard drill spot`)
        runner.log        what the runner itself had to say
        logs/             one log per host and attempt, see `logs`
        work/             the hosts' files while it runs; gone afterwards
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager

from trainyard.paths import make_private_dir, state_dir, state_error
from trainyard.schedulers.exec.process.documents import read_json, reserve, write_json, write_json_last

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: The states in which a job has ended.
TERMINAL = frozenset({"Completed", "Failed", "Stopped"})
#: Bytes set aside for the last state: of the job, and of each host.
STATE_RESERVE, RESERVE_PER_HOST = 64 * 1024, 1024
REQUEST_KEYS = {"request", "created_at", "arn", "submitter", "submitted_from"}
STATE_KEYS = {"status", "secondary", "transitions", "hosts", "host", "boot_id"}


def root() -> str:
    """Return the directory of all training jobs."""
    return os.path.join(state_dir(), "sagemaker")


class JobDir:
    """Paths and documents of one training job.

    Args:
        path: the directory. It need not exist.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def of(cls, name: str) -> JobDir:
        """Return the directory of the job with this name."""
        return cls(os.path.join(root(), name))

    @property
    def name(self) -> str:
        """The job's name, which is the directory's."""
        return os.path.basename(self.path)

    def file(self, *parts: str) -> str:
        """Return the path of something in it."""
        return os.path.join(self.path, *parts)

    @property
    def work(self) -> str:
        """Where the hosts' files are while the job runs."""
        return self.file("work")

    def exists(self) -> bool:
        """Tell whether there is a job in it."""
        return os.path.exists(self.file("request.json"))

    def read_request(self) -> dict[str, Any] | None:
        """Return what was asked for; None if there is no such job, or no whole document of it."""
        document = read_json(self.file("request.json"))
        return document if document is not None and document.keys() >= REQUEST_KEYS else None

    def read_state(self) -> dict[str, Any] | None:
        """Return what has become of it; None if nothing that makes sense has been written."""
        state = read_json(self.file("state.json"))
        return state if state is not None and state.keys() >= STATE_KEYS else None

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace the state, whole or not at all."""
        write_json(self.file("state.json"), state)

    def write_final_state(self, state: dict[str, Any]) -> None:
        """Replace the state of a job that has ended, in the room set aside if there is no other."""
        paths = self.file("state.json"), self.file("state.reserve")
        write_json_last(paths[0], state, paths[1], is_final=state["swept"])

    def read_tags(self) -> dict[str, str]:
        """Return its tags."""
        return read_json(self.file("tags.json")) or {}

    def write_tags(self, tags: dict[str, str]) -> None:
        """Replace its tags."""
        write_json(self.file("tags.json"), tags)

    @contextmanager
    def changing_tags(self) -> Iterator[dict[str, str]]:
        """Give its tags to be changed; they are written at the end. Nobody else changes them meanwhile.

        Raises:
            StateStoreError: they cannot be written.
        """
        with self._changing("tags.json") as tags:
            yield tags

    @contextmanager
    def changing_request(self) -> Iterator[dict[str, Any]]:
        """Give the document of its request to be changed, as `changing_tags` does its tags."""
        with self._changing("request.json") as document:
            yield document

    @contextmanager
    def _changing(self, name: str) -> Iterator[dict[str, Any]]:
        try:
            lock = os.open(self.file("changes.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                document = read_json(self.file(name)) or {}
                yield document
                write_json(self.file(name), document)
            finally:
                os.close(lock)
        except OSError as error:
            raise state_error("write", self.file(name), error) from error

    def ask(self, what: str, details: dict[str, Any]) -> None:
        """Leave a wish where the runner finds it: ``stop`` or ``interrupt``.

        Raises:
            StateStoreError: it cannot be written.
        """
        try:
            write_json(self.file(f"{what}.json"), details)
        except OSError as error:
            raise state_error("write", self.file(f"{what}.json"), error) from error

    def wish(self, what: str) -> dict[str, Any] | None:
        """Return a wish, if there is one."""
        return read_json(self.file(f"{what}.json"))

    def forget(self, what: str) -> None:
        """Remove a wish that has been fulfilled."""
        try:
            os.unlink(self.file(f"{what}.json"))
        except FileNotFoundError:
            pass

    def remove(self) -> None:
        """Remove all that is kept of the job; at once for who looks, and without any new file."""
        aside = os.path.join(os.path.dirname(self.path), f".old-{os.urandom(8).hex()}")
        os.rename(self.path, aside)
        shutil.rmtree(aside)


def create(name: str, request: dict[str, Any], state: dict[str, Any], tags: dict[str, str]) -> JobDir:
    """Write a new job's directory, whole or not at all.

    Raises:
        FileExistsError: there is a job of this name.
        StateStoreError: the state directory cannot be written.
    """
    import tempfile

    job = JobDir.of(name)
    make_private_dir(root())
    try:
        staged = JobDir(tempfile.mkdtemp(prefix=".new-", dir=root()))
        try:
            os.mkdir(staged.file("logs"))
            reserve(staged.file("state.reserve"), STATE_RESERVE + RESERVE_PER_HOST * len(state["hosts"]))
            write_json(staged.file("request.json"), request)
            staged.write_state(state)
            staged.write_tags(tags)
            if os.path.lexists(job.path):
                raise FileExistsError(job.path)
            os.rename(staged.path, job.path)
        except BaseException:
            shutil.rmtree(staged.path, ignore_errors=True)
            raise
    except FileExistsError:
        raise
    except OSError as error:
        if os.path.lexists(job.path):  # somebody was quicker: a directory is not replaced by another one
            raise FileExistsError(job.path) from None
        raise state_error("write the job's directory", job.path, error) from error
    return job


def find(name: str) -> JobDir | None:
    """Return the directory of an existing job."""
    if not name or "/" in name or name.startswith("."):
        return None
    job = JobDir.of(name)
    return job if job.exists() else None


def all_jobs() -> Iterator[JobDir]:
    """Yield the directories of all jobs, in the order of their names."""
    try:
        names = sorted(os.listdir(root()))
    except FileNotFoundError:
        return
    except OSError as error:
        raise state_error("read the state directory", root(), error) from error
    for name in names:
        job = find(name)
        if job is not None:
            yield job
