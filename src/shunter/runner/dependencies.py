"""`--after`: which jobs another one waits for, and whether it can ever start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from shunter.errors import BackendError, ConfigError, UsageError
from shunter.runner.observation import unknown_job
from shunter.schedulers.api import Dependency, Scheduler, cannot_wait
from shunter.schedulers.capabilities import has_own
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState

if TYPE_CHECKING:
    from shunter.runner.api import Runner

#: The suffix of a handle that means that any outcome of the job will do.
ANY_END = ":any"


def open_dependencies(runner: Runner, scheduler: Scheduler[Any], after: Iterable[str]) -> list[Dependency]:
    """Return those of the jobs to wait for that have not ended.

    Args:
        runner: finds the jobs and their states.
        scheduler: where the job that waits is to run.
        after: the jobs, as users name them (`Runner.resolve_handle`), with ``:any`` if any outcome will do.

    Raises:
        ConfigError: the scheduler cannot do that, a job is on another one, or has failed already.
        UnknownAppException: there is no such job.
        BackendError: the state of a job cannot be determined now.
    """
    texts = [after] if isinstance(after, str) else list(after)
    if texts and not has_own(scheduler, "_depend_on"):
        raise cannot_wait(scheduler.backend)
    any_ends: dict[str, bool] = {}
    for text in texts:
        name = text.removesuffix(ANY_END)
        if not name:
            raise UsageError(f"--after {text!r} names no job", hint="Write HANDLE, or HANDLE:any.")
        handle = runner.resolve_handle(name)
        _check_scheduler(handle, scheduler)
        any_ends[handle] = any_ends.get(handle, True) and text.endswith(ANY_END)  # success is stricter
    return _still_open(runner, any_ends)


def _check_scheduler(handle: str, scheduler: Scheduler[Any]) -> None:
    other = parse_app_handle(handle).scheduler_backend
    if other != scheduler.backend:
        raise ConfigError(
            f"a job on {scheduler.backend} cannot wait for {handle}, which is on {other}",
            hint=f"Wait for it first: `shunter wait {handle} && shunter run ...`.",
        )


def _still_open(runner: Runner, any_ends: dict[str, bool]) -> list[Dependency]:
    """Return the jobs that have not ended yet. A job that has ended as required need not be waited for."""
    statuses = runner.statuses(any_ends)
    dependencies = []
    for handle, any_end in any_ends.items():
        status = statuses[handle]
        if status is None:
            raise unknown_job(handle)
        if status.state is AppState.UNREACHABLE:
            raise BackendError(f"cannot tell whether {handle} has ended: {status.msg}")
        if not status.is_terminal():
            dependencies.append(Dependency(parse_app_handle(handle).app_id, any_end))
        elif not any_end and status.state is not AppState.SUCCEEDED:
            raise ConfigError(
                f"{handle} is {status.state}, so a job that waits for its success would never start",
                hint=f"To start however it ends: `--after {handle}{ANY_END}`.",
            )
    return dependencies
