"""The directory of a training job, which is that of a job of the supervisor with some more in it.

::

    STATE/sagemaker/NAME/
        job.json          what was asked for, with the request without secrets; UpdateTrainingJob changes it
        state.json        the supervisor's state, with the job's status as the service has it (`job_status`)
        tags.json         its tags
        interrupt.json    a request for a spot interruption (`shunter drill spot`)
        work/             the hosts' files while it runs; gone afterwards
        artifacts/        results that could not be sent
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shunter.docker.command import DockerCommand
from shunter.errors import ConfigError
from shunter.paths import make_private_dir, state_dir, state_error
from shunter.schedulers.sagemaker_local_scheduler.hosts import host_containers
from shunter.schedulers.sagemaker_local_scheduler.job_status import finish, first_status
from shunter.schedulers.supervisor import reasons, recovery
from shunter.schedulers.supervisor.documents import read_json, write_json
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs.status import AppState
from shunter.system import processes
from shunter.system.identity import machine

_REASONS = {
    reasons.SUPERVISOR_LOST: "the supervisor of this job was killed",
    reasons.REBOOTED: "the machine was rebooted while this job ran",
    reasons.NEVER_STARTED: "the supervisor of this job never started",
}


class TrainingJob(JobDirectory):
    """Paths and documents of one training job.

    Args:
        path: the directory. It need not exist.
    """

    REQUEST_KEYS = JobDirectory.REQUEST_KEYS | {"request", "arn", "hostnames"}
    STATE_KEYS = JobDirectory.STATE_KEYS | {"status", "secondary", "transitions"}
    HAS_VIEWS = False

    @staticmethod
    def root() -> str:
        """Return the directory of all training jobs."""
        return os.path.join(state_dir(), "sagemaker")

    @property
    def work(self) -> str:
        """Where the hosts' files are while the job runs."""
        return self.file("work")

    def base_dir(self, role: str, replica: object) -> str:
        """Return the path of what stands for ``/opt/ml`` on a host."""
        hosts = (self.read_request() or {}).get("hostnames", {})
        return os.path.join(self.work, hosts.get(f"{role}/{replica}", ""))

    # ---- tags and requests

    def read_tags(self) -> dict[str, str]:
        """Return its tags."""
        return read_json(self.file("tags.json")) or {}

    @contextmanager
    def changing(self, name: str) -> Iterator[dict[str, Any]]:
        """Give one of its documents to be changed, under a lock; write it at the end.

        Raises:
            StateStoreError: it cannot be written.
        """
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

    def interrupt(self, state: dict[str, Any], absence: float) -> None:
        """Simulate a spot interruption: end the hosts, and start others after ``absence`` seconds.

        Raises:
            ConfigError: the job does not run on spot instances, or does not run.
            StateStoreError: the request cannot be written.
        """
        if not (self.read_request() or {})["request"].get("EnableManagedSpotTraining"):
            raise ConfigError(
                f"{self.name} does not run on spot instances (EnableManagedSpotTraining),"
                " so it cannot be interrupted"
            )
        if state["secondary"] not in ("Downloading", "Training"):
            raise ConfigError(
                f"{self.name} is {state['secondary']}, so it has no instances that could be interrupted"
            )
        self.ask("interrupt", {"at": time.time(), "absence": absence})
        supervisor = recovery.supervisor_of(self, state)
        if supervisor is None or not processes.send_signal(supervisor, signal.SIGUSR2):
            self.forget("interrupt")
            raise ConfigError(f"the supervisor of {self.name} is gone")

    def forget(self, what: str) -> None:
        """Remove a request that has been carried out."""
        try:
            os.unlink(self.file(f"{what}.json"))
        except FileNotFoundError:
            pass

    # ---- its state

    def first_state(self) -> dict[str, Any] | None:
        """Return the state of a job whose state cannot be read."""
        state = super().first_state()
        return None if state is None else {**first_status(0.0), **state}

    def ended(self, state: dict[str, Any], reason: str, now: float) -> dict[str, Any]:
        """Return the state of a job that no process runs."""
        finish(state, "Failed", now, reason=f"InternalServerError: {_REASONS[reason]}")
        return super().ended(state, reason, now)

    def clean_up(self, state: dict[str, Any]) -> None:
        """Remove the hosts that are containers, their network, and the hosts' files.

        Raises:
            ShunterError: the daemon does not answer, so that the job may still run.
        """
        document = self.read_request() or {}
        if document.get("containers"):
            docker = DockerCommand()
            host_containers.remove_all(docker, self.path)
            image = document["request"]["AlgorithmSpecification"].get("TrainingImage", "")
            host_containers.reclaim(docker, image, self.path, self.work)
        try:
            shutil.rmtree(os.readlink(self.file("work", ".secrets")), ignore_errors=True)
        except OSError:
            pass
        shutil.rmtree(self.work, ignore_errors=True)

    def remove(self) -> None:
        """Remove everything that is kept of the job: atomically for readers, and without creating a file.

        Raises:
            OSError: it cannot be removed.
            ShunterError: the job's containers are left, and no daemon answers.
        """
        if os.path.exists(self.work):  # it could not be cleaned up at its end
            self.clean_up({})
        aside = os.path.join(os.path.dirname(self.path), f".old-{os.urandom(8).hex()}")
        os.rename(self.path, aside)
        shutil.rmtree(aside)


def create(name: str, document: dict[str, Any], tags: Mapping[str, str]) -> TrainingJob:
    """Write a new job's directory, whole or not at all.

    Args:
        name: the job's.
        document: what is recorded of the submission.
        tags: the job's.

    Raises:
        FileExistsError: there is a job of this name.
        StateStoreError: the state directory cannot be written.
    """
    job = TrainingJob.of(name)
    make_private_dir(job.root())
    state = {
        "app_id": name,
        "state": AppState.SUBMITTED.name,
        "reason": "",
        "msg": "",
        "num_restarts": 0,
        "started_at": None,
        "ended_at": None,
        "roles": [],
        **machine(),
        **first_status(document["created_at"]),
    }
    try:
        staged = TrainingJob(tempfile.mkdtemp(prefix=".new-", dir=job.root()))
        try:
            write_json(staged.file(job.REQUEST), document)
            staged.write_state(state)
            write_json(staged.file("tags.json"), dict(tags))
            if os.path.lexists(job.path):
                raise FileExistsError(job.path)
            os.rename(staged.path, job.path)
        except BaseException:
            shutil.rmtree(staged.path, ignore_errors=True)
            raise
    except FileExistsError:
        raise
    except OSError as error:
        if os.path.lexists(job.path):  # another process was quicker
            raise FileExistsError(job.path) from None
        raise state_error("write the job's directory", job.path, error) from error
    return job
