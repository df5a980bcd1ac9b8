"""What schedulers are asked and what they answer: states, lists, log lines, findings."""

from __future__ import annotations

from enum import Enum

from trainyard.specs.status import NONE, AppState, AppStatus, RoleStatus, SlotRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from trainyard.specs.app import Role

NOT_SET = "<NOT_SET>"


class Stream(str, Enum):
    """Output stream of a replica. ``COMBINED`` is both, in the order in which they were written."""

    STDOUT = "stdout"
    STDERR = "stderr"
    COMBINED = "combined"

    def __str__(self) -> str:
        return self.value


class DescribeAppResponse(SlotRecord):
    """What a scheduler knows of a job: its status and, as far as the scheduler keeps it, its definition."""

    __slots__ = (
        "app_id",
        "metadata",
        "msg",
        "num_restarts",
        "results",
        "roles",
        "roles_statuses",
        "state",
        "structured_error_msg",
        "ui_url",
    )

    def __init__(
        self,
        app_id: str = NOT_SET,
        state: AppState = AppState.UNSUBMITTED,
        num_restarts: int = -1,
        msg: str = NONE,
        structured_error_msg: str = NONE,
        ui_url: str | None = None,
        metadata: Mapping[str, str] | None = None,
        roles_statuses: Sequence[RoleStatus] = (),
        roles: Sequence[Role] = (),
        results: str | None = None,
    ) -> None:
        self.app_id = app_id
        self.state = state
        self.num_restarts = num_restarts
        self.msg = msg
        self.structured_error_msg = structured_error_msg
        self.ui_url = ui_url
        self.metadata = dict(metadata or {})
        self.roles_statuses = list(roles_statuses)
        self.roles = list(roles)
        self.results = results

    def to_status(self) -> AppStatus:
        """Return the status part."""
        return AppStatus(
            self.state,
            self.num_restarts,
            self.msg,
            self.structured_error_msg,
            self.ui_url,
            self.roles_statuses,
            self.results,
        )


class ListAppResponse(SlotRecord):
    """One row of a list of jobs. ``app_handle`` is filled in by the runner.

    ``submitted_at`` and ``ended_at`` are seconds since the epoch, None where the scheduler does not tell.
    """

    __slots__ = ("app_handle", "app_id", "ended_at", "name", "state", "submitted_at")

    def __init__(
        self,
        app_id: str,
        state: AppState,
        app_handle: str = NOT_SET,
        name: str = "",
        submitted_at: float | None = None,
        ended_at: float | None = None,
    ) -> None:
        self.app_id = app_id
        self.state = state
        self.app_handle = app_handle
        self.name = name
        self.submitted_at = submitted_at
        self.ended_at = ended_at


class Check(SlotRecord):
    """One finding of `Scheduler.doctor`.

    Args:
        name: what was looked at.
        ok: whether it is as it should be; None for a remark.
        text: what was found.
        hint: what to do about it.
    """

    __slots__ = ("hint", "name", "ok", "text")

    def __init__(self, name: str, ok: bool | None, text: str, hint: str = "") -> None:
        self.name = name
        self.ok = ok
        self.text = text
        self.hint = hint


class Leftover(SlotRecord):
    """Something that jobs left behind at a scheduler and that none needs any more.

    Args:
        id: by what `Scheduler.remove_leftovers` knows it.
        name: what people call it: a path, say.
        age: seconds since it was of use.
        size: bytes that it takes; 0 where nobody knows.
        app_id: the job that left it; "" if that cannot be told, or there were several.
        results: whether it holds results of the job: a model, say.
        shared: whether others leave such things at the same place. Then it is the user's own only if the
            history knows the job or the code.
        fingerprint: the code that it holds; "" if it holds none.
    """

    __slots__ = ("age", "app_id", "fingerprint", "id", "name", "results", "shared", "size")

    def __init__(
        self,
        id: str,
        name: str,
        age: float,
        size: int = 0,
        app_id: str = "",
        results: bool = False,
        *,
        shared: bool = False,
        fingerprint: str = "",
    ) -> None:
        self.id = id
        self.name = name
        self.age = age
        self.size = size
        self.app_id = app_id
        self.results = results
        self.shared = shared
        self.fingerprint = fingerprint


class LogQuery:
    """Which lines of a replica's log are wanted.

    Args:
        regex: only lines in which this matches somewhere; None for all.
        since: only lines written at or after this time.
        until: only lines written before this time.
        should_tail: whether to follow until the job ends.
        streams: which output stream; None for the scheduler's default.
        last: only this many of the lines that exist already; None for all.
    """

    def __init__(
        self,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
        last: int | None = None,
    ) -> None:
        self.regex = regex
        self.since = since
        self.until = until
        self.should_tail = should_tail
        self.streams = streams
        self.last = last


class LogBlock:
    """Consecutive whole lines of one replica's log, as bytes: they may not be UTF-8."""

    __slots__ = ("data", "replica", "role")

    def __init__(self, role: str, replica: int, data: bytes) -> None:
        self.role = role
        self.replica = replica
        self.data = data
