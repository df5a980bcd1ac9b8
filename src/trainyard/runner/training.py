"""Jobs that follow the toolkit's contract: the toolkit is started in place of their script.

The interface is the job document of ``docs/contract.md``, which travels in a variable. Schedulers that
carry out the contract themselves read ``metadata["train"]`` instead.
"""

from __future__ import annotations

import json

from trainyard.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.schedulers.base import Scheduler
    from trainyard.specs.app import AppDef, Role

METADATA_KEY = "train"
DOCUMENT = "TRAINYARD_JOB"


def start_toolkits(app: AppDef, scheduler: Scheduler[Any]) -> None:
    """Let every role with a training specification start the toolkit instead of its script, in place.

    Raises:
        ConfigError: the scheduler cannot bring the toolkit to the job.
    """
    for role in app.roles:
        if METADATA_KEY in role.metadata and not scheduler.reads_training_specs:
            _start_toolkit(role, scheduler)


def _start_toolkit(role: Role, scheduler: Scheduler[Any]) -> None:
    place = scheduler.toolkit_place(role)
    if place is None:
        raise ConfigError(
            f"{scheduler.backend} cannot bring the toolkit to role {role.name!r}, which has channels, results"
            " or a distribution",
            hint="Run the script without them, or on another scheduler.",
        )
    document = {"code": place.code, **role.metadata[METADATA_KEY]}
    role.entrypoint = place.python
    role.args = [place.archive, "train"]
    role.env[DOCUMENT] = json.dumps(document)  # macros in it are substituted, as in arguments
    if place.base:
        role.env.setdefault("SAGEMAKER_BASE_DIR", place.base)
