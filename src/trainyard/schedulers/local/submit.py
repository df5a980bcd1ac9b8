"""Starting a local job: its directory first, then its supervisor, which takes it from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from trainyard.errors import BackendError
from trainyard.paths import make_private_dir, state_error
from trainyard.processes import myself
from trainyard.redaction import Redactor
from trainyard.schedulers.local import processes, store
from trainyard.schedulers.local.plan import LocalRequest, inherited_environ
from trainyard.schedulers.local.scheduler import SUPERVISE
from trainyard.schedulers.local.store import JobDir
from trainyard.specs.serialize import to_json

if TYPE_CHECKING:
    from trainyard.specs.dryrun import AppDryRunInfo


def submit(info: AppDryRunInfo[LocalRequest]) -> str:
    """Write the job's directory and start its supervisor; returns the id.

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
        store.write_json(job.file("job.json"), _document(info))
    except FileExistsError:
        raise BackendError(f"the job {request.app_id} has been submitted already") from None
    except OSError as error:
        _remove_empty(job)
        raise state_error("write the job's directory", job.path, error) from error
    _start_supervisor(request, job)
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
        "submitted_from": store.machine(),
        "layout": [
            [role.name, index, replica.log_dir]
            for role in request.roles
            for index, replica in enumerate(role.replicas)
        ],
    }


def _start_supervisor(request: LocalRequest, job: JobDir) -> None:
    plan = {
        "app_id": request.app_id,
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
    # Isolated and without `site`, the supervisor starts in half the time; it uses the standard library only.
    command = [sys.executable, "-I", "-S", SUPERVISE, job.path]
    try:
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={key: value for key, value in os.environ.items() if key != processes.JOB_VARIABLE},
        )
        _, problem = launcher.communicate(json.dumps(plan).encode("utf-8", "surrogateescape"))
    except OSError as error:
        _remove_empty(job)
        raise BackendError(f"cannot start the job's supervisor: {error}") from error
    if launcher.returncode != 0:
        _remove_empty(job)
        raise BackendError(
            f"the job {request.app_id} was not started: {problem.decode('utf-8', 'replace').strip()}",
            hint="Nothing of it runs. Mend the cause and submit it again.",
        )


def _remove_empty(job: JobDir) -> None:
    """Remove the directory of a job that never started."""
    import shutil

    shutil.rmtree(job.path, ignore_errors=True)
