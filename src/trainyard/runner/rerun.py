"""Repeating a job from what the history holds of it."""

from __future__ import annotations

import contextlib
import os

from trainyard.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from trainyard.runner.records import JobRecord
    from trainyard.schedulers.base import Scheduler
    from trainyard.specs.app import AppDef


def recover(
    record: JobRecord, scheduler: str, cfg: Mapping[str, Any] | None
) -> tuple[AppDef, dict[str, Any]]:
    """Return the job and the options of a record, with its secrets put back.

    Args:
        record: the job to repeat.
        scheduler: where it is to run. On another scheduler than before, the old options mean nothing.
        cfg: options that replace those of the record.

    Raises:
        ConfigError: the record holds no whole job, or a secret cannot be put back.
    """
    from trainyard.redaction import missing_secrets_error, restore
    from trainyard.specs.app import AppDef
    from trainyard.specs.serialize import from_json

    missing: set[str] = set()
    app = restore(record.app, os.environ, missing)
    kept = (
        {k: v for k, v in record.cfg.items() if k not in (cfg or {})} if scheduler == record.scheduler else {}
    )
    options = {**restore(kept, os.environ, missing), **(cfg or {})}
    if missing:
        raise missing_secrets_error(f"the job {record.handle or record.name}", missing)
    return from_json(AppDef, app), options


def frozen_code(record: JobRecord, scheduler: Scheduler[Any], app: AppDef) -> str | None:
    """Return the workspace by which a job gets the code that it had before; None if its images hold it.

    The images that the code was put into are used again where they still exist: ``app`` is changed.
    """
    images = record.images or {}
    if images and record.scheduler == scheduler.backend and scheduler.has_images(list(images.values())):
        for role in app.roles:
            role.image = images.get(role.name, role.image)
        return None
    return f"@{record.fingerprint}" if record.fingerprint else record.workspace


@contextlib.contextmanager
def directory_of(record: JobRecord) -> Iterator[None]:
    """Work in the directory that the job was submitted from: relative paths mean the same again.

    Raises:
        ConfigError: it is gone.
    """
    before = os.getcwd()
    try:
        os.chdir(record.cwd)
    except OSError as error:
        raise ConfigError(
            f"{record.handle} was submitted from {record.cwd}, which cannot be entered: {error.strerror}",
            hint="Bring the directory back, or submit the job anew from another one.",
        ) from None
    try:
        yield
    finally:
        os.chdir(before)
