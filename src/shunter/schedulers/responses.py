"""What schedulers are asked and what they answer: states, lists, log lines, findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from shunter.specs.app import Role
from shunter.specs.status import NONE, AppState, AppStatus, RoleStatus

NOT_SET = "<NOT_SET>"


class Stream(str, Enum):
    """Output stream of a replica. ``COMBINED`` is both, in the order in which they were written."""

    STDOUT = "stdout"
    STDERR = "stderr"
    COMBINED = "combined"

    def __str__(self) -> str:
        return self.value


@dataclass
class DescribeAppResponse:
    """What a scheduler knows of a job: its status and, as far as the scheduler keeps it, its definition.

    ``started_at`` and ``ended_at`` are the job's own times, where the scheduler knows more than those of the
    replicas: the first start of a replica, and the end. Seconds since the epoch.
    """

    app_id: str = NOT_SET
    state: AppState = AppState.UNSUBMITTED
    num_restarts: int = -1
    msg: str = NONE
    structured_error_msg: str = NONE
    ui_url: str | None = None
    roles_statuses: list[RoleStatus] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    metadata: Mapping[str, str] = field(default_factory=dict)
    results: str | None = None
    started_at: float | None = None
    ended_at: float | None = None

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
            self.started_at,
            self.ended_at,
        )


@dataclass
class ListAppResponse:
    """One row of a list of jobs. The runner fills in ``app_handle``.

    Times are seconds since the epoch, None if the scheduler does not tell: when it was submitted, when its
    first replica began to run, and when it ended.
    """

    app_id: str
    state: AppState
    app_handle: str = NOT_SET
    name: str = ""
    submitted_at: float | None = None
    ended_at: float | None = None
    started_at: float | None = None


@dataclass
class Dependency:
    """A job that another one waits for.

    Args:
        app_id: its id on the scheduler of the job that waits.
        any_end: whether it may end in any way, instead of having to succeed.
    """

    app_id: str
    any_end: bool = False


@dataclass
class Check:
    """One finding of `Scheduler.doctor`.

    Args:
        name: what was checked.
        ok: whether it is as it should be; None for a remark.
        text: what was found.
        hint: what to do about it.
    """

    name: str
    ok: bool | None
    text: str
    hint: str = ""


@dataclass
class Leftover:
    """Something that jobs left behind at a scheduler and that is no longer needed.

    Args:
        id: what `Scheduler.remove_leftovers` needs to find it.
        name: what people call it, such as a path.
        age: seconds since it was last needed.
        size: its size in bytes; 0 if unknown.
        app_id: the job that left it; "" if unknown, or if there were several.
        results: whether it holds results of the job, such as a model.
        shared: whether others leave such things at the same place. Then it is the user's own only if the
            history knows the job or the code.
        fingerprint: the code that it holds; "" if it holds no code.
    """

    id: str
    name: str
    age: float
    size: int = 0
    app_id: str = ""
    results: bool = False
    shared: bool = False
    fingerprint: str = ""


def environment_leftovers(store: str, unused: Iterable[Mapping[str, Any]]) -> list[Leftover]:
    """Return Python environments, as the toolkit's `environment_store.unused` lists them, as leftovers."""
    return [
        Leftover(
            f"{store}/{item['name']}",
            f"the environment of {item['source']}" if item["source"] else f"a killed build in {store}",
            float(item["age"]),
            int(item["size"]),
        )
        for item in unused
    ]


def environments_among(leftovers: Iterable[Leftover], store: str) -> tuple[list[str], list[Leftover]]:
    """Split leftovers into the names of environments in a store, and the others."""
    names, others = [], []
    for item in leftovers:
        folder, _, name = item.id.rpartition("/")
        if folder == store:
            names.append(name)
        else:
            others.append(item)
    return names, others


@dataclass
class LogQuery:
    """Which lines of a replica's log are wanted.

    Args:
        regex: only lines in which this matches somewhere; None for all.
        since: only lines written at or after this time.
        until: only lines written before this time.
        should_tail: whether to follow until the job ends.
        streams: which output stream; None for the scheduler's default.
        last: only this many of the lines that exist already; None for all.
        most_bytes: with ``last``, no more than about this many bytes of each stream, where the scheduler has
            files: a line that is longer begins in its middle. None for whole lines.
        timed: whether blocks should tell when their lines were written, where the scheduler knows it.
    """

    regex: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    should_tail: bool = False
    streams: Stream | None = None
    last: int | None = None
    timed: bool = False
    most_bytes: int | None = None


@dataclass
class LogBlock:
    """Consecutive whole lines of one replica's log, as bytes: they may not be UTF-8.

    ``time_ns`` is when they were written, in nanoseconds since the epoch; 0 if unknown, or if nothing asked
    for it (`LogQuery.timed`) and they were written at different times.
    """

    role: str
    replica: int
    data: bytes
    time_ns: float = 0


@dataclass
class LogRange:
    """Which part of one replica's log is wanted: about ``count`` bytes of whole lines.

    Args:
        count: how many bytes.
        start: where it begins, a position of a `LogPart`; "" if another field says where.
        end: where it ends, likewise.
        at: about how many bytes lie before it. Without any of the three it is the end of the log.
        streams: which output stream; None for the scheduler's default.
        is_complete: whether nothing more will be written, so that an incomplete last line counts, too.
    """

    count: int
    start: str = ""
    end: str = ""
    at: int | None = None
    streams: Stream | None = None
    is_complete: bool = False


@dataclass
class LogPart:
    """Consecutive whole lines of one replica's log, and where they are in it.

    Args:
        data: the lines, as bytes: they may not be UTF-8.
        start: the position before the first line. Positions mean something to the scheduler only.
        end: the position behind the last one.
        before: how many bytes of the log lie before the first line.
        size: how many bytes the log has by now.
    """

    data: bytes
    start: str
    end: str
    before: int
    size: int


@dataclass
class ReplicaUsage:
    """What a replica uses at one point in time.

    Args:
        role: name of its role.
        replica: its index.
        time: seconds since the epoch.
        attempt: how many times it had been restarted.
        levels: what it uses now, by name: memory in bytes, GPUs in percent.
        totals: what it has used since its start, by name: CPU in seconds, storage and network in bytes.
    """

    role: str
    replica: int
    time: float
    attempt: int
    levels: Mapping[str, float]
    totals: Mapping[str, float]


class JobDetails:
    """What a scheduler can tell about one job beyond its description; fetched when it is asked for.

    Schedulers override what their backend can answer, see `Scheduler.details`.
    """

    def queue_position(self) -> str:
        """Return a waiting job's place in the queue and its expected start, in words; "" if unknown."""
        return ""

    def smallest_change(self) -> str:
        """Return in words what change would let a waiting job start right now; "" if unknown."""
        return ""

    def backend_output(self) -> Sequence[str]:
        """Return the last lines that the backend's own programs wrote about the job, beside its logs."""
        return ()

    def directory_of(self, role: str, replica: int) -> str:
        """Return the working directory that a point of a sweep has for itself; "" if that is not known."""
        return ""

    def usage(self, after: float) -> Iterator[ReplicaUsage]:
        """Return the samples of what replicas used, taken after a time in seconds since the epoch."""
        return iter(())
