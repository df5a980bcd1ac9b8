"""The directory of a training job, which contains all that is known about it.

::

    STATE/sagemaker/NAME/
        request.json      the request, without secrets; changed by UpdateTrainingJob alone
        state.json        its state, see `job_status`; replaced whole at every change
        state.reserve     space for its last change, should the disk be full then
        tags.json         its tags
        stop.json         a request to end it
        interrupt.json    a request for a spot interruption (`shunter drill spot`)
        runner.log        what the supervisor itself printed
        usage             samples of what the hosts use
        notify.*          notifications of its end (`outbox`)
        logs/             one log per host and attempt, see `logs`
        work/             the hosts' files while it runs; gone afterwards
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shunter.docker.command import DockerCommand
from shunter.errors import ConfigError, ShunterError
from shunter.paths import make_private_dir, state_dir, state_error
from shunter.schedulers.sagemaker_local_scheduler.hosts import container_host
from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL, finish
from shunter.schedulers.supervisor import reasons, recovery
from shunter.schedulers.supervisor.documents import read_json, write_json
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.system import processes

#: Bytes set aside for the last state: of the job, and of each host.
STATE_RESERVE, RESERVE_PER_HOST = 64 * 1024, 1024
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

    SUPERVISOR = "runner"  # its name in the states and files of earlier versions
    REQUEST = "request.json"
    REQUEST_KEYS = JobDirectory.REQUEST_KEYS | {"request", "arn"}
    STATE_KEYS = JobDirectory.STATE_KEYS | {"status", "secondary", "transitions", "hosts"}

    @staticmethod
    def root() -> str:
        """Return the directory of all training jobs."""
        return os.path.join(state_dir(), "sagemaker")

    @property
    def work(self) -> str:
        """Where the hosts' files are while the job runs."""
        return self.file("work")

    def log_path(self, stream: str) -> str:
        """Return the path of a log, without its ending."""
        return self.file("logs", stream)

    @property
    def usage_path(self) -> str:
        """The file with samples of what the hosts use."""
        return self.file("usage")

    @property
    def python_dir(self) -> str:
        """The folder of the module by which Python writes stacks when the job hangs."""
        return self.file("python")

    # ---- tags and requests

    def read_tags(self) -> dict[str, str]:
        """Return its tags."""
        return read_json(self.file("tags.json")) or {}

    @contextmanager
    def changing(self, name: str) -> Iterator[dict[str, Any]]:
        """Give ``tags.json`` or ``request.json`` to be changed, under a lock; write it at the end.

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
        if supervisor is None or not processes.send_signal(supervisor, signal.SIGUSR1):
            self.forget("interrupt")
            raise ConfigError(f"the supervisor of {self.name} is gone")

    def forget(self, what: str) -> None:
        """Remove a request that has been carried out."""
        try:
            os.unlink(self.file(f"{what}.json"))
        except FileNotFoundError:
            pass

    # ---- its end

    def has_ended(self, state: dict[str, Any]) -> bool:
        """Tell whether the job has ended, though containers may be left of its hosts."""
        return state["status"] in TERMINAL

    def is_over(self, state: dict[str, Any]) -> bool:
        """Tell whether the job has ended, and nothing is left of its hosts."""
        return self.has_ended(state) and state["swept"]

    def ended(self, state: dict[str, Any], reason: str, now: float) -> dict[str, Any]:
        """Return the state of a job that no process runs, ended in place."""
        if state["status"] not in TERMINAL:
            if state["training_start"] is not None:
                state["training_seconds"] += max(0.0, now - (state.get("attempt_start") or now))
            finish(state, "Failed", now, reason=f"InternalServerError: {_REASONS[reason]}")
        return state

    def clean_up(self, state: dict[str, Any]) -> None:
        """Remove containers, networks and files of the job, and note whether all are gone."""
        state["swept"] = self._remove_containers()
        try:
            shutil.rmtree(os.readlink(self.file("work", ".secrets")), ignore_errors=True)
        except OSError:
            pass
        if state["swept"]:
            shutil.rmtree(self.work, ignore_errors=True)

    def _remove_containers(self) -> bool:
        if not os.path.exists(self.file("work", ".docker")):
            return True
        request = (self.read_request() or {}).get("request", {})
        try:
            docker = DockerCommand()
            container_host.remove_all(docker, self.path)
            image = request.get("AlgorithmSpecification", {}).get("TrainingImage", "")
            container_host.reclaim(docker, image, self.path, self.work)
        except ShunterError:
            return False  # the next reader tries again
        return True

    def remove(self) -> None:
        """Remove everything that is kept of the job: atomically for readers, and without creating a file."""
        aside = os.path.join(os.path.dirname(self.path), f".old-{os.urandom(8).hex()}")
        os.rename(self.path, aside)
        shutil.rmtree(aside)


def create(name: str, request: dict[str, Any], state: dict[str, Any], tags: dict[str, str]) -> TrainingJob:
    """Write a new job's directory, whole or not at all.

    Raises:
        FileExistsError: there is a job of this name.
        StateStoreError: the state directory cannot be written.
    """
    job = TrainingJob.of(name)
    make_private_dir(job.root())
    try:
        staged = TrainingJob(tempfile.mkdtemp(prefix=".new-", dir=job.root()))
        try:
            os.mkdir(staged.file("logs"))
            staged.reserve_final_state(STATE_RESERVE + RESERVE_PER_HOST * len(state["hosts"]))
            write_json(staged.file("request.json"), request)
            staged.write_state(state)
            write_json(staged.file("tags.json"), tags)
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
