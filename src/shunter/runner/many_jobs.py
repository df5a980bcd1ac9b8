"""Ending and deleting several jobs: few calls for each scheduler, and a result for each job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from shunter.errors import BackendError, ConfigError, ShunterError
from shunter.runner.events import log_event
from shunter.runner.observation import mark_deleted, unknown_job
from shunter.runner.records import DELETED
from shunter.schedulers.api import Scheduler, attempt
from shunter.specs.handles import parse_app_handle

if TYPE_CHECKING:
    from shunter.runner.api import Runner

Results = dict[str, ShunterError | None]


def cancel_all(runner: Runner, handles: Iterable[str]) -> Results:
    """Ask jobs to stop; returns by handle what went wrong. See `Scheduler.cancel_many`."""
    return _for_each_scheduler(
        runner, handles, "cancel", lambda scheduler, app_ids: scheduler.cancel_many(app_ids)
    )


def delete_all(runner: Runner, handles: Iterable[str]) -> Results:
    """Delete jobs that have ended; returns by handle what went wrong. See `Runner.delete`."""
    results: Results = {}
    records = {handle: runner.history.find(handle) for handle in dict.fromkeys(handles)}
    for handle, record in records.items():
        if record is None or record.phase == DELETED:
            parsed = parse_app_handle(handle)
            if not runner.scheduler(parsed.scheduler_backend).exists(parsed.app_id):
                results[handle] = unknown_job(handle)
    existing = [handle for handle in records if handle not in results]
    errors = _for_each_scheduler(runner, existing, "delete", _delete_each)
    for handle, error in errors.items():
        if error is None and records[handle] is not None:
            mark_deleted(runner.history, handle)
    return {handle: results.get(handle, errors.get(handle)) for handle in records}


def _delete_each(scheduler: Scheduler[Any], app_ids: list[str]) -> Results:
    return {app_id: attempt(scheduler.delete, app_id) for app_id in app_ids}


def _for_each_scheduler(
    runner: Runner,
    handles: Iterable[str],
    verb: str,
    call: Callable[[Scheduler[Any], list[str]], Results],
) -> Results:
    groups: dict[str, dict[str, str]] = {}
    unique = list(dict.fromkeys(handles))
    for handle in unique:
        parsed = parse_app_handle(handle)
        groups.setdefault(parsed.scheduler_backend, {})[handle] = parsed.app_id
    results: Results = {}
    for name, group in groups.items():
        app_id = next(iter(group.values())) if len(group) == 1 else None
        try:
            with log_event(verb, name, runner.name(), app_id=app_id):
                errors = call(runner.scheduler(name), list(group.values()))
        except (BackendError, ConfigError) as error:  # of all of them: the backend cannot be reached
            errors = dict.fromkeys(group.values(), error)
        results.update({handle: errors.get(app_id) for handle, app_id in group.items()})
    return {handle: results[handle] for handle in unique}
