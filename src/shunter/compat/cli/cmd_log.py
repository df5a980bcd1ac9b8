"""Reading logs as TorchX's command line does (``torchx.cli.cmd_log``)."""

from __future__ import annotations

import logging
import re
import sys
import threading
from queue import Queue
from typing import TextIO

from shunter.backoff import polling
from shunter.compat.cli.colors import ENDC, GREEN
from shunter.compat.runner.api import get_runner
from shunter.errors import UnknownAppException
from shunter.runner.api import Runner
from shunter.schedulers.responses import Stream
from shunter.specs.app import AppDef
from shunter.specs.status import is_started

logger = logging.getLogger(__name__)
ID_FORMAT = "SCHEDULER://[SESSION_NAME]/APP_ID/[ROLE_NAME/[REPLICA_IDS,...]]"
_IDENTIFIER = re.compile(r"[^:/]+://[^/]*/[^/]+(/[^/]+(/(\d+,?)+)?)?")


def validate(job_identifier: str) -> None:
    """Exit with a message unless the identifier names a job, a role or replicas of a role."""
    if not _IDENTIFIER.fullmatch(job_identifier):
        print(f"{job_identifier} is not of the form {ID_FORMAT}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


def find_role_replicas(app: AppDef, role_name: str | None) -> list[tuple[str, int]]:
    """Return the replicas of a job, or of one role, as pairs of role and index."""
    roles = [role for role in app.roles if role_name is None or role.name == role_name]
    return [(role.name, index) for role in roles for index in range(role.num_replicas)]


def _prefix_line(prefix: str, line: str) -> str:
    """Put a prefix before a line, and after each line feed or carriage return within it."""
    if "\r" in line:
        line = line.replace("\r", f"\r{prefix}")
    if "\n" in line[:-1]:
        line = line[:-1].replace("\n", f"\n{prefix}") + line[-1:]
    return line if line.startswith("\r") else f"{prefix}{line}"


def print_log_lines(
    file: TextIO,
    runner: Runner,
    app_handle: str,
    role_name: str,
    replica_id: int,
    regex: str | None,
    should_tail: bool,
    exceptions: Queue[Exception],
    streams: Stream | None,
) -> None:
    """Print the lines of a replica, each with its name in front; an error is put into ``exceptions``."""
    prefix = f"{GREEN}{role_name}/{replica_id}{ENDC} "
    try:
        for line in runner.log_lines(
            app_handle, role_name, replica_id, regex, should_tail=should_tail, streams=streams
        ):
            file.write(_prefix_line(prefix, line if line.endswith("\n") else f"{line}\n"))
            file.flush()
    except Exception as error:
        exceptions.put(error)


def get_logs(
    file: TextIO,
    identifier: str,
    regex: str | None,
    should_tail: bool = False,
    runner: Runner | None = None,
    streams: Stream | None = None,
) -> None:
    """Print the logs of what ``SCHEDULER://SESSION/APP_ID[/ROLE[/REPLICAS]]`` names, once it runs.

    Raises:
        UnknownAppException: there is no such job.
    """
    validate(identifier)
    backend, _, rest = identifier.partition("://")
    session, app_id, *place = rest.split("/")
    handle = f"{backend}://{session or 'torchx'}/{app_id}"
    runner = runner or get_runner()
    polls = polling(None)
    while (status := runner.status(handle)) is not None and not is_started(status.state):
        polls.pause()
    app = runner.describe(handle)
    if status is None or app is None:
        raise UnknownAppException(handle)
    replicas = find_role_replicas(app, place[0] if place else None)
    if len(place) > 1:
        replicas = [(role, index) for role, index in replicas if str(index) in place[1].split(",")]
    if not replicas:
        print(f"{identifier}: the job has no such replicas", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    exceptions: Queue[Exception] = Queue()
    threads = [
        threading.Thread(
            target=print_log_lines,
            args=(file, runner, handle, role, index, regex, should_tail, exceptions, streams),
            daemon=True,
        )
        for role, index in replicas
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not exceptions.empty():
        raise exceptions.get()
