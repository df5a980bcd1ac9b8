"""Reading and following the log of a job on Ray, and keeping it here: Ray's copy vanishes with its head.

Ray keeps one log for a job, that of its driver, on the driver's node, and hands it out whole. So following it
is reading it again and again; the longer that takes, the longer are the pauses.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any
from urllib.parse import quote

from shunter.backoff import Backoff
from shunter.errors import AccessError, BackendError
from shunter.paths import make_private_dir, read_regular_file, state_dir, state_error
from shunter.schedulers.lines import last_lines
from shunter.schedulers.ray_scheduler import observe, reasons
from shunter.schedulers.ray_scheduler.dashboard import Dashboard, DashboardUnreachableError, job_path
from shunter.schedulers.ray_scheduler.log_lines import ReplicaLines, state_in
from shunter.schedulers.responses import LogBlock, LogQuery
from shunter.specs.status import is_terminal

#: For how many seconds a dashboard may be away while a log is followed.
PATIENCE = 600.0
FIRST_DELAY, LONGEST_DELAY = 0.25, 15.0
#: Pauses between two readings of a log that is followed, in seconds: the first after something new, and the
#: longest; but no shorter than so many times what a reading takes.
FIRST_READING, LONGEST_READING = 0.5, 5.0
PAUSES_PER_READING = 4


# ---- the copy that is kept here


def kept_dir() -> str:
    """Return the directory of the logs that are kept here."""
    return os.path.join(state_dir(), "ray")


def kept_path(app_id: str) -> str:
    """Return where a job's log is kept."""
    return os.path.join(kept_dir(), f"{quote(app_id, safe='')}.log")


def kept_log(app_id: str) -> str | None:
    """Return the log of a job that is kept here; None without one."""
    try:
        return read_regular_file(kept_path(app_id)).decode("utf-8", "surrogateescape")
    except OSError:
        return None


def kept_state(app_id: str) -> dict[str, Any] | None:
    """Return the state document at the end of a log that is kept here; None without one."""
    text = kept_log(app_id)
    return None if text is None else state_in(text)


class KeptCopy:
    """Keeps what is read of a log, piece by piece. It replaces an older copy when it is complete.

    Args:
        app_id: the job.
    """

    def __init__(self, app_id: str) -> None:
        self._path = kept_path(app_id)
        make_private_dir(kept_dir())
        try:
            descriptor, self._partial = tempfile.mkstemp(
                prefix=f"{os.path.basename(self._path)}.", dir=kept_dir()
            )
            self._file = open(  # noqa: SIM115
                descriptor, "w", encoding="utf-8", errors="surrogateescape", newline=""
            )
        except OSError as error:
            raise state_error("keep a log in", kept_dir(), error) from error

    def add(self, text: str) -> None:
        """Write a piece."""
        self._file.write(text)

    def keep(self) -> None:
        """Put the copy into its place, unless a longer one is there, since logs only grow."""
        self._file.close()
        size = os.path.getsize(self._partial)
        if size and (not os.path.exists(self._path) or os.path.getsize(self._path) <= size):
            os.replace(self._partial, self._path)

    def close(self) -> None:
        """Remove an unfinished copy."""
        self._file.close()
        if os.path.exists(self._partial):
            os.remove(self._partial)


def keep(app_id: str, text: str) -> None:
    """Keep a whole log; warns of a full disk."""
    try:
        with closing(KeptCopy(app_id)) as copy:
            copy.add(text)
            copy.keep()
    except (OSError, BackendError) as error:
        warnings.warn(f"the log of {app_id} is not kept: {error}", RuntimeWarning, stacklevel=2)


def keep_end(dashboard: Dashboard, app_id: str) -> None:
    """Keep the log of a job that has ended, unless it is kept already, or cannot be had."""
    if os.path.exists(kept_path(app_id)) and kept_state(app_id) is not None:
        return
    try:
        text = whole_log(dashboard, app_id)
    except BackendError:
        return
    if text:
        keep(app_id, text)


# ---- reading


def whole_log(dashboard: Dashboard, app_id: str) -> str | None:
    """Return the log as far as it is written; None if Ray does not know the job."""
    answer = dashboard.get(f"{job_path(app_id)}/logs")
    return None if answer is None else str(answer.get("logs") or "")


def foreign_replica(job: dict[str, Any]) -> tuple[str, int] | None:
    """Return the replica that all lines belong to, for a job that shunter did not submit."""
    return None if observe.is_ours(job) else (observe.DRIVER_ROLE, 0)


def read_logs(
    text: str, replicas: Sequence[tuple[str, int]], query: LogQuery, foreign: tuple[str, int] | None
) -> Iterator[LogBlock]:
    """Yield the lines of a log that are asked for."""
    lines = ReplicaLines(replicas, query, foreign)
    return last_lines(chain(lines.feed(text), lines.finish()), query.last, replicas)


class LogFollower:
    """Follows the log of one job until the job has ended and its log is read.

    Args:
        dashboard: where the job is.
        app_id: the job.
        replicas: the replicas that are wanted.
        query: which of their lines.
        foreign: the replica to which lines without our prefix belong, if any.
    """

    def __init__(
        self,
        dashboard: Dashboard,
        app_id: str,
        replicas: Sequence[tuple[str, int]],
        query: LogQuery,
        foreign: tuple[str, int] | None,
    ) -> None:
        self._dashboard = dashboard
        self._app_id = app_id
        self._replicas = replicas
        self._query = query
        self._lines = ReplicaLines(replicas, query, foreign)
        self._seen = 0
        self._copy = KeptCopy(app_id)
        self._readings = Backoff(FIRST_READING, LONGEST_READING, factor=1.5, jitter=0)

    def blocks(self) -> Iterator[LogBlock]:
        """Yield the lines as they come.

        Raises:
            BackendError: the dashboard was away for too long, or refuses access.
        """
        try:
            if self._query.last is not None:
                yield from self._last_of_what_is_there()
            while True:
                started = time.monotonic()
                yield from self._new_lines()
                if self._patiently(self._has_ended):
                    break
                self._readings.pause(PAUSES_PER_READING * (time.monotonic() - started))
            yield from self._new_lines()
            yield from self._lines.finish()
        finally:
            self._copy.keep()
            self._copy.close()

    def _last_of_what_is_there(self) -> Iterator[LogBlock]:
        text = self._read_all()
        whole = text[: text.rfind("\n") + 1]
        yield from last_lines(self._lines.feed(whole), self._query.last, self._replicas)
        self._note(whole)

    def _new_lines(self) -> Iterator[LogBlock]:
        """Read the log as far as it is written, and yield what is new."""
        new = self._read_all()[self._seen :]
        if new:
            self._readings.reset()
            self._note(new)
            yield from self._lines.feed(new)

    def _note(self, text: str) -> None:
        self._seen += len(text)
        self._copy.add(text)

    def _read_all(self) -> str:
        """Return the whole log; "" where the driver's node is gone, so that what was read is all there is."""
        try:
            return self._patiently(lambda: whole_log(self._dashboard, self._app_id)) or ""
        except AccessError:
            raise
        except BackendError:
            return ""

    def _has_ended(self) -> bool:
        job = observe.find_job(self._dashboard, self._app_id)
        if job is None:
            raise BackendError(
                f"Ray at {self._dashboard.address} no longer knows the job {self._app_id}",
                hint="Its head was probably restarted. What was read of the log is kept.",
            )
        return is_terminal(reasons.state_of(job))

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Ask until there is an answer, or the dashboard has been away for too long."""
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY, limit=PATIENCE)
        while True:
            try:
                return ask()
            except DashboardUnreachableError as error:
                if backoff.failures == 2:
                    warnings.warn(
                        f"still following {self._app_id}: {error.message}", RuntimeWarning, stacklevel=2
                    )
                if not backoff.pause():
                    raise
