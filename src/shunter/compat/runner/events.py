"""TorchX's events (``torchx.runner.events``): the same calls, sent to the receivers of shunter's events.

The logger of a destination gets them as well. Plugins offer handlers of loggers in the group of entry points
``torchx.events.handlers``.
"""

from __future__ import annotations

import json
import logging
import os
import traceback
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from types import TracebackType

from shunter.plugins import entry_points
from shunter.redaction import redact_text
from shunter.runner import events

_HANDLERS: dict[str, Callable[[], logging.Handler]] = {
    "null": logging.NullHandler,
    "console": logging.StreamHandler,
}
#: What is known of an event when its call has ended.
_MEASURED = ("wall_time_usec", "cpu_time_usec", "exception_type", "exception_message")


TORCHX_INTERNAL_SESSION_ID = "TORCHX_INTERNAL_SESSION_ID"
CURRENT_SESSION_ID: str | None = None


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


def record(event: TorchxEvent, destination: str = "null") -> None:
    """Give an event to the receivers of shunter's events, and to TorchX's logger of this destination."""
    events.record(events.Event(**{**asdict(event), "source": str(event.source.value)}))
    logger = logging.getLogger(f"torchx-events-{destination}")
    if not logger.handlers:
        logger.setLevel(os.environ.get("LOGLEVEL", "INFO"))
        logger.propagate = False
        logger.addHandler(get_logging_handler(destination))
    logger.info(event.serialize())


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler that writes events: ``null`` drops them, ``console`` is stderr, others are plugins'.

    Raises:
        KeyError: there is no such destination.
    """
    if destination in _HANDLERS:
        return _HANDLERS[destination]()
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
        for name in (*_MEASURED, "exception_source_location"):
            setattr(self._torchx_event, name, getattr(timed, name))
        if kind is not None:
            self._torchx_event.raw_exception = redact_text("".join(traceback.format_exception(error)))
        record(self._torchx_event)


def get_session_id_or_create_new() -> str:
    """Return the id of this process's session, created on first use; its jobs get it in a variable."""
    global CURRENT_SESSION_ID
    CURRENT_SESSION_ID = get_torchx_session_id() or str(uuid.uuid4())
    return CURRENT_SESSION_ID


def get_torchx_session_id() -> str | None:
    """Return the id of the session, from the variable in a job; None before a session has begun."""
    return CURRENT_SESSION_ID or os.environ.get(TORCHX_INTERNAL_SESSION_ID)
