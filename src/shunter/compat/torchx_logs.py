"""Reading logs as TorchX's command line does (``torchx.cli.cmd_log``)."""

from __future__ import annotations

import logging
import re
import sys
import threading
from queue import Queue
from typing import Any, TextIO

from shunter.backoff import polling
from shunter.compat.torchx_cli import ENDC, GREEN
from shunter.compat.torchx_runner import TorchxRunner, get_runner
from shunter.errors import UnknownAppException
from shunter.schedulers.responses import Stream
from shunter.specs.app import AppDef
from shunter.specs.status import is_started

logger = logging.getLogger(__name__)
ID_FORMAT = "SCHEDULER://[SESSION_NAME]/APP_ID/[ROLE_NAME/[REPLICA_IDS,...]]"
_IDENTIFIER = re.compile(r"[^:/]+://[^/]*/[^/]+(/[^/]+(/(\d+,?)+)?)?")


def check_log_identifier(job_identifier: str) -> None:
    """Exit with a message unless the identifier names a job, a role or replicas of a role."""
    if not _IDENTIFIER.fullmatch(job_identifier):
        print(f"{job_identifier} is not of the form {ID_FORMAT}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


def find_role_replicas(app: AppDef, role_name: str | None) -> list[tuple[str, int]]:
    """Return the replicas of a job, or of one role, as pairs of role and index."""
    return [
        (role.name, index)
        for role in app.roles
        if role_name is None or role.name == role_name
        for index in range(role.num_replicas)
    ]


def prefix_line(prefix: str, line: str) -> str:
    """Put a prefix before a line, and after each line feed or carriage return within it."""
    if "\r" in line:
        line = line.replace("\r", f"\r{prefix}")
    if "\n" in line[:-1]:
        line = line[:-1].replace("\n", f"\n{prefix}") + line[-1:]
    return line if line.startswith("\r") else f"{prefix}{line}"


def print_log_lines(
    file: TextIO,
    runner: TorchxRunner,
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
            file.write(prefix_line(prefix, line if line.endswith("\n") else f"{line}\n"))
            file.flush()
    except Exception as error:
        exceptions.put(error)
        raise


def get_logs(
    file: TextIO,
    identifier: str,
    regex: str | None,
    should_tail: bool = False,
    runner: TorchxRunner | None = None,
    streams: Stream | None = None,
) -> None:
    """Print the logs of what ``SCHEDULER://SESSION/APP_ID[/ROLE[/REPLICAS]]`` names, once it runs.

    Raises:
        UnknownAppException: there is no such job.
    """
    check_log_identifier(identifier)
    backend, _, rest = identifier.partition("://")
    session, app_id, *place = rest.split("/")
    handle = f"{backend}://{session or 'torchx'}/{app_id}"
    runner = runner or get_runner()
    _await_start(runner, handle)
    app = runner.describe(handle)
    if app is None:
        raise UnknownAppException(handle)
    replicas = find_role_replicas(app, place[0] if place else None)
    if len(place) > 1:
        wanted = {int(index) for index in place[1].split(",") if index}
        replicas = [(role, index) for role, index in replicas if index in wanted]
    if not replicas:
        print(f"{identifier}: the job has no such replicas", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    exceptions: Queue[Exception] = Queue()
    threads = [
        threading.Thread(
            target=_quietly,
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


def _quietly(*args: Any) -> None:
    try:
        print_log_lines(*args)
    except Exception:
        pass


def _await_start(runner: TorchxRunner, handle: str) -> None:
    polls, waits = polling(None), False
    while True:
        status = runner.status(handle)
        if status is None:
            raise UnknownAppException(handle)
        if is_started(status.state):
            return
        if not waits:
            logger.info("Waiting for %s to start", handle)
            waits = True
        polls.pause()


def tee_logs(
    dst: TextIO,
    app_handle: str,
    regex: str | None,
    runner: TorchxRunner,
    should_tail: bool = False,
    streams: Stream | None = None,
    colorize: bool = False,
) -> threading.Thread:
    """Return a thread, not started, that prints the logs of a job."""
    return threading.Thread(
        target=get_logs, args=(dst, app_handle, regex, should_tail, runner, streams), daemon=True
    )
