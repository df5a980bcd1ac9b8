"""Repeating a job from what the history holds of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shunter.errors import ConfigError
from shunter.redaction import missing_secrets_error, restore
from shunter.runner.jobsearch import recorded
from shunter.runner.records import JobRecord
from shunter.schedulers.api import Scheduler
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.serialize import from_json
from shunter.specs.status import AppStatus
from shunter.specs.sweep_points import nothing_failed, points_of
from shunter.specs.training import SWEEP_KEY
from shunter.specs.workspace import Workspace

if TYPE_CHECKING:
    from shunter.runner.api import Runner


@contextlib.contextmanager
def planned_rerun(
    runner: Runner,
    app_handle: str,
    scheduler: str | None,
    cfg: Mapping[str, Any] | None,
    workspace: Workspace | str | None,
    after: Sequence[str] = (),
    only_failed: bool = False,
) -> Iterator[AppDryRunInfo[Any]]:
    """Make the request that repeats a job, and stay in the job's directory; see `Runner.rerun`."""
    record = recorded(runner.history, app_handle, "repeat")
    with working_in(record.cwd, record.handle):
        name = scheduler or record.scheduler
        app, options = _recover(record, name, cfg)
        if only_failed:
            _keep_failed(app, runner.status(record.handle))
        reused = workspace is None and frozen_code(record, runner.scheduler(name), app)
        info = runner.dryrun(app, name, options, reused or workspace, record.parent_run_id, after)
        info.record |= {
            "component": record.component,
            "component_args": record.component_args,
            "rerun_of": record.handle,
            "metrics": record.metrics,
        }
        if workspace is None and not reused:  # its images, if it has any, hold the code already
            info.record |= {"fingerprint": record.fingerprint, "images": record.images}
        yield info


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
    kept = {key: value for key, value in old.items() if key not in (cfg or {})}
    options = {**restore(kept, os.environ, missing), **(cfg or {})}
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
    failed = {each.id for each in replicas if each.state.name in ("FAILED", "CANCELLED")}
    points = points_of(role.metadata)
    kept = [point for index, point in enumerate(points) if index in failed]
    if not kept:
        raise nothing_failed()
    role.metadata[SWEEP_KEY] = {"points": kept}
    role.num_replicas = len(kept)


def frozen_code(record: JobRecord, scheduler: Scheduler[Any], app: AppDef) -> str | None:
    """Return the workspace that holds the code that a job had; None if its images hold it.

    Images that still exist are used again: ``app`` is changed.
    """
    images = record.images or {}
    if images and record.scheduler == scheduler.backend and scheduler.has_images(list(images.values())):
        for role in app.roles:
            role.image = images.get(role.name, role.image)
        return None
    return f"@{record.fingerprint}" if record.fingerprint else record.workspace


@contextlib.contextmanager
def working_in(directory: str, job: str) -> Iterator[None]:
    """Work in the directory that a job was submitted from, so that relative paths mean the same."""
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
