"""A command in a running replica, run as another job: on the replica's node, in its directory, with its
variables.

The Jobs API gives no way into a running job, so there is no terminal, and stdin is empty.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

from shunter.errors import BackendError, ConfigError
from shunter.schedulers.ray_scheduler import observe, request
from shunter.schedulers.ray_scheduler.housekeeping import forget
from shunter.schedulers.responses import LogQuery, Stream
from shunter.specs.app import AppDef, Role

if TYPE_CHECKING:
    from shunter.schedulers.ray_scheduler.scheduler import RayScheduler

ROLE = "exec"


def run_inside(scheduler: RayScheduler, app_id: str, role_name: str, k: int, command: Sequence[str]) -> int:
    """Run a command where a replica runs; returns its exit code.

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
    made = info.request
    made.plan["inside"] = place
    made.submission["metadata"][request.EXEC_OF] = app_id
    scheduler.ship(info)
    own = scheduler.schedule(info)
    try:
        _relay(scheduler, own)
        return _exit_code(scheduler, own)
    except BaseException:
        scheduler.cancel(own)
        raise
    finally:
        _remove(scheduler, own)


def place_of(scheduler: RayScheduler, app_id: str, role_name: str, k: int) -> dict[str, Any]:
    """Return the node and the pid of a replica's program.

    Raises:
        ConfigError: it does not run.
    """
    dashboard = scheduler.dashboard_of(app_id)
    job = observe.find_job(dashboard, app_id)
    document = None if job is None else observe.state_document(dashboard, app_id, job)
    for role in (document or {}).get("roles", []):
        for replica in role["replicas"]:
            if (role["role"], replica["id"]) == (role_name, k) and replica.get("pid"):
                return {"node": replica["node"], "pid": replica["pid"]}
    raise ConfigError(
        f"{role_name}/{k} of {app_id} is not running", hint="`shunter status` shows which replicas run."
    )


def _relay(scheduler: RayScheduler, own: str) -> None:
    """Pass the command's output on to ours, to its end."""
    problems: list[BaseException] = []

    def copy(stream: Stream, sink: IO[bytes]) -> None:
        try:
            for block in scheduler.log_blocks(own, [(ROLE, 0)], LogQuery(should_tail=True, streams=stream)):
                sink.write(block.data)
                sink.flush()
        except BaseException as error:
            problems.append(error)

    errors = threading.Thread(target=copy, args=(Stream.STDERR, sys.stderr.buffer), daemon=True)
    errors.start()
    copy(Stream.STDOUT, sys.stdout.buffer)
    errors.join()
    if problems:
        raise problems[0]


def _exit_code(scheduler: RayScheduler, own: str) -> int:
    response = scheduler.describe(own)
    replicas = response.to_status().replicas() if response is not None else []
    if not replicas or replicas[0].exit_code is None:
        text = response.msg if response is not None else "Ray has forgotten it"
        raise BackendError(f"the command was not run: {text}")
    return replicas[0].exit_code


def _remove(scheduler: RayScheduler, own: str) -> None:
    try:
        scheduler.delete(own)
    except (BackendError, ConfigError):
        forget(own)
