"""Events: one for each call of the runner, for plugins that count, trace or report.

Receivers are the entry points of the group ``shunter.events`` (``torchx.events``), each a callable that
takes an `Event`, and the logger ``shunter.events``, which gets one JSON object per event at level INFO, if
it has that level or a handler, or the logger ``shunter`` has that level: the level of the root logger, which
programs set for their own messages, is not enough. Nothing is sent anywhere by default. A receiver that
fails is reported once and never harms a job.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from shunter.plugins import EntryPoint, entry_points
from shunter.redaction import redact_text
from shunter.terminal import clean_lines

LOGGER = "shunter.events"


@dataclass
class Event:
    """What happened in one call of the runner. Texts hold no secrets; times are in microseconds."""

    session: str  # name of the session
    scheduler: str  # name of the scheduler
    api: str  # the method: run, schedule, status, wait, cancel, log_lines, ...
    app_id: str | None = None  # id of the job, if there is one
    app_image: str | None = None  # image of the job's first role
    app_metadata: dict[str, str] | None = None  # the job's metadata
    cpu_time_usec: int | None = None  # processor time of the call
    exception_message: str | None = None
    exception_source_location: str | None = None  # ``file:line`` where it was raised
    exception_type: str | None = None  # name of the exception's class
    raw_exception: str | None = None  # the traceback's last line; None if the call succeeded
    runcfg: str | None = None  # scheduler options as JSON text
    source: str = "<user>"  # "<internal>" when the runner called it for itself
    start_epoch_time_usec: int | None = None  # start of the call, since the epoch
    wall_time_usec: int | None = None  # duration of the call
    workspace: str | None = None  # the workspace of the job

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dict(sorted(vars(self).items()))


_handlers: list[tuple[str, Callable[[Event], object]]] | None = None
_failed: set[str] = set()


def add_handler(handler: Callable[[Event], object], name: str = "") -> None:
    """Have a callable receive every event of this process from now on."""
    _loaded().append((name or repr(handler), handler))


def remove_handler(handler: Callable[[Event], object]) -> None:
    """Undo `add_handler`."""
    _loaded()[:] = [(name, each) for name, each in _loaded() if each != handler]


def record(event: Event) -> None:
    """Hand an event to all receivers."""
    for name, handler in list(_loaded()):
        _deliver(name, handler, event)
    _deliver(f"logger {LOGGER}", _log, event)


def _loaded() -> list[tuple[str, Callable[[Event], object]]]:
    global _handlers
    if _handlers is None:
        _handlers = [(point.name, partial(_load_and_call, point)) for point in entry_points("events")]
    return _handlers


def _load_and_call(point: EntryPoint, event: Event) -> None:
    point.load()(event)


def _deliver(name: str, handler: Callable[[Event], object], event: Event) -> None:
    if name in _failed:
        return
    try:
        handler(event)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a receiver cannot end the command
        _failed.add(name)
        message = redact_text(f"{type(error).__name__}: {error}")
        print(  # noqa: T201 - cannot fail the job too
            f"shunter: the event receiver {name!r} failed and is not called again: {clean_lines(message)}",
            file=sys.stderr,
        )


def _log(event: Event) -> None:
    logger = logging.getLogger(LOGGER)
    is_wanted = logger.level or logger.handlers or logging.getLogger("shunter").level
    if is_wanted and logger.isEnabledFor(logging.INFO):
        logger.info("%s", json.dumps(event.to_json(), default=str))


class log_event:
    """Context manager that times a call and records its event, also when it fails."""

    def __init__(self, api: str, scheduler: str = "", session: str = "", **fields: Any) -> None:
        self.event = Event(session, scheduler, api, **fields)

    def __enter__(self) -> Event:
        self.event.start_epoch_time_usec = time.time_ns() // 1000
        self._wall, self._cpu = time.perf_counter_ns(), time.process_time_ns()
        return self.event

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        record(self.finished(kind, error, trace))

    def finished(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Event:
        """Return the event with what is known at the end of the call."""
        event = self.event
        event.wall_time_usec = (time.perf_counter_ns() - self._wall) // 1000
        event.cpu_time_usec = (time.process_time_ns() - self._cpu) // 1000
        if kind is not None:
            event.exception_type = kind.__name__
            event.exception_message = redact_text(str(error))
            event.exception_source_location = _location(trace)
            event.raw_exception = f"{kind.__name__}: {event.exception_message}"
        return event


def _location(trace: TracebackType | None) -> str | None:
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
