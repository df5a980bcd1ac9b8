"""`--after`: which jobs another one waits for, and whether it can ever start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from shunter.errors import BackendError, ConfigError, UsageError
from shunter.runner.observation import unknown_job
from shunter.schedulers.api import Dependency, Scheduler
from shunter.schedulers.capabilities import has_own
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState

if TYPE_CHECKING:
    from shunter.runner.api import Runner

#: The suffix of a handle that means that any outcome of the job will do.
ANY_END = ":any"


def depend_on(runner: Runner, info: AppDryRunInfo[Any], after: Iterable[str]) -> None:
    """Let the job of a request start after others. Called before anything is shipped.

    These are named as users do (`Runner.resolve_handle`), with ``:any`` if any outcome will do.

    Raises:
        ConfigError: the scheduler cannot do that, a job is on another one, or has failed already.
        UnknownAppException: there is no such job.
        BackendError: the state of a job cannot be determined now.
    """
    texts = [after] if isinstance(after, str) else list(after)
    if not texts:
        return
    scheduler = runner.scheduler(info.scheduler)
    if not has_own(scheduler, "depend_on"):
        scheduler.depend_on(info, [])  # says why not
    wanted: dict[str, bool] = {}
    for text in texts:
        name = text.removesuffix(ANY_END)
        if not name:
            raise UsageError(f"--after {text!r} names no job", hint="Write HANDLE, or HANDLE:any.")
        handle = runner.resolve_handle(name)
        _check_scheduler(handle, scheduler)
        wanted[handle] = wanted.get(handle, True) and text.endswith(ANY_END)  # requiring success is stricter
    scheduler.depend_on(info, _still_open(runner, wanted))
    info.record["after"] = [handle + ANY_END * any_end for handle, any_end in wanted.items()]


def _check_scheduler(handle: str, scheduler: Scheduler[Any]) -> None:
    other = parse_app_handle(handle).scheduler_backend
    if other != scheduler.backend:
        raise ConfigError(
            f"a job on {scheduler.backend} cannot wait for {handle}, which is on {other}",
            hint=f"Wait for it first: `shunter wait {handle} && shunter run ...`.",
        )


def _still_open(runner: Runner, wanted: dict[str, bool]) -> list[Dependency]:
    """Return the jobs that have not ended yet. A job that has ended as required need not be waited for."""
    found = runner.statuses(wanted)
    dependencies = []
    for handle, any_end in wanted.items():
        status = found[handle]
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
