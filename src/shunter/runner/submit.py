"""Submitting: the history gets an intent, the code is shipped, the request sent, the outcome recorded."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from shunter._toolkit import function_call
from shunter.errors import ConfigError, ShunterError, StateStoreError, described
from shunter.git import commit_of
from shunter.progress import Progress
from shunter.redaction import Redactor, redact_text
from shunter.runner import installed_packages
from shunter.runner.history import History
from shunter.runner.records import INTERRUPTED, JobRecord
from shunter.schedulers.api import Scheduler
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import make_app_handle
from shunter.specs.serialize import to_json
from shunter.specs.status import AppState
from shunter.specs.submission import Submission
from shunter.system.identity import host_name, myself, user_name


def submit(
    scheduler: Scheduler[Any], info: AppDryRunInfo[Any], history: History, progress: Progress | None = None
) -> str:
    """Submit a job; returns its app id.

    Whatever kills this process, the intent in the history leads to the job.

    Raises:
        ConfigError: a job imports a module that submits one.
        StateStoreError: the intent cannot be recorded; nothing was sent.
        ShunterError: the code could not be shipped; nothing was started.
        BackendError: the scheduler refused.
    """
    if function_call.IMPORTING in os.environ:
        raise ConfigError(
            "a module that jobs import submits a job while it is imported; that job would do the same",
            hint="Put what submits below: if __name__ == '__main__':",
        )
    info.warn()
    key = history.add_intent(intent_of(scheduler, info), durable=not scheduler.capabilities.is_local)
    info.client_token = key
    _ship(scheduler, info, history, key, progress)
    try:
        app_id = scheduler.schedule(info)
    except Exception as error:
        _settle_refusal(scheduler, info, history, key, error)
        raise
    handle = make_app_handle(scheduler.backend, info.session or scheduler.session_name, app_id)
    _record(history.submitted, key, handle, app_id, native_id=info.native_id)
    return app_id


def _ship(
    scheduler: Scheduler[Any],
    info: AppDryRunInfo[Any],
    history: History,
    key: str,
    progress: Progress | None,
) -> None:
    """Bring the job's environment and code to where it will run. If that fails, no job was started."""
    if info.shipment is None and not info.environments:
        return
    try:
        scheduler.ship(info, progress)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        _record(history.refused, key, INTERRUPTED if interrupted else redact_text(described(error)))
        raise
    _record(history.amend, key, fingerprint=fingerprint_of(info), images=info.images)


def intent_of(scheduler: Scheduler[Any], info: AppDryRunInfo[Any]) -> JobRecord:
    """Return the record of a job that is about to be submitted from this directory, without secrets."""
    redactor = Redactor()
    submission = info.submission or Submission(app=info.app)
    definition = info.definition or ({} if info.app is None else to_json(info.app))
    session = info.session or scheduler.session_name
    arguments = (
        submission.arguments if isinstance(submission.arguments, Mapping) else list(submission.arguments)
    )
    commit, dirty = commit_of(os.getcwd())
    return JobRecord(
        handle=make_app_handle(scheduler.backend, session, info.app_id) if info.app_id else "",
        scheduler=scheduler.backend,
        session=session,
        app_id=info.app_id or "",
        name=info.app.name if info.app is not None else "",
        component=submission.component,
        component_args=None if submission.component is None else redactor.json(jsonable(arguments)),
        cfg=redactor.options(jsonable(info.cfg), scheduler.run_opts()),
        app=redactor.json(definition),
        workspace=info.travels,
        fingerprint=fingerprint_of(info),
        images=None if submission.images is None else dict(submission.images),
        cwd=os.getcwd(),
        argv=redactor.words(sys.argv),
        git_commit=commit,
        git_dirty=dirty,
        user=user_name(),
        host=host_name(),
        submitter=str(myself()),
        rerun_of=submission.rerun_of,
        parent_run_id=submission.parent_run_id,
        sweep=submission.sweep,
        point=submission.point,
        race=submission.race,
        python=info.python,
        installed=None if info.environments else installed_packages.recorded(),
        metrics=redactor.json(submission.metrics and dict(submission.metrics)),
    )


def jsonable(value: Any) -> Any:
    """Return a value as JSON values; what JSON lacks becomes text."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    try:
        return to_json(value)
    except ShunterError:
        return str(value)


def _settle_refusal(
    scheduler: Scheduler[Any], info: AppDryRunInfo[Any], history: History, key: str, error: Exception
) -> None:
    """Record a failed submission: as refused, unless the job exists nevertheless."""
    if info.app_id:
        try:
            response = scheduler.describe(info.app_id)
        except Exception:
            return  # it stays an intent, and is looked up again when this process has ended
        if response is not None and response.state == AppState.UNREACHABLE:
            return  # likewise
        if response is not None:
            handle = make_app_handle(scheduler.backend, info.session or scheduler.session_name, info.app_id)
            _record(history.submitted, key, handle, info.app_id, state=response.state.name)
            return
    _record(history.refused, key, redact_text(described(error)))


def fingerprint_of(info: AppDryRunInfo[Any]) -> str | None:
    """Return the fingerprint of the code that goes with a job."""
    manifest = None if info.shipment is None else info.shipment.manifest
    if manifest is not None:
        return str(manifest.fingerprint)
    return None if info.submission is None else info.submission.fingerprint


@contextlib.contextmanager
def working_in(directory: str | None, job: str) -> Iterator[None]:
    """Work in the directory that a job was submitted from, so that relative paths mean the same.

    None leaves the current directory as it is. ``job`` names the job in errors.
    """
    if directory is None:
        yield
        return
    before = os.getcwd()
    try:
        os.chdir(directory)
    except OSError as error:
        raise ConfigError(
            f"{job} was submitted from {directory}, which cannot be entered: {error.strerror}",
            hint="Restore the directory, or submit a new job from another one.",
        ) from None
    try:
        yield
    finally:
        os.chdir(before)


def _record(write: Any, *args: Any, **columns: Any) -> None:
    """Write to the history; a failure is only warned of, since the job has already been handled."""
    try:
        write(*args, **columns)
    except StateStoreError as error:
        warnings.warn(f"the job's history is not up to date: {error}", RuntimeWarning, stacklevel=4)
