"""From a job and options to a scheduler's request, without touching anything."""

from __future__ import annotations

import copy

from trainyard.runner.injection import inject
from trainyard.runner.training import start_toolkits
from trainyard.specs.app import validate_app
from trainyard.specs.serialize import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from trainyard.schedulers.base import Scheduler
    from trainyard.specs.app import AppDef
    from trainyard.specs.dryrun import AppDryRunInfo
    from trainyard.specs.workspace import Workspace


def prepare(
    scheduler: Scheduler[Any],
    app: AppDef,
    cfg: Mapping[str, Any] | None,
    workspace: Workspace | str | None,
    parent_run_id: str | None,
    trackers: Mapping[str, str | None],
) -> AppDryRunInfo[Any]:
    """Check a job and make the request for it. The caller's ``app`` is not changed.

    Raises:
        ConfigError: the job is not complete, or cannot run on this scheduler.
        InvalidRunConfigException: an option is unknown, missing or of the wrong type.
    """
    from trainyard.specs.workspace import Workspace

    validate_app(app)
    if not isinstance(workspace, Workspace):
        workspace = Workspace.from_str(workspace)
    own = copy.deepcopy(app)
    # as it is now: the runner's variables are made anew for a repetition
    definition = to_json(own)
    inject(own, scheduler.backend, scheduler.session_name, parent_run_id, trackers)
    start_toolkits(own, scheduler)
    info = scheduler.submit_dryrun(own, cfg or {}, workspace)
    info.record |= {
        "app": definition,
        # one that nobody asked for, and that did not travel, is none
        "workspace": None if workspace.implicit and info.shipment is None else str(workspace) or None,
        "parent_run_id": parent_run_id,
    }
    return info
