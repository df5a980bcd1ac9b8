"""The request that would be sent, as a value that can be looked at."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generic, TypeVar

    from trainyard.specs.app import AppDef

    T = TypeVar("T")
else:  # `typing` is slow to import
    T = object

    class Generic:
        """What a generic class is at run time."""

        __class_getitem__ = classmethod(types.GenericAlias)


class AppDryRunInfo(Generic[T]):
    """A scheduler's native request, made but not sent.

    Args:
        request: the request, of the scheduler's own type.
        fmt: makes the text that people read; secrets must not show in it.

    Attributes:
        app: the job that it was made from.
        cfg: the resolved scheduler options.
        scheduler: name of the scheduler.
        session: name of the runner's session.
        app_id: id that the job will have, where the scheduler lets the caller choose it; else None.
        client_token: names this submission, for backends that refuse to start the same one twice. Set by
            the runner just before `Scheduler.schedule`.
        shipment: the code that goes with the job, planned but not shipped, as a
            `trainyard.workspace.shipment.Shipment`; None without code.
        record: what the runner notes of it in the history: component, arguments, workspace, ....
    """

    def __init__(self, request: T, fmt: Callable[[T], str] = repr) -> None:
        self.request = request
        self._fmt = fmt
        self.app: AppDef | None = None
        self.cfg: Mapping[str, Any] = {}
        self.scheduler = ""
        self.session = ""
        self.app_id: str | None = None
        self.client_token = ""
        self.shipment: Any = None
        self.record: dict[str, Any] = {}

    def __repr__(self) -> str:
        return self._fmt(self.request)
