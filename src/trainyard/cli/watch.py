"""`status --watch`: a picture that is redrawn on a terminal, changes when piped, JSON lines on request."""

from __future__ import annotations

import sys
import time

from trainyard.backoff import polling
from trainyard.cli.console import is_terminal, out
from trainyard.cli.follow import LOCAL_STEP, wait_locally
from trainyard.cli.jobs import check_not_gone, job_json, status_of
from trainyard.cli.liveview import Screen, changes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.runner import Runner
    from trainyard.specs.status import AppStatus


def watch(runner: Runner, handle: str, roles: list[str] | None, as_json: bool = False) -> AppStatus:
    """Show a job's status until it has ended; return the last one."""
    is_local = runner.scheduler(handle.partition("://")[0]).is_local
    view = View(handle, roles, as_json)
    polls = polling()
    while True:
        status = status_of(runner, handle, refusal_is_final=True)
        view.show(status)
        if status.is_terminal():
            return status
        check_not_gone(runner, handle, status)
        if is_local:
            wait_locally(runner, handle, LOCAL_STEP)
        else:
            polls.pause()


class View:
    """Shows one status after another, in the form that suits stdout."""

    def __init__(self, handle: str, roles: list[str] | None, as_json: bool) -> None:
        self._handle = handle
        self._roles = roles
        self._json = as_json
        self._screen = None if as_json or not is_terminal(sys.stdout) else Screen(sys.stdout)
        self._before: AppStatus | None = None

    def show(self, status: AppStatus) -> None:
        """Show a status, or what has changed since the one before."""
        if self._screen is not None:
            from trainyard.cli.commands.status import as_text

            lines = as_text(self._handle, status, self._roles).split("\n")
            (self._screen.finish if status.is_terminal() else self._screen.draw)(lines)
        elif self._json:
            if status != self._before:
                import json

                out(json.dumps(job_json(self._handle, status, self._roles)))
        else:
            clock = time.strftime("%H:%M:%S")
            for line in changes(self._before, status, self._roles):
                out(f"{clock} {line}")
        self._before = status
