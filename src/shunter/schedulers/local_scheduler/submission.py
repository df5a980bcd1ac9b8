"""Starting a local job: writing its directory, then starting its supervisor."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from typing import Any

from shunter._toolkit import stack_dump
from shunter.errors import BackendError
from shunter.paths import make_private_dir, state_error, view_dir
from shunter.redaction import Redactor
from shunter.schedulers.exec import outbox
from shunter.schedulers.local_scheduler.request import LocalRequest, without_enclosing_job
from shunter.schedulers.supervisor import documents
from shunter.schedulers.supervisor.job_directory import ProcessJob
from shunter.schedulers.supervisor.own_directory import freeze
from shunter.schedulers.supervisor.start import StartingSupervisor
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import make_app_handle
from shunter.specs.serialize import to_json
from shunter.system.identity import Process, machine, myself


def submit(info: AppDryRunInfo[LocalRequest]) -> str:
    """Write the job's directory and start its supervisor; returns the id.

    Raises:
        StateStoreError: the state directory cannot be written.
        BackendError: the supervisor could not be started.
    """
    request = info.request
    for warning in request.warnings:
        warnings.warn(warning, RuntimeWarning, stacklevel=4)
    job = ProcessJob(request.job_dir)
    try:
        supervisor = StartingSupervisor()
    except OSError as error:
        raise _not_started(request.app_id, f"cannot start its supervisor: {error}") from error
    make_private_dir(os.path.dirname(job.path))
    try:
        os.mkdir(job.path, 0o700)
        _write_extras(info, job)
        if request.own_directories and request.own_directories["beside"]:
            freeze(request.own_directories["beside"], request.own_directories["template"])
        documents.write_json(job.file("job.json"), _document(info, supervisor.process()))
    except FileExistsError:
        raise BackendError(f"the job {request.app_id} has been submitted already") from None
    except OSError as error:
        _remove(job)
        raise state_error("write the job's directory", job.path, error) from error
    problem = supervisor.run(_plan(request))
    if problem:
        _remove(job)
        raise _not_started(request.app_id, problem)
    return request.app_id


def _not_started(app_id: str, problem: str) -> BackendError:
    return BackendError(
        f"the job {app_id} was not started: {problem}",
        hint="Nothing of it runs. Fix the cause and submit it again.",
    )


def _write_extras(info: AppDryRunInfo[LocalRequest], job: ProcessJob) -> None:
    """Record the targets of notifications, and what is needed if replicas hang."""
    request = info.request
    if request.notify:
        handle = make_app_handle("local_cwd", info.session or "", request.app_id)
        outbox.prepare(job.path, handle, request.notify, request.notify_secret)
    if request.hang_timeout is not None:
        os.mkdir(job.python_dir(), 0o700)
        with open(os.path.join(job.python_dir(), stack_dump.HANDLER_FILE), "w", encoding="ascii") as file:
            file.write(stack_dump.HANDLER)


def _document(info: AppDryRunInfo[LocalRequest], supervisor: Process | None) -> dict[str, Any]:
    """Return what is stored of the submission, without secrets.

    The supervisor is named so that nobody takes the job for dead while it is slow to start.
    """
    request = info.request
    redactor = Redactor()
    return {
        "app_id": request.app_id,
        "app": redactor.json(to_json(info.app)),
        "cfg": redactor.json(dict(info.cfg)),
        "cwd": os.getcwd(),
        "created_at": time.time(),
        "own_directories": request.own_directories,
        "submitter": myself(),
        "supervisor": supervisor,
        "submitted_from": machine(),
        "layout": [
            [role.name, index, replica.log_dir]
            for role in request.roles
            for index, replica in enumerate(role.replicas)
        ],
    }


def _plan(request: LocalRequest) -> dict[str, Any]:
    """Return the plan that the supervisor reads."""
    return {
        **{name: value for name, value in vars(request).items() if not name.startswith("notify")},
        "env": {**without_enclosing_job(os.environ), "PATH": request.path},
        "roles": [
            {**vars(role), "replicas": [vars(replica) for replica in role.replicas]} for role in request.roles
        ],
    }


def _remove(job: ProcessJob) -> None:
    """Remove the directories of a job that never started."""
    shutil.rmtree(job.path, ignore_errors=True)
    shutil.rmtree(view_dir(job.name), ignore_errors=True)
