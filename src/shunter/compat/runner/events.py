"""TorchX's events (``torchx.runner.events``): the same calls, sent to the receivers of shunter's events.

The logger of a destination gets them as well. Plugins offer handlers of loggers in the group of entry points
``torchx.events.handlers``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from enum import Enum
from types import TracebackType

from shunter.compat.util.session import get_session_id_or_create_new
from shunter.plugins import entry_points
from shunter.redaction import redact_text
from shunter.runner import events

log = logging.getLogger(__name__)
_thread = threading.local()


class SourceType(str, Enum):
    """Who made a call."""

    UNKNOWN = "<unknown>"
    INTERNAL = "INTERNAL"
    EXTERNAL = "EXTERNAL"


@dataclass
class TorchxEvent:
    """What happened in one call."""

    session: str
    scheduler: str
    api: str
    app_id: str | None = None
    app_image: str | None = None
    app_metadata: dict[str, str] | None = None
    runcfg: str | None = None
    raw_exception: str | None = None
    source: SourceType = SourceType.UNKNOWN
    cpu_time_usec: int | None = None
    wall_time_usec: int | None = None
    start_epoch_time_usec: int | None = None
    workspace: str | None = None
    exception_type: str | None = None
    exception_message: str | None = None
    exception_source_location: str | None = None

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | TorchxEvent) -> TorchxEvent:
        """Read what `serialize` wrote."""
        if isinstance(data, TorchxEvent):
            return data
        values = json.loads(data)
        return TorchxEvent(**{**values, "source": SourceType(values.get("source", SourceType.UNKNOWN.value))})

    def serialize(self) -> str:
        """Return the event as a JSON text."""
        return json.dumps(asdict(self))


def receive() -> None:
    """From now on, record the events of shunter's runner as TorchX events too."""
    events.remove_handler(_record_as_torchx)
    events.add_handler(_record_as_torchx, "torchx")


def _record_as_torchx(event: events.Event) -> None:
    if getattr(_thread, "is_recording", False):  # it came from TorchX's `record`
        return
    values = {field.name: getattr(event, field.name) for field in fields(TorchxEvent)}
    values |= {"session": get_session_id_or_create_new(), "source": SourceType.UNKNOWN}
    with _recording():
        record(TorchxEvent(**values))


def record(event: TorchxEvent, destination: str = "null") -> None:
    """Give an event to the receivers of shunter's events, and to TorchX's logger of this destination."""
    if not getattr(_thread, "is_recording", False):
        with _recording():
            events.record(events.Event(**{**asdict(event), "source": str(event.source.value)}))
    try:
        _logger(destination).info(event.serialize())
    except Exception:
        log.exception("an event could not be written")


@contextmanager
def _recording() -> Iterator[None]:
    """Keep what is recorded meanwhile from being recorded again as an event of the other kind."""
    _thread.is_recording = True
    try:
        yield
    finally:
        _thread.is_recording = False


def _logger(destination: str) -> logging.Logger:
    logger = logging.getLogger(f"torchx-events-{destination}")
    if not logger.handlers:
        logger.setLevel(os.environ.get("LOGLEVEL", "INFO"))
        logger.propagate = False
        logger.addHandler(get_logging_handler(destination))
    return logger


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler that writes events: ``null`` drops them, ``console`` is stderr, others are plugins'.

    Raises:
        KeyError: there is no such destination.
    """
    if destination == "null":
        return logging.NullHandler()
    if destination == "console":
        return logging.StreamHandler(sys.stderr)
    for point in entry_points("events.handlers"):
        if point.name == destination:
            offered = point.load()
            return offered if isinstance(offered, logging.Handler) else offered()
    raise KeyError(destination)


class log_event:
    """Context manager that times a call and records its event, also when it fails."""

    def __init__(
        self,
        api: str,
        scheduler: str | None = None,
        app_id: str | None = None,
        app_image: str | None = None,
        app_metadata: dict[str, str] | None = None,
        runcfg: str | None = None,
        workspace: str | None = None,
    ) -> None:
        session = get_session_id_or_create_new()
        self._torchx_event = TorchxEvent(
            session, scheduler or "", api, app_id, app_image, app_metadata, runcfg, workspace=workspace
        )
        self._timer = events.log_event(api, scheduler or "", session)

    def __enter__(self) -> log_event:
        self._torchx_event.start_epoch_time_usec = self._timer.__enter__().start_epoch_time_usec
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timed = self._timer.finished(kind, error, trace)
        for name in (
            "wall_time_usec",
            "cpu_time_usec",
            "exception_type",
            "exception_message",
            "exception_source_location",
        ):
            setattr(self._torchx_event, name, getattr(timed, name))
        if kind is not None:
            self._torchx_event.raw_exception = redact_text("".join(traceback.format_exception(error)))
        record(self._torchx_event)
