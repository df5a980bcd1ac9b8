"""The log of a job: reading and following it, taking it apart into replicas, and keeping a copy of it here.

Ray keeps one log for a job, that of its driver, on the driver's node, and hands it out whole. So following it
is reading it again and again; the longer that takes, the longer are the pauses. Ray's copy vanishes with its
head. `shipped/replica_actor.py` has the format of its lines.
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, groupby
from typing import TypeVar
from urllib.parse import quote, unquote

from shunter.backoff import Backoff
from shunter.errors import AccessError, BackendError, UnreachableError
from shunter.paths import make_private_dir, state_dir
from shunter.schedulers.lines import LineFilter, TimedLine, blocks_of, last_lines
from shunter.schedulers.ray_scheduler.dashboard import Dashboard, job_path
from shunter.schedulers.ray_scheduler.states import DRIVER_ROLE, RayJob, find_job, state_in
from shunter.schedulers.responses import Leftover, LogBlock, LogQuery, Stream
from shunter.specs.status import is_terminal

T = TypeVar("T")
Key = tuple[str, int]
#: For how many seconds a dashboard may be away while a log is followed.
PATIENCE = 600.0
FIRST_DELAY, LONGEST_DELAY = 0.25, 15.0
#: Pauses between two readings of a log that is followed, in seconds: the first after something new, and the
#: longest; but no shorter than so many times what a reading takes.
FIRST_READING, LONGEST_READING = 0.5, 5.0
PAUSES_PER_READING = 4
_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6})Z (?P<role>\S+)/(?P<index>\d+) "
    r"(?P<stream>out|err)(?P<coded>64)?(?P<mark>[|<>:]) (?P<text>[^\n]*)"
)
_ENDS = {"|": b"\n", "<": b"\r", ">": b"\r\n", ":": b""}
_STREAMS = {Stream.STDOUT: ("out",), Stream.STDERR: ("err",), Stream.COMBINED: ("out", "err")}


# ---- lines


class ReplicaLines:
    """Picks out of a log, piece by piece, the lines that a query asks for.

    Args:
        replicas: the replicas that are wanted.
        query: which of their lines.
        is_ours: whether the lines are those of replicas; otherwise all belong to the driver of the job.
    """

    def __init__(self, replicas: Iterable[Key], query: LogQuery, is_ours: bool = True) -> None:
        self._replicas = frozenset(replicas)
        self._streams = _STREAMS[Stream(query.streams or Stream.COMBINED)]
        self._filter = LineFilter(query)
        self._is_timed = query.timed
        self._is_ours = is_ours
        self._rest = ""
        #: The parts of each line that has no end yet, and when the first one was written.
        self._parts: dict[tuple[str, int, str], tuple[float, bytes]] = {}

    def feed(self, text: str) -> Iterator[LogBlock]:
        """Yield the blocks that are complete with this piece of the log."""
        *lines, self._rest = (self._rest + text).split("\n")
        selected = (self._select(line) for line in lines)
        for key, pairs in groupby(filter(None, selected), key=lambda pair: pair[0]):
            yield from blocks_of(key, (data for _, data in pairs))

    def finish(self) -> Iterator[LogBlock]:
        """Yield what is left at the end of the log."""
        if self._rest:
            yield from self.feed("\n")
        for (role, index, _), (time_ns, data) in self._parts.items():
            yield from blocks_of((role, index), [self._if_asked_for(time_ns, data)])
        self._parts.clear()

    def _select(self, line: str) -> tuple[Key, bytes] | None:
        """Return the replica's line that ends with a line of the log, if it is asked for."""
        if not self._is_ours:
            return (DRIVER_ROLE, 0), self._filter.select(f"{line}\n".encode("utf-8", "surrogateescape"))
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        key = (match["role"], int(match["index"]))
        if key not in self._replicas or match["stream"] not in self._streams:
            return None
        data = match["text"].encode("utf-8", "surrogateescape")
        if match["coded"]:
            data = base64.b64decode(data)
        moment = datetime.fromisoformat(match["time"]).replace(tzinfo=UTC)
        time_ns, start = self._parts.pop((*key, match["stream"]), (moment.timestamp() * 1e9, b""))
        data = start + data + _ENDS[match["mark"]]
        if match["mark"] == ":":
            self._parts[*key, match["stream"]] = (time_ns, data)
            return None
        return key, self._if_asked_for(time_ns, data)

    def _if_asked_for(self, time_ns: float, data: bytes) -> bytes:
        selected = self._filter.select_at(time_ns, data)
        return TimedLine.at(time_ns, selected) if self._is_timed else selected


# ---- reading


def read_logs(
    text: str, replicas: Sequence[Key], query: LogQuery, is_ours: bool = True
) -> Iterator[LogBlock]:
    """Yield the lines of a log that are asked for."""
    lines = ReplicaLines(replicas, query, is_ours)
    return last_lines(chain(lines.feed(text), lines.finish()), query.last, replicas)


def whole_log(dashboard: Dashboard, app_id: str) -> str:
    """Return the log as far as it is written."""
    answer = dashboard.ask("GET", f"{job_path(app_id)}/logs") or {}
    return str(answer.get("logs") or "")


def follow(dashboard: Dashboard, job: RayJob, replicas: Sequence[Key], query: LogQuery) -> Iterator[LogBlock]:
    """Yield the lines of a log as they come, until the job has ended and its log is read, and keep the log.

    Raises:
        BackendError: the dashboard was away for too long, or refuses access, or has forgotten the job.
    """
    lines = ReplicaLines(replicas, query, job.is_ours)
    pauses = Backoff(FIRST_READING, LONGEST_READING, factor=1.5, jitter=0)
    text, has_ended, is_first = "", False, query.last is not None

    def ask_for_log() -> str:
        try:
            return whole_log(dashboard, job.app_id)
        except (AccessError, UnreachableError):
            raise
        except BackendError:  # the driver's node is gone, so that what was read is all there is
            return ""

    try:
        while True:
            started = time.monotonic()
            news = _patiently(job.app_id, ask_for_log)[len(text) :]
            if is_first:
                news = news[: news.rfind("\n") + 1]
            text += news
            blocks = lines.feed(news)
            yield from last_lines(blocks, query.last, replicas) if is_first else blocks
            if has_ended:
                break
            is_first = False
            if news:
                pauses.reset()
            present = _patiently(job.app_id, lambda: find_job(dashboard, job.app_id))
            if present is None:
                raise BackendError(
                    f"Ray at {dashboard.address} no longer knows the job {job.app_id}",
                    hint="Its head was probably restarted. What was read of the log is kept.",
                )
            has_ended = is_terminal(present.state)
            if not has_ended:
                pauses.pause(PAUSES_PER_READING * (time.monotonic() - started))
        yield from lines.finish()
    finally:
        keep(job.app_id, text)


def _patiently(app_id: str, ask: Callable[[], T]) -> T:
    """Ask until there is an answer, or the dashboard has been away for too long."""
    backoff = Backoff(FIRST_DELAY, LONGEST_DELAY, limit=PATIENCE)
    while True:
        try:
            return ask()
        except UnreachableError as error:
            if backoff.failures == 2:
                warnings.warn(f"still following {app_id}: {error.message}", RuntimeWarning, stacklevel=2)
            if not backoff.pause():
                raise


# ---- the copy that is kept here


def kept_dir() -> str:
    """Return the directory of the logs that are kept here."""
    return os.path.join(state_dir(), "ray")


def kept_path(app_id: str) -> str:
    """Return where a job's log is kept."""
    return os.path.join(kept_dir(), f"{quote(app_id, safe='')}.log")


def kept_log(app_id: str) -> str:
    """Return the log of a job that is kept here; "" without one."""
    try:
        with open(kept_path(app_id), encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError:
        return ""


def keep(app_id: str, text: str) -> None:
    """Keep a log, unless a longer copy is here, since logs only grow; warns of a full disk."""
    path, content = kept_path(app_id), text.encode("utf-8", "surrogateescape")
    try:
        if content and not (os.path.exists(path) and os.path.getsize(path) > len(content)):
            make_private_dir(kept_dir())
            with tempfile.NamedTemporaryFile(dir=kept_dir(), prefix=os.path.basename(path)) as file:
                file.write(content)
                file.flush()
                os.link(file.name, f"{file.name}.new")
                os.replace(f"{file.name}.new", path)
    except (OSError, BackendError) as error:
        warnings.warn(f"the log of {app_id} is not kept: {error}", RuntimeWarning, stacklevel=2)


def keep_end(dashboard: Dashboard, app_id: str) -> None:
    """Keep the log of a job that has ended, unless it is kept already, or cannot be had."""
    if not state_in(kept_log(app_id)):
        try:
            keep(app_id, whole_log(dashboard, app_id))
        except BackendError:
            pass


def kept_job(app_id: str) -> RayJob | None:
    """Return a job by the state document at the end of its log that is kept here; None without one."""
    document = state_in(kept_log(app_id))
    if not document.get("state"):
        return None
    status = "STOPPED" if document["state"] == "CANCELLED" else document["state"]
    return RayJob(app_id, {"status": status}, document, is_forgotten=True)


def forget(app_id: str) -> None:
    """Remove the log of a job that is kept here, if there is one."""
    try:
        os.remove(kept_path(app_id))
    except FileNotFoundError:
        pass


def leftovers(older_than: float) -> list[Leftover]:
    """Return logs that were last written more than this many seconds ago."""
    found, now = [], time.time()
    names = sorted(os.listdir(kept_dir())) if os.path.isdir(kept_dir()) else []
    for path in (os.path.join(kept_dir(), name) for name in names):
        facts = os.lstat(path)
        if now - facts.st_mtime >= older_than:
            app_id = unquote(os.path.basename(path).partition(".log")[0])
            found.append(Leftover(path, path, now - facts.st_mtime, facts.st_size, app_id))
    return found
