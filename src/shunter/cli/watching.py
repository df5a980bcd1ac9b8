"""Watching a job to its end: `run`, `wait`, `status --watch`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from shunter.backoff import LONGEST_POLL, polling
from shunter.cli.console import note, paint_state, wants_colour, warn
from shunter.cli.interrupts import Interrupts
from shunter.cli.live_status import StatusLines
from shunter.cli.log_writers import LogWriter, bytes_of
from shunter.cli.shown_status import check_not_gone, status_of
from shunter.errors import BackendError
from shunter.runner import Runner, get_runner
from shunter.schedulers.api import LogQuery
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState, AppStatus, detail_lines, reason_text
from shunter.terminal import clean, format_duration

#: Seconds between two looks at a local job, whose end is seen at once anyway.
LOCAL_STEP = 1.0
#: A local job leaves these states within milliseconds.
STARTING, STARTING_STEP = (AppState.SUBMITTED, AppState.PENDING), 0.1


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
        step = LOCAL_STEP if capabilities.is_local else LONGEST_POLL
        if capabilities.is_local and status.state in STARTING:
            step = STARTING_STEP
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
    for status in watched_states(runner, handle, timeout):
        if lines is not None and not status.is_terminal():
            lines.show(status)
        elif status.state == AppState.UNREACHABLE and not warned:
            warn(f"{handle} cannot be seen now; still waiting: {clean(status.msg)}")
            warned = True
    if lines is not None:
        lines.finish(status)
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


def _cancel(handle: str) -> None:
    # a separate runner: the other one's connections belong to the main thread
    try:
        with get_runner() as runner:
            runner.cancel(handle)
    except Exception as error:
        warn(f"{handle} could not be stopped: {error}")


def _say_why(runner: Runner, handle: str, status: AppStatus) -> None:
    from shunter.why.explanation import Explanation, explain_failed  # only after a failure

    report = Explanation(handle, status, explain_failed(runner, handle, status))
    note("\n".join(f"why: {clean(line)}" for line in report.short()))


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
