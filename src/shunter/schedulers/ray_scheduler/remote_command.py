"""Run a command beside a replica, as another job: on its node, in its directory, with its variables.

The Jobs API gives no way into a running job, so there is no terminal, and stdin is empty.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shunter.errors import BackendError, ConfigError, UnknownAppException
from shunter.parallel import for_all
from shunter.schedulers.ray_scheduler import logs, request, states
from shunter.schedulers.responses import LogQuery, Stream
from shunter.specs.app import AppDef, Role

if TYPE_CHECKING:
    from shunter.schedulers.ray_scheduler.scheduler import RayScheduler

ROLE = "exec"


def run_inside(scheduler: RayScheduler, app_id: str, role_name: str, k: int, command: Sequence[str]) -> int:
    """Run a command on the node of a replica; returns its exit code.

    Raises:
        ConfigError: the replica does not run, or no command is given.
    """
    if not command:
        raise ConfigError(
            "ray cannot open a shell: its Jobs API offers no terminal",
            hint="Give a command: `shunter exec JOB ROLE/0 -- COMMAND`.",
        )
    place = place_of(scheduler, app_id, role_name, k)
    app = AppDef(f"{ROLE}-{app_id}"[:40], [Role(ROLE, "", entrypoint=command[0], args=[*command[1:]])])
    address = scheduler.dashboard_of(app_id).address
    info = scheduler.submit_dryrun(app, {**scheduler.connection(), "dashboard_address": address}, "")
    info.request.plan["inside"] = place
    info.request.submission["metadata"][request.EXEC_OF] = app_id
    scheduler.ship(info)
    own = scheduler.schedule(info)

    def copy(stream: Stream) -> None:
        sink = sys.stdout.buffer if stream is Stream.STDOUT else sys.stderr.buffer
        for block in scheduler.log_blocks(own, [(ROLE, 0)], LogQuery(should_tail=True, streams=stream)):
            sink.write(block.data)
            sink.flush()

    try:
        for_all(copy, [Stream.STDOUT, Stream.STDERR], on_failure=lambda: scheduler.cancel(own))
        response = scheduler.describe(own)
    finally:
        try:
            scheduler.delete(own)
        except (BackendError, ConfigError):
            logs.forget(own)
    replicas = response.to_status().replicas() if response is not None else []
    if not replicas or replicas[0].exit_code is None:
        text = response.msg if response is not None else "Ray has forgotten it"
        raise BackendError(f"the command was not run: {text}")
    return replicas[0].exit_code


def place_of(scheduler: RayScheduler, app_id: str, role_name: str, k: int) -> dict[str, Any]:
    """Return the node and the pid of a replica's program.

    Raises:
        ConfigError: it does not run.
        UnknownAppException: there is no such job.
    """
    job = states.find_job(scheduler.dashboard_of(app_id), app_id, with_document=True)
    if job is None:
        raise UnknownAppException(f"Ray does not know the job {app_id!r}")
    for role in job.document.get("roles", []):
        for replica in role["replicas"]:
            if (role["role"], replica["id"]) == (role_name, k) and replica.get("pid"):
                return {"node": replica["node"], "pid": replica["pid"]}
    raise ConfigError(
        f"{role_name}/{k} of {app_id} is not running", hint="`shunter status` shows which replicas run."
    )
