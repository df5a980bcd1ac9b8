"""The request of a dry run: what would be sent, as a value to inspect."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from shunter.specs.app import AppDef
    from shunter.specs.submission import Submission

T = TypeVar("T")


def _alias(name: str) -> Any:
    """Return a property that stands for another attribute."""
    return property(lambda self: getattr(self, name), lambda self, value: setattr(self, name, value))


class AppDryRunInfo(Generic[T]):
    """A scheduler's native request, made but not sent.

    Args:
        request: the request, of the scheduler's own type.
        fmt: makes the text that people read, without secrets.

    Attributes:
        app: the job.
        cfg: the resolved scheduler options.
        scheduler: name of the scheduler.
        session: name of the runner's session.
        app_id: id that the job will have, if the scheduler lets the caller choose it; else None.
        client_token: identifies this submission to backends that refuse to start it twice. Set by the runner
            just before `Scheduler.schedule`.
        shipment: the code that goes with the job, planned but not shipped, as a
            `shunter.workspace.shipment.Shipment`; None without code.
        warnings: what the job asks for and will not get, in sentences.
        submission: what the request was made from; None if it was made without a runner.
        definition: the job as JSON values, before the runner added its variables.
        travels: the workspace that goes with the job, as text; None without one.
        images: by role, the exact image that holds the code. Set by `Scheduler.ship`.
        native_id: the backend's own id of the job, where it is not ``app_id``. Set by `Scheduler.schedule`.
        python: version and path of the job's Python, where that is one of this machine.
        python_origin: what chose that Python, in words.
        lease: path of the lease of the race that the job is in, or the presigned URLs of an object, as JSON;
            "" without one, and where a command before the job's own takes it. Set by the runner.
        rivals: ids of the other jobs of that race on the same scheduler. Set by the runner.
        environments: by role, what is known of the Python environment that travels with it, as JSON values.
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
        self.warnings: list[str] = []
        self.submission: Submission | None = None
        self.definition: dict[str, Any] | None = None
        self.travels: str | None = None
        self.images: Mapping[str, str] | None = None
        self.native_id: str | None = None
        self.python: str | None = None
        self.python_origin = ""
        self.lease = ""
        self.rivals: list[str] = []
        self.environments: Mapping[str, Mapping[str, Any]] = {}

    def __repr__(self) -> str:
        return self._fmt(self.request)

    # Names of TorchX, which its plugins and users read and write.
    _app = _alias("app")
    _cfg = _alias("cfg")
    _scheduler = _alias("scheduler")

    def warn(self) -> None:
        """Issue the warnings, as a job is submitted."""
        for text in self.warnings:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
