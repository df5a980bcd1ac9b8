"""Submitting a job that a supervisor runs: writing its directory, then starting its supervisor."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from shunter._toolkit import race_lease, stack_dump
from shunter.errors import BackendError
from shunter.paths import make_private_dir, state_error, view_dir
from shunter.redaction import Redactor
from shunter.schedulers.supervisor import documents, outbox
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.process_plan import ProcessPlan
from shunter.schedulers.supervisor.start import StartingSupervisor
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import make_app_handle
from shunter.specs.serialize import to_json
from shunter.system.identity import machine, myself

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def submit(
    job: JobDirectory,
    info: AppDryRunInfo[Any],
    layout: Sequence[tuple[str, int, str]],
    make_plan: Callable[[], ProcessPlan],
    *,
    facts: Mapping[str, Any] = _NOTHING,
    environ: Mapping[str, str] = _NOTHING,
    undo: Callable[[], None] = lambda: None,
) -> str:
    """Write the job's directory and start its supervisor; returns the id.

    Args:
        job: the job, which does not exist yet.
        info: its dry run; the request has ``notify``, ``notify_secret`` and ``hang_timeout``.
        layout: role, index and log directory of every replica, in order.
        make_plan: makes what the supervisor needs, and returns the plan. The job exists by then.
        facts: what else is recorded of it.
        environ: variables that its supervisor gets in addition to this process's.
        undo: removes what ``make_plan`` has made, if the job cannot be started.

    Raises:
        StateStoreError: the state directory cannot be written.
        BackendError: it has been submitted already, or the supervisor could not be started.
    """
    try:
        supervisor = StartingSupervisor(environ=environ)
    except OSError as error:
        raise _not_started(job.name, f"cannot start its supervisor: {error}") from error
    make_private_dir(os.path.dirname(job.path))
    try:
        os.mkdir(job.path, 0o700)
        _write_extras(job, info)
        document = {
            **_document(info, layout),
            **facts,
            # named so that nobody takes the job for dead while its supervisor is slow to start
            "supervisor": supervisor.process(),
        }
        documents.write_json(job.file(job.REQUEST), document)
    except FileExistsError:
        raise BackendError(f"the job {job.name} has been submitted already") from None
    except OSError as error:
        _remove(job)
        raise state_error("write the job's directory", job.path, error) from error
    try:
        plan = make_plan()
        if info.lease:
            if not race_lease.is_object(info.lease):
                make_private_dir(os.path.dirname(info.lease))
            plan.lease = {"place": info.lease, "handle": _handle(info, job)}
        problem = supervisor.run(plan.to_json())
        if problem:
            raise _not_started(job.name, problem)
    except BaseException as error:
        supervisor.discard()
        undo()
        _remove(job)
        if isinstance(error, OSError):
            raise state_error("prepare the job in", job.path, error) from error
        raise
    return job.name


def _handle(info: AppDryRunInfo[Any], job: JobDirectory) -> str:
    return make_app_handle(info.scheduler or "", info.session or "", job.name)


def _not_started(app_id: str, problem: str) -> BackendError:
    return BackendError(
        f"the job {app_id} was not started: {problem}",
        hint="Nothing of it runs. Fix the cause and submit it again.",
    )


def _write_extras(job: JobDirectory, info: AppDryRunInfo[Any]) -> None:
    """Record the targets of notifications, and what is needed if replicas hang."""
    request = info.request
    if request.notify:
        outbox.prepare(job.path, _handle(info, job), request.notify, request.notify_secret)
    if request.hang_timeout is not None:
        os.mkdir(job.python_dir(), 0o700)
        with open(os.path.join(job.python_dir(), stack_dump.HANDLER_FILE), "w", encoding="ascii") as file:
            file.write(stack_dump.HANDLER)


def _document(info: AppDryRunInfo[Any], layout: Sequence[tuple[str, int, str]]) -> dict[str, Any]:
    """Return what is stored of the submission, without secrets."""
    redactor = Redactor()
    return {
        "app_id": info.app_id,
        "app": redactor.json(to_json(info.app)),
        "cfg": redactor.json(dict(info.cfg)),
        "cwd": os.getcwd(),
        "created_at": time.time(),
        "submitter": myself(),
        "submitted_from": machine(),
        "layout": layout,
        **({"lease": info.lease} if info.lease and not race_lease.is_object(info.lease) else {}),
    }


def _remove(job: JobDirectory) -> None:
    """Remove the directories of a job that never started."""
    shutil.rmtree(job.path, ignore_errors=True)
    shutil.rmtree(view_dir(job.name), ignore_errors=True)
