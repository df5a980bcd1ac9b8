"""The environment variables by which a job knows itself; contracts that scripts rely on."""

from __future__ import annotations

import functools
import os

from trainyard.specs.handles import make_app_handle
from trainyard.specs.substitution import macros

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainyard.specs.app import AppDef

JOB_ID = "TORCHX_JOB_ID"
ROLE_IDX = "TORCHX_ROLE_IDX"
ROLE_NAME = "TORCHX_ROLE_NAME"
REPLICA_IDX = "TORCHX_REPLICA_IDX"
SESSION_ID = "TORCHX_INTERNAL_SESSION_ID"
PARENT_RUN_ID = "TORCHX_PARENT_RUN_ID"
TRACKERS = "TORCHX_TRACKERS"


@functools.cache
def internal_session_id() -> str:
    """Return what names this process and the jobs that it launches; a job's own launches inherit it."""
    return os.environ.get(SESSION_ID) or os.urandom(16).hex()


def inject(
    app: AppDef,
    scheduler: str,
    session: str,
    parent_run_id: str | None = None,
    trackers: Mapping[str, str | None] | None = None,
) -> None:
    """Add the variables to every role, in place.

    Args:
        app: the job; its own values for trackers stay.
        scheduler: name of the scheduler.
        session: the session part of the job's handle.
        parent_run_id: the run that this one belongs to.
        trackers: experiment trackers by name, each with its configuration.
    """
    for index, role in enumerate(app.roles):
        role.env[JOB_ID] = make_app_handle(scheduler, session, macros.app_id)
        role.env[ROLE_IDX] = str(index)
        role.env[ROLE_NAME] = role.name
        role.env[REPLICA_IDX] = macros.replica_id
        role.env[SESSION_ID] = internal_session_id()
        if parent_run_id:
            role.env[PARENT_RUN_ID] = parent_run_id
        if trackers:
            role.env.setdefault(TRACKERS, ",".join(trackers))
            for name, config in trackers.items():
                if config is not None:
                    role.env.setdefault(f"TORCHX_TRACKER_{name.upper()}_CONFIG", config)
