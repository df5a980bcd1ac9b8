"""Watching a job to its end: logs, status lines or `status --watch`, and what Ctrl-C does meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from shunter.backoff import polling
from shunter.cli.console import is_tty, note, out, paint_state, wants_colour, warn
from shunter.cli.jobstatus import check_not_gone, job_json, status_of, status_text
from shunter.cli.lastmetrics import LastMetrics
from shunter.cli.liveview import Screen, StatusLines, changes
from shunter.cli.logwriter import LogWriter, bytes_of
from shunter.errors import BackendError
from shunter.runner import Runner, get_runner
from shunter.schedulers.api import LogQuery
from shunter.specs.status import AppState, AppStatus, detail_lines, reason_text
from shunter.terminal import clean, format_duration

LOCAL_STEP = 1.0
#: A local job leaves these states within milliseconds.
STARTING, STARTING_STEP = (AppState.SUBMITTED, AppState.PENDING), 0.1
LONGEST_REQUEST = 10.0


class Detached(KeyboardInterrupt):
    """A signal ended the watching. The job keeps running, unless it was asked to stop."""

    def __init__(self, signum: int, *, asked_to_stop: bool = False) -> None:
        super().__init__()
        self.asked_to_stop = asked_to_stop
        self.exit_code = 128 + signum


class Interrupts:
    """Handles Ctrl-C and SIGTERM while a job is watched.

    With ``may_stop`` the first Ctrl-C asks the job to stop, and a second one ends the watching. Otherwise the
    first Ctrl-C ends the watching; SIGTERM always does.
    """

    def __init__(self, handle: str, may_stop: bool) -> None:
        self._handle = handle
        self._may_stop = may_stop
        self._previous: list[tuple[int, Any]] = []
        self._request: threading.Thread | None = None
        self.stopping = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            handlers = {signal.SIGINT: self._interrupted, signal.SIGTERM: self._terminated}
            self._previous = [(number, signal.signal(number, handlers[number])) for number in handlers]
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)
        if self._request is not None:
            # a quick second Ctrl-C must not abort the request; a third one does
            self._request.join(LONGEST_REQUEST)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if not self._may_stop or self.stopping:
            raise Detached(number, asked_to_stop=self.stopping)
        if self._request is not None:
            return  # another call of this handler is starting the request
        self._request = threading.Thread(target=_cancel, args=(self._handle,), name="cancel", daemon=True)
        self._request.start()
        # from now on another Ctrl-C ends the watching
        self.stopping = True
        with contextlib.suppress(OSError):
            # os.write: the handler may have interrupted a write to stderr
            os.write(2, b"\nstopping the job; press Ctrl-C again to stop watching\n")

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        raise Detached(number, asked_to_stop=self.stopping)


def _cancel(handle: str) -> None:
    # a separate runner: the other one's connections belong to the main thread
    try:
        with get_runner() as runner:
            runner.cancel(handle)
    except Exception as error:
        warn(f"{handle} could not be stopped: {error}")


def follow(runner: Runner, handle: str, *, logs: bool, may_stop: bool) -> tuple[AppStatus, bool]:
    """Watch a job until it has ended; return its last status, and whether Ctrl-C stopped it.

    Shows logs or status lines on stderr; with ``may_stop`` Ctrl-C asks the job to stop.

    Raises:
        Detached: the user stopped watching.
        UnknownAppException: the job no longer exists.
    """
    started = time.time()
    with Interrupts(handle, may_stop) as interrupts:
        if logs:
            show_logs(runner, handle)
        status = wait_for_end(runner, handle, None if logs else StatusLines(handle, started))
    took = format_duration(time.time() - started)
    reason = f": {reason_text(status)}" if status.reason else ""
    note(f"{handle} {paint_state(str(status.state), sys.stderr)} after {took}{reason}")
    if status.state != AppState.SUCCEEDED:
        lines = detail_lines(status)
        if status.num_restarts > 0:
            lines.insert(0, f"Restarts: {status.num_restarts}")
        if lines:
            note("\n".join(lines))
    if status.state == AppState.FAILED and not interrupts.stopping:
        _say_why(runner, handle, status)
    return status, interrupts.stopping


def _say_why(runner: Runner, handle: str, status: AppStatus) -> None:
    from shunter.runner.explanation import Explanation, explain_failed  # only after a failure

    report = Explanation(handle, status, explain_failed(runner, handle, status))
    note("\n".join(f"why: {clean(line)}" for line in report.short()))


def show_logs(runner: Runner, handle: str) -> None:
    """Follow all logs of a job on stderr until the job has ended."""
    if sys.stderr is None:
        return
    writer = LogWriter(bytes_of(sys.stderr), wants_colour(sys.stderr))
    try:
        writer.write_all(runner.log_blocks(handle, runner.replicas(handle), LogQuery(should_tail=True)))
        writer.finish()
    except (BackendError, NotImplementedError) as error:
        writer.finish()
        warn(f"the logs cannot be followed: {error}")


def wait_for_end(
    runner: Runner, handle: str, lines: StatusLines | None, timeout: float | None = None
) -> AppStatus:
    """Wait until a job has ended, or ``timeout`` seconds have passed; return its last status.

    While the job cannot be seen, it keeps asking, less and less often.
    """
    scheduler = runner.scheduler(handle.partition("://")[0])
    polls, warned = polling(timeout), False
    ended: AppStatus | None = None
    while True:
        status = ended or status_of(runner, handle, refusal_is_final=True)
        left = polls.left()
        if status.is_terminal() or left == 0:
            if lines is not None:
                lines.finish(status)
            return status
        check_not_gone(runner, handle, status)
        if lines is not None:
            lines.show(status)
        elif status.state == AppState.UNREACHABLE and not warned:
            warn(f"{handle} cannot be seen now; still waiting: {clean(status.msg)}")
            warned = True
        if scheduler.capabilities.is_local:
            if status.state == AppState.UNKNOWN:
                raise BackendError(
                    f"cannot wait for the end of {handle}: {status.msg}",
                    hint="Its files are damaged; `shunter log` may still show its output.",
                )
            step = STARTING_STEP if status.state in STARTING else LOCAL_STEP
            ended = wait_locally(runner, handle, step if left is None else min(step, left))
        else:
            polls.pause()


def wait_locally(runner: Runner, handle: str, seconds: float) -> AppStatus | None:
    """Wait up to ``seconds`` for a local job to end; returns its status if it has."""
    started = time.monotonic()
    status = runner.wait(handle, timeout=seconds)  # returns at once when the job ends
    if status is None or status.is_terminal():
        return status
    time.sleep(max(0.0, seconds - (time.monotonic() - started)))  # also if waiting fails at once
    return None


def watch(runner: Runner, handle: str, roles: list[str] | None, as_json: bool = False) -> AppStatus:
    """Show a job's status until it has ended; return the last one."""
    is_local = runner.scheduler(handle.partition("://")[0]).capabilities.is_local
    view = StatusView(handle, roles, as_json)
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


class StatusView:
    """Shows one status after another: redrawn on a terminal, otherwise changes, or JSON lines."""

    def __init__(self, handle: str, roles: list[str] | None, as_json: bool) -> None:
        self._handle = handle
        self._roles = roles
        self._json = as_json
        self._screen = None if as_json or not is_tty(sys.stdout) else Screen(sys.stdout)
        self._before: AppStatus | None = None
        self._metrics: LastMetrics | None = None

    def _values(self, status: AppStatus) -> list[str]:
        """Return a line for each role with the last values of its metrics."""
        if self._metrics is None and status.state == AppState.RUNNING:
            self._metrics = LastMetrics(self._handle)
        if self._metrics is None:
            return []
        if status.is_terminal():  # the last values may not have been read yet: `metrics` shows them
            self._metrics.close()
            return []
        values = {role.role: self._metrics.of(role.role) for role in status.roles}
        return [f"Metrics of {clean(role)}: {text}" for role, text in values.items() if text]

    def show(self, status: AppStatus) -> None:
        """Show a status, or what has changed since the previous one."""
        if self._screen is not None:
            lines = status_text(self._handle, status, self._roles).split("\n")
            (self._screen.finish if status.is_terminal() else self._screen.draw)(
                [*lines, *self._values(status)]
            )
        elif self._json:
            if status != self._before:
                out(json.dumps(job_json(self._handle, status, self._roles)))
        else:
            clock = time.strftime("%H:%M:%S")
            for line in changes(self._before, status, self._roles):
                out(f"{clock} {line}")
        self._before = status
