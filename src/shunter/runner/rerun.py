"""Repeating a job from what the history holds of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from shunter.errors import ConfigError
from shunter.redaction import missing_secrets_error, restore
from shunter.runner.changed_arguments import change_arguments, recorded_words
from shunter.runner.earlier_checkpoints import go_on
from shunter.runner.jobsearch import recorded
from shunter.runner.records import JobRecord
from shunter.schedulers.api import Scheduler
from shunter.specs.app import AppDef, Role
from shunter.specs.serialize import from_json, to_json
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
    arguments: Sequence[str] = (),
    name: str = "",
    replica: int | None = None,
    from_checkpoint: bool = False,
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
        arguments: words that replace those of the job: ``["--lr", "0.5"]``; see `changed_arguments`.
        name: name of the new job; that of the old one unless given.
        replica: repeat only this point of a sweep.
        from_checkpoint: whether to begin with the checkpoints of the job, which has to have ended.

    Raises:
        UnknownAppException: the history does not have the job.
        ConfigError: it cannot be repeated so; the message says why.
    """
    backend = runner.scheduler(scheduler or record.scheduler)
    app = from_json(AppDef, record.app)  # its secrets are put back below: arguments may replace them
    if only_failed:
        kept = _failed(app, runner.status(record.handle))
    elif replica is not None:
        kept = {_swept(app, "ROLE/K repeats a point of a sweep").name: [replica]}
    else:
        kept = {}
    if from_checkpoint and backend.backend != record.scheduler:
        raise ConfigError(
            f"{record.handle} cannot be resumed on {backend.backend}: its checkpoints are those of "
            f"{record.scheduler}",
            hint=f"To start from the beginning: shunter rerun {record.app_id} -s {backend.backend}",
        )
    _keep_points(app, kept)
    if from_checkpoint:
        go_on(runner, record, app, kept)
    old_words = record.component_args or ()
    if arguments:
        change_arguments(runner, record, app, arguments)
        old_words = recorded_words(old_words, arguments)
    app, options = _with_secrets(app, record, backend.backend, cfg)
    submission = Submission(
        app=app,
        component=record.component,
        arguments=old_words,
        scheduler=backend.backend,
        name=name,
        options=options,
        workspace=workspace,
        after=after,
        metrics=record.metrics,
        parent_run_id=record.handle if from_checkpoint else record.parent_run_id,
        directory=record.cwd or None,
        rerun_of=record.handle or None,
    )
    return submission if workspace is not None else with_code_of(submission, record, backend)


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


def _with_secrets(
    app: AppDef, record: JobRecord, scheduler: str, cfg: Mapping[str, Any] | None
) -> tuple[AppDef, dict[str, Any]]:
    """Return a job and the options of a record, with the secrets of the record put back.

    The record's options are used only on the same scheduler, and those in ``cfg`` replace them.

    Raises:
        ConfigError: a secret cannot be put back.
    """
    missing: set[str] = set()
    restored = restore(to_json(app), os.environ, missing)
    old = record.cfg if scheduler == record.scheduler else {}
    unchanged = {key: value for key, value in old.items() if key not in (cfg or {})}
    options = {**restore(unchanged, os.environ, missing), **(cfg or {})}
    if missing:
        raise missing_secrets_error(f"the job {record.handle or record.name}", missing)
    return from_json(AppDef, restored), options


def _swept(app: AppDef, attempted: str) -> Role:
    """Return the role of a job that has points.

    Raises:
        ConfigError: the job is not a sweep.
    """
    for role in app.roles:
        if points_of(role.metadata):
            return role
    raise ConfigError(
        f"{attempted}, but this job is not a sweep", hint="To repeat the whole job, name nothing but the job."
    )


def _failed(app: AppDef, status: AppStatus | None) -> dict[str, list[int]]:
    """Return the indices of those points of a sweep's job whose replicas did not succeed, by role.

    Raises:
        ConfigError: the job is not a sweep, or none of its points has failed.
    """
    role = _swept(app, "--failed reruns the failed points of a sweep")
    replicas = [] if status is None else list(status.replicas())
    failed = {replica.id for replica in replicas if replica.state.name in ("FAILED", "CANCELLED")}
    kept = [index for index in range(len(points_of(role.metadata))) if index in failed]
    if not kept:
        raise nothing_failed()
    return {role.name: kept}


def _keep_points(app: AppDef, kept: Mapping[str, Sequence[int]]) -> None:
    """Leave only these points of a sweep's job, in place."""
    for role in app.roles:
        if role.name in kept:
            points = points_of(role.metadata)
            if max(kept[role.name]) >= len(points):
                raise ConfigError(f"the sweep has the points 0 to {len(points) - 1}")
            role.metadata[SWEEP_KEY] = {"points": [points[index] for index in kept[role.name]]}
            role.num_replicas = len(kept[role.name])
