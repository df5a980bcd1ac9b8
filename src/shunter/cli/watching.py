"""Watching a job to its end: `run`, `wait`, `status --watch`; and what Ctrl-C does meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from shunter.backoff import LONGEST_POLL, polling
from shunter.cli.console import (
    FAINT,
    Interrupted,
    Screen,
    is_tty,
    note,
    out,
    paint,
    paint_state,
    wants_colour,
    warn,
)
from shunter.cli.log_writers import LogWriter, bytes_of
from shunter.cli.shown_status import changes, check_not_gone, job_json, role_line, status_of, status_text
from shunter.errors import BackendError
from shunter.runner import Runner, get_runner
from shunter.schedulers.api import LogQuery
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState, AppStatus, detail_lines, reason_text
from shunter.terminal import clean, format_duration

if TYPE_CHECKING:
    from shunter.metrics.last_values import LastValues

#: Seconds between two looks at a local job, whose end is seen at once anyway, and while it starts.
LOCAL_STEP, STARTING_STEP = 1.0, 0.1
#: How long to wait for the request that stops a job, in seconds, before the command ends.
LONGEST_REQUEST = 10.0


# ---- Ctrl-C and SIGTERM


class Detached(Interrupted):
    """A signal ended the watching. The job keeps running, unless it was asked to stop."""

    def __init__(self, signum: int, *, asked_to_stop: bool = False) -> None:
        super().__init__()
        self.exit_code = 128 + signum
        self.asked_to_stop = asked_to_stop


class Interrupts:
    """Handles Ctrl-C and SIGTERM while a job is watched. A context manager.

    With ``stop`` the first Ctrl-C calls it, in a thread, and a second one ends the watching. Otherwise the
    first Ctrl-C ends the watching; SIGTERM always does.

    Attributes:
        stopping: whether the job has been asked to stop.
    """

    def __init__(self, stop: Callable[[], None] | None) -> None:
        self._stop = stop
        self._previous: list[tuple[int, Any]] = []
        self._request: threading.Thread | None = None
        self.stopping = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            numbers = (signal.SIGINT, signal.SIGTERM)
            self._previous = [(number, signal.signal(number, self._handle)) for number in numbers]
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)
        if self._request is not None:
            # a quick second Ctrl-C must not abort the request; a third one does
            self._request.join(LONGEST_REQUEST)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM or self._stop is None or self.stopping:
            raise Detached(number, asked_to_stop=self.stopping)
        if self._request is not None:
            return  # another call of this handler is starting the request
        self._request = threading.Thread(target=self._stop, name="cancel", daemon=True)
        self._request.start()
        # from now on another Ctrl-C ends the watching
        self.stopping = True
        with contextlib.suppress(OSError):
            # os.write: the handler may have interrupted a write to stderr
            os.write(2, b"\nstopping the job; press Ctrl-C again to stop watching\n")


# ---- what is shown meanwhile


class _LiveStatus:
    """Shows a job's status again and again: redrawn on a terminal; elsewhere lines for what is new."""

    def __init__(self, handle: str, stream: TextIO, *, redraws: bool = True) -> None:
        self._handle = handle
        self._screen = Screen(stream) if redraws and is_tty(stream) else None
        self._metrics: LastValues | None = None
        self._before: AppStatus | None = None

    def show(self, status: AppStatus) -> None:
        """Show a status, or what has changed since the previous one."""
        if self._screen is None:
            self._print(status)
        elif status.is_terminal():  # the last values may not have been read yet: `metrics` shows them
            self.close()
            self._screen.finish(self._last_picture(status))
        else:
            self._screen.draw(self._picture(status, self._last_values(status)))
        self._before = status

    def close(self) -> None:
        """Stop reading metrics, and remove what is only drawn."""
        if self._metrics is not None:
            self._metrics.close()
        if self._screen is not None:
            self._screen.clear()

    def _last_values(self, status: AppStatus) -> dict[str, str]:
        """Return the last values of the metrics of each role that has reported any."""
        if self._metrics is None and status.state == AppState.RUNNING:
            from shunter.metrics.last_values import LastValues  # 30 ms, only if a job runs on a terminal

            self._metrics = LastValues(self._handle)
        return {} if self._metrics is None else self._metrics.texts

    def _print(self, status: AppStatus) -> None:
        raise NotImplementedError

    def _picture(self, status: AppStatus, values: dict[str, str]) -> list[str]:
        raise NotImplementedError

    def _last_picture(self, status: AppStatus) -> list[str]:
        return []


class StatusLines(_LiveStatus):
    """What `run --wait` shows on stderr: the job's state and a line per role; nothing of it stays."""

    def __init__(self, handle: str) -> None:
        super().__init__(handle, sys.stderr)
        self._name = handle.rpartition("/")[2]
        self._since = time.time()
        self._last_line = ""

    def _print(self, status: AppStatus) -> None:
        waits = status.state in (AppState.PENDING, AppState.SUSPENDED)
        reason = f" ({clean(status.reason)})" if status.reason and waits else ""
        line = "; ".join([f"{self._name} {status.state}{reason}", *map(role_line, status.roles)])
        if line != self._last_line:
            self._last_line = line
            note(line)

    def _picture(self, status: AppStatus, values: dict[str, str]) -> list[str]:
        elapsed = format_duration(time.time() - self._since)
        head = f"{self._name}  {paint_state(str(status.state), sys.stderr)}  {elapsed}"
        if status.reason:
            head += "  " + paint(clean(status.reason), FAINT, sys.stderr)
        width = max((len(role.role) for role in status.roles), default=0)
        lines = [
            f"  {role_line(role, width, sys.stderr)}  {values.get(role.role, '')}" for role in status.roles
        ]
        return [head, *(line.rstrip() for line in lines)]


class StatusView(_LiveStatus):
    """What `status --watch` shows on stdout: the whole status, what has changed of it, or JSON lines."""

    def __init__(self, handle: str, roles: list[str] | None, as_json: bool) -> None:
        super().__init__(handle, sys.stdout, redraws=not as_json)
        self._roles = roles
        self._json = as_json

    def _print(self, status: AppStatus) -> None:
        if not self._json:
            clock = time.strftime("%H:%M:%S")
            for line in changes(self._before, status, self._roles):
                out(f"{clock} {line}")
        elif status != self._before:
            out(json.dumps(job_json(self._handle, status, self._roles)))

    def _picture(self, status: AppStatus, values: dict[str, str]) -> list[str]:
        metrics = [f"Metrics of {clean(role)}: {text}" for role, text in values.items()]
        return [*self._last_picture(status), *metrics]

    def _last_picture(self, status: AppStatus) -> list[str]:
        return status_text(self._handle, status, self._roles).split("\n")


# ---- watching


def watched_states(runner: Runner, handle: str, timeout: float | None = None) -> Iterator[AppStatus]:
    """Yield a job's status again and again, until it has ended or ``timeout`` seconds have passed.

    A scheduler that cannot be reached is asked less and less often.

    Raises:
        AccessError: the scheduler refuses the credentials.
        BackendError: the files of a local job are damaged.
        UnknownAppException: the job does not exist, or no longer.
    """
    capabilities = runner.scheduler(parse_app_handle(handle).scheduler_backend).capabilities
    polls = polling(timeout)
    while True:
        status = status_of(runner, handle, refusal_is_final=True)
        left = polls.left()
        if status.is_terminal() or left == 0:
            yield status
            return
        check_not_gone(runner, handle, status)
        yield status
        if not capabilities.notifies or status.state == AppState.UNREACHABLE:
            polls.pause()
            continue
        if capabilities.is_local and status.state == AppState.UNKNOWN:
            raise BackendError(
                f"cannot wait for the end of {handle}: {status.msg}",
                hint="Its files are damaged; `shunter log` may still show its output.",
            )
        step = LONGEST_POLL
        if capabilities.is_local:
            step = STARTING_STEP if status.state in (AppState.SUBMITTED, AppState.PENDING) else LOCAL_STEP
        _wait_for_end(runner, handle, step if left is None else min(step, left))


def _wait_for_end(runner: Runner, handle: str, seconds: float) -> None:
    """Wait until a job has ended, but at most some seconds."""
    started = time.monotonic()
    ended = runner.wait(handle, timeout=seconds)  # returns at once when the job ends
    if ended is not None and not ended.is_terminal():
        time.sleep(max(0.0, seconds - (time.monotonic() - started)))  # also if waiting fails at once


def wait_for_end(
    runner: Runner, handle: str, lines: StatusLines | None, timeout: float | None = None
) -> AppStatus:
    """Wait until a job has ended, or ``timeout`` seconds have passed; return its last status.

    Shows the states in ``lines``; without, only a warning when the job cannot be seen.

    Raises:
        ShunterError: see `watched_states`.
    """
    warned = False
    with contextlib.closing(lines) if lines is not None else contextlib.nullcontext():
        for status in watched_states(runner, handle, timeout):
            if lines is not None:
                lines.show(status)
            elif status.state == AppState.UNREACHABLE and not warned:
                warn(f"{handle} cannot be seen now; still waiting: {clean(status.msg)}")
                warned = True
    return status


def follow(runner: Runner, handle: str, *, logs: bool, may_stop: bool) -> tuple[AppStatus, bool]:
    """Watch a job until it has ended; return its last status, and whether Ctrl-C stopped it.

    Shows logs or status lines on stderr; with ``may_stop`` Ctrl-C asks the job to stop.

    Raises:
        Detached: the user stopped watching.
        UnknownAppException: the job no longer exists.
    """
    started = time.time()
    with Interrupts((lambda: _cancel(handle)) if may_stop else None) as interrupts:
        if logs:
            _follow_logs(runner, handle)
        status = wait_for_end(runner, handle, None if logs else StatusLines(handle))
    show_end(runner, handle, status, time.time() - started, explains=not interrupts.stopping)
    return status, interrupts.stopping


def show_end(
    runner: Runner, handle: str, status: AppStatus, seconds: float, *, explains: bool = True
) -> None:
    """Say on stderr how a job ended, and after how many seconds; ``explains`` adds why it failed."""
    reason = f": {reason_text(status)}" if status.reason else ""
    note(f"{handle} {paint_state(str(status.state), sys.stderr)} after {format_duration(seconds)}{reason}")
    explains = explains and status.state == AppState.FAILED
    if status.state != AppState.SUCCEEDED:
        restarts = [f"Restarts: {status.num_restarts}"] if status.num_restarts > 0 else []
        for line in [*restarts, *detail_lines(status, with_errors=not explains)]:
            note(line)
    if explains:
        from shunter.why.explanation import Explanation, explain_failed  # only after a failure

        for line in Explanation(handle, status, explain_failed(runner, handle, status)).short():
            note(f"why: {clean(line)}")


def _cancel(handle: str) -> None:
    # a separate runner: the other one's connections belong to the main thread
    try:
        with get_runner() as runner:
            runner.cancel(handle)
    except Exception as error:
        warn(f"{handle} could not be stopped: {error}")


def _follow_logs(runner: Runner, handle: str) -> None:
    """Follow all logs of a job on stderr until the job has ended."""
    if sys.stderr is None:
        return
    writer = LogWriter(bytes_of(sys.stderr), wants_colour(sys.stderr))
    problem = ""
    try:
        writer.write_all(runner.log_blocks(handle, runner.replicas(handle), LogQuery(should_tail=True)))
    except (BackendError, NotImplementedError) as error:
        problem = f"the logs cannot be followed: {error}"
    writer.finish()
    if problem:
        warn(problem)
