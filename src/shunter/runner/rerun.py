"""Repeating a job from what the history holds of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from shunter.errors import ConfigError
from shunter.redaction import missing_secrets_error, restore
from shunter.runner.jobsearch import recorded
from shunter.runner.records import JobRecord
from shunter.schedulers.api import Scheduler
from shunter.specs.app import AppDef
from shunter.specs.serialize import from_json
from shunter.specs.status import AppStatus
from shunter.specs.submission import Submission
from shunter.specs.sweep_points import nothing_failed, points_of
from shunter.specs.training import SWEEP_KEY
from shunter.specs.workspace import Workspace

if TYPE_CHECKING:
    from shunter.runner.api import Runner


@runtime_checkable
class KeepsImages(Protocol):
    """A scheduler that puts code into images."""

    def has_images(self, images: Sequence[str]) -> bool:
        """Tell whether all of these exact images are still there."""
        ...


def repeated(runner: Runner, app_handle: str, **changes: Any) -> Submission:
    """Return the submission that repeats a job of the history; ``changes`` are those of `repetition_of`."""
    return repetition_of(runner, recorded(runner.history, app_handle, "repeat"), **changes)


def repetition_of(
    runner: Runner,
    record: JobRecord,
    *,
    scheduler: str | None = None,
    cfg: Mapping[str, Any] | None = None,
    workspace: Workspace | str | None = None,
    after: Sequence[str] = (),
    only_failed: bool = False,
) -> Submission:
    """Return the submission that repeats a recorded job.

    Args:
        runner: has the history and the schedulers.
        record: the job to repeat; one of an exported file is in no history.
        scheduler: another scheduler; the old options are then left out.
        cfg: options that replace the old ones.
        workspace: other code than the job had.
        after: jobs to wait for, see `Submission`. Those of the original job are not taken over.
        only_failed: whether to repeat only those points of a sweep that failed or were cancelled.
    """
    name = scheduler or record.scheduler
    app, options = _recover(record, name, cfg)
    if only_failed:
        _keep_failed(app, runner.status(record.handle))
    submission = Submission(
        app=app,
        component=record.component,
        arguments=record.component_args or (),
        scheduler=name,
        options=options,
        workspace=workspace,
        after=after,
        metrics=record.metrics,
        parent_run_id=record.parent_run_id,
        directory=record.cwd or None,
        rerun_of=record.handle or None,
    )
    return submission if workspace is not None else with_code_of(submission, record, runner.scheduler(name))


def with_code_of(submission: Submission, record: JobRecord, scheduler: Scheduler[Any]) -> Submission:
    """Return a submission with the code of a recorded job.

    If that job had its code in images that still exist, they are used again: the submission's ``app`` is
    changed. Otherwise the code comes from the code store, or else from the workspace that was named.
    """
    images = record.images or {}
    if (
        images
        and submission.app is not None
        and record.scheduler == scheduler.backend
        and isinstance(scheduler, KeepsImages)
        and scheduler.has_images(list(images.values()))
    ):
        for role in submission.app.roles:
            role.image = images.get(role.name, role.image)
        return replace(submission, workspace=None, fingerprint=record.fingerprint, images=images)
    code = f"@{record.fingerprint}" if record.fingerprint else record.workspace
    return replace(submission, workspace=code)


def _recover(
    record: JobRecord, scheduler: str, cfg: Mapping[str, Any] | None
) -> tuple[AppDef, dict[str, Any]]:
    """Return the job and the options of a record, with its secrets put back.

    The record's options are used only on the same scheduler, and those in ``cfg`` replace them.

    Raises:
        ConfigError: the record holds no complete job, or a secret cannot be put back.
    """
    missing: set[str] = set()
    app = restore(record.app, os.environ, missing)
    old = record.cfg if scheduler == record.scheduler else {}
    unchanged = {key: value for key, value in old.items() if key not in (cfg or {})}
    options = {**restore(unchanged, os.environ, missing), **(cfg or {})}
    if missing:
        raise missing_secrets_error(f"the job {record.handle or record.name}", missing)
    return from_json(AppDef, app), options


def _keep_failed(app: AppDef, status: AppStatus | None) -> None:
    """Leave only those points of a sweep's job whose replicas did not succeed, in place.

    Raises:
        ConfigError: the job is not a sweep, or none of its points has failed.
    """
    role = next((role for role in app.roles if points_of(role.metadata)), None)
    if role is None:
        raise ConfigError(
            "--failed reruns the failed points of a sweep, but this job is not a sweep",
            hint="Repeat the whole job: leave --failed out.",
        )
    replicas = [] if status is None else list(status.replicas())
    failed = {replica.id for replica in replicas if replica.state.name in ("FAILED", "CANCELLED")}
    points = points_of(role.metadata)
    remaining = [point for index, point in enumerate(points) if index in failed]
    if not remaining:
        raise nothing_failed()
    role.metadata[SWEEP_KEY] = {"points": remaining}
    role.num_replicas = len(remaining)
