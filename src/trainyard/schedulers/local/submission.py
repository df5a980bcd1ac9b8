"""Starting a local job: its directory first, then its supervisor, which takes it from there."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings

from trainyard.errors import BackendError
from trainyard.paths import make_private_dir, state_error
from trainyard.redaction import Redactor
from trainyard.schedulers.exec.process import documents
from trainyard.schedulers.exec.process.job_directory import JobDir
from trainyard.schedulers.local.request import LocalRequest, inherited_environ
from trainyard.specs.serialize import to_json
from trainyard.system import processes
from trainyard.system.identity import machine, myself

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.specs.dryrun import AppDryRunInfo

SUPERVISE = os.path.abspath(os.path.join(os.path.dirname(__file__), "../exec/process/supervise.py"))
#: What the process list shows beside the program until there is a job; long enough for a job's title.
WAITING = "waiting-for-a-job-whose-plan-comes-through-standard-input"


class Launcher:
    """The process that starts a job's supervisor. It may be started before there is a job.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        # Isolated and without `site`, it starts in half the time; it uses the standard library only.
        command = [sys.executable, "-I", "-S", SUPERVISE, WAITING]
        plan_out, self._plan = os.pipe()
        self._problem, problem_in = os.pipe()
        try:
            self._pid = os.posix_spawn(  # `subprocess` takes longer to import than the process to start
                sys.executable,
                command,
                {key: value for key, value in os.environ.items() if key != processes.JOB_VARIABLE},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, plan_out, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, problem_in, 2),
                ],
                setsid=True,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        except OSError:
            os.close(self._plan)
            os.close(self._problem)
            raise
        finally:
            os.close(plan_out)
            os.close(problem_in)

    def is_waiting(self) -> bool:
        """Tell whether it is still there."""
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._close()
        return self._pid != 0

    def launch(self, plan: dict[str, Any]) -> str:
        """Hand over a job; returns what went wrong, "" if its supervisor is at work."""
        rest = memoryview(json.dumps(plan).encode("utf-8", "surrogateescape"))
        try:
            while rest:  # it reads everything before it answers
                rest = rest[os.write(self._plan, rest) :]
        except BrokenPipeError:  # it has ended, and has said why
            pass
        code, problem = self._end()
        if code == 0:
            return ""
        return problem.decode("utf-8", "replace").strip() or "its supervisor ended before it was ready"

    def discard(self) -> None:
        """End it without a job."""
        if self._pid:
            self._end()

    def _end(self) -> tuple[int, bytes]:
        """Close its input and wait for it; returns its exit code and what it wrote to standard error."""
        os.close(self._plan)
        self._plan = -1
        said = b""
        while chunk := os.read(self._problem, 65536):
            said += chunk
        status = os.waitpid(self._pid, 0)[1]
        self._close()
        return os.waitstatus_to_exitcode(status), said

    def _close(self) -> None:
        self._pid = 0
        for fd in (self._plan, self._problem):
            if fd >= 0:
                os.close(fd)
        self._plan = self._problem = -1

    def __del__(self) -> None:
        if getattr(self, "_pid", 0):
            self.discard()


def submit(info: AppDryRunInfo[LocalRequest], launcher: Launcher | None = None) -> str:
    """Write the job's directory and start its supervisor; returns the id.

    Args:
        info: the request.
        launcher: a process started for this ahead of time.

    Raises:
        StateStoreError: the state directory cannot be written.
        BackendError: the supervisor could not be started.
    """
    request = info.request
    for warning in request.warnings:
        warnings.warn(warning, RuntimeWarning, stacklevel=4)
    job = JobDir(request.job_dir)
    make_private_dir(os.path.dirname(job.path))
    try:
        os.mkdir(job.path, 0o700)
        documents.write_json(job.file("job.json"), _document(info))
    except FileExistsError:
        raise BackendError(f"the job {request.app_id} has been submitted already") from None
    except OSError as error:
        _remove_empty(job)
        raise state_error("write the job's directory", job.path, error) from error
    _start_supervisor(request, job, launcher)
    return request.app_id


def _document(info: AppDryRunInfo[LocalRequest]) -> dict[str, Any]:
    """Return what is kept of the submission. Secrets are not."""
    request = info.request
    redactor = Redactor()
    return {
        "app_id": request.app_id,
        "app": redactor.json(to_json(info.app)),
        "cfg": redactor.json(dict(info.cfg)),
        "cwd": os.getcwd(),
        "created_at": time.time(),
        "submitter": myself(),
        "submitted_from": machine(),
        "layout": [
            [role.name, index, replica.log_dir]
            for role in request.roles
            for index, replica in enumerate(role.replicas)
        ],
    }


def _start_supervisor(request: LocalRequest, job: JobDir, launcher: Launcher | None) -> None:
    plan = {
        "app_id": request.app_id,
        "job_dir": job.path,
        "timeout": request.timeout,
        "grace_period": request.grace_period,
        "fail_fast": request.fail_fast,
        "cwd": request.cwd,
        "env": inherited_environ(request, os.environ),
        "roles": [
            {
                "name": role.name,
                "max_retries": role.max_retries,
                "retry_policy": role.retry_policy,
                "replicas": [vars(replica) for replica in role.replicas],
            }
            for role in request.roles
        ],
    }
    try:
        ready = launcher if launcher is not None and launcher.is_waiting() else Launcher()
        problem = ready.launch(plan)
    except OSError as error:
        _remove_empty(job)
        raise BackendError(f"cannot start the job's supervisor: {error}") from error
    if problem:
        _remove_empty(job)
        raise BackendError(
            f"the job {request.app_id} was not started: {problem}",
            hint="Nothing of it runs. Fix the cause and submit it again.",
        )


def _remove_empty(job: JobDir) -> None:
    """Remove the directory of a job that never started."""
    import shutil

    shutil.rmtree(job.path, ignore_errors=True)
