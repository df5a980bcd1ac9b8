"""Read the logs of pods: of all replicas and their attempts at the same time, each line once.

The kubelet gives each line its time, in nanoseconds, but takes ``sinceTime`` in whole seconds. So after a
break the log is read again from two seconds before the last line, and what was delivered since then is left
out: nothing is lost and nothing doubled. A line that a break cuts in two is read again as a whole.

Kubernetes keeps no logs of pods that are gone, and only the last file of a log that the kubelet has rotated.
All that remains of such a pod is the end of its log in its status (``terminationMessagePolicy:
FallbackToLogsOnError``).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from shunter.backoff import Backoff
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.api_server import KubernetesError, Watches, break_off
from shunter.schedulers.kubernetes_scheduler.jobs import (
    ClusterJob,
    core_path,
    describe,
    group_pods,
    is_final,
    list_path,
)
from shunter.schedulers.kubernetes_scheduler.names import inner, seconds
from shunter.schedulers.kubernetes_scheduler.states import container_status, last_end, logged_container
from shunter.schedulers.lines import (
    QUEUED_BLOCKS,
    LineFilter,
    TimedLine,
    blocks_of,
    blocks_until_ended,
    last_lines,
)
from shunter.schedulers.responses import LogBlock, LogQuery
from shunter.specs.status import NONE, AppState

log = logging.getLogger(__name__)

#: Seconds before the last line from which a log is read again.
OVERLAP = 2
#: How many times a log that the kubelet does not return is requested once its program has ended.
LAST_ATTEMPTS = 5
#: Bytes of a log from which on it may be the rest of a larger one: the kubelet rotates at 10 MiB by default.
LEAST_ROTATED = 256 << 10
#: Lines are handed on in blocks of about this many bytes.
BLOCK_SIZE = 64 << 10
#: Seconds after which a followed job that has not begun says what it waits for; then it is asked this often.
FIRST_NOTICE, NEXT_NOTICE = 5.0, 30.0
#: Seconds without a byte after which a followed log is opened again: the connection may be dead.
SILENCE = 300.0

#: The time of a line in nanoseconds, 0 if unknown, and its text.
Line = tuple[int, bytes]


@dataclass(frozen=True)
class Run:
    """A run of a replica's program: a container of a pod.

    Args:
        pod: the pod, as last seen.
        restart: how many times the kubelet had restarted the container.
        is_gone: whether the pod is gone.
    """

    pod: dict[str, Any]
    restart: int
    is_gone: bool = False

    @property
    def name(self) -> str:
        """The name of the pod."""
        return names.name_of(self.pod)

    @property
    def key(self) -> tuple[str, int]:
        """What identifies it."""
        return self.name, self.restart

    @property
    def is_previous(self) -> bool:
        """Whether the container has been restarted since."""
        return int(container_status(self.pod).get("restartCount") or 0) > self.restart

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be written."""
        has_ended = bool(last_end(self.pod)) or inner(self.pod, "status", "phase") in ("Succeeded", "Failed")
        return has_ended or self.is_previous or self.is_gone

    @property
    def began(self) -> float | None:
        """When it began."""
        state = inner(container_status(self.pod), "lastState" if self.is_previous else "state")
        return seconds((state.get("terminated") or state.get("running") or {}).get("startedAt"))


class JobPods:
    """A job and its pods at one moment.

    Args:
        job: the job, asked for before its pods: of one that has ended, all pods are known.
        pods: its pods by name, those that are gone as they were last seen.
        present: names of the pods that are still there.
        is_gone: whether the job is gone.
    """

    def __init__(
        self, job: ClusterJob, pods: dict[str, dict[str, Any]], present: Container[str], is_gone: bool
    ) -> None:
        self.job = job
        self.pods = pods
        self._present = present
        self._is_gone = is_gone
        self._attempts = group_pods(pods.values())

    @property
    def has_begun(self) -> bool:
        """Whether the program of a replica has begun."""
        return any(self.runs(place) for place in self._attempts)

    def runs(self, place: tuple[int, int]) -> list[Run]:
        """Return the runs of a replica that have begun and whose log may exist, the oldest first."""
        runs = []
        for pod in self._attempts.get(place, []):
            is_gone = names.name_of(pod) not in self._present
            status = container_status(pod)
            restarts = int(status.get("restartCount") or 0)
            if restarts:  # the kubelet keeps the log of the one before, and of no older one
                runs.append(Run(pod, restarts - 1, is_gone))
            if inner(status, "state", "running") or inner(status, "state", "terminated"):
                runs.append(Run(pod, restarts, is_gone))
        return runs

    def later(self, run: Run) -> Run:
        """Return a run that was seen before, as it is now."""
        return Run(self.pods[run.name], run.restart, run.name not in self._present)

    def is_over(self, place: tuple[int, int]) -> bool:
        """Tell whether a replica will have no further attempt."""
        phases = [inner(pod, "status", "phase") for pod in self._attempts.get(place, [])[-1:]]
        is_final_failure = phases == ["Failed"] and is_final(self.job, place)
        return self._is_gone or self.job.has_ended or phases == ["Succeeded"] or is_final_failure

    def is_lost(self, place: tuple[int, int]) -> bool:
        """Tell whether a replica is over, and nothing is left of it."""
        return self.is_over(place) and place not in self._attempts


class Board:
    """The latest state of a job and its pods, which readers of its logs share.

    Args:
        job: the job.
        stopped: ends `keep_up`.
    """

    def __init__(self, job: ClusterJob, stopped: threading.Event) -> None:
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self._stopped = stopped
        self.now = JobPods(job, {}, (), False)
        self._look(job)

    def _look(self, job: ClusterJob | None) -> None:
        pods = {names.name_of(pod): pod for pod in (job or self.now.job).pods()}
        with self.changed:
            self.now = JobPods(job or self.now.job, {**self.now.pods, **pods}, pods.keys(), job is None)
            self.changed.notify_all()

    def keep_up(self, watches: Watches) -> None:
        """Look again whenever something changes, and say what a job waits for that has not begun."""
        backoff = Backoff(0.25, 10.0, stop=self._stopped)
        notice, due = NONE, time.monotonic() + FIRST_NOTICE
        try:
            while not self._stopped.is_set():
                is_waiting = not self.now.has_begun
                if not backoff.failures:  # otherwise there is a change that could not be looked at
                    watches.wait(max(due - time.monotonic(), 0.0) if is_waiting else None)
                began = time.monotonic()
                try:
                    self._look(self.now.job.again())
                    if is_waiting and began >= due:
                        due = began + NEXT_NOTICE
                        notice = _say_what_it_waits_for(self.now.job, notice)
                    backoff.reset()
                except KubernetesError as error:
                    if not error.is_passing:
                        raise
                    backoff.pause(error.wait)
                # a job of many pods, which changes all the time, is asked for half of the time
                self._stopped.wait(max(time.monotonic() - began, 0.05))
        except BaseException as error:
            with self.changed:
                self.error = error
                self.changed.notify_all()


def _say_what_it_waits_for(job: ClusterJob, before: str) -> str:
    """Say why a job has not begun, unless that was the same before; returns what was said last."""
    response = describe(job)
    is_waiting = response.state in (AppState.PENDING, AppState.SUSPENDED)
    if not is_waiting or response.msg in (NONE, before):
        return before
    log.warning("%s has not started yet: %s", job.app_id, response.msg)
    return response.msg


def read_logs(job: ClusterJob, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Iterator[LogBlock]:
    """Return the lines of replicas of a job, in about the order in which they were written.

    Args:
        job: the job.
        replicas: pairs of a role's name and a replica's index, all of which the job has.
        query: which lines.
    """
    blocks: queue.Queue[LogBlock | BaseException | None] = queue.Queue(QUEUED_BLOCKS)
    stopped = threading.Event()
    board = Board(job, stopped)
    readers = [_ReplicaReader(board, replica, query, blocks, stopped) for replica in replicas]

    def everything() -> Iterator[LogBlock]:
        work: list[Callable[[], None]] = [reader.read for reader in readers]
        paths = [core_path("pods", job.namespace), list_path(job.kind, job.namespace)]
        watches = Watches(job.server, paths if query.should_tail else [], job.selector)
        if query.should_tail:
            work.append(partial(board.keep_up, watches))
        threads = [threading.Thread(target=each, name="log", daemon=True) for each in work]
        for thread in threads:
            thread.start()
        try:
            yield from blocks_until_ended(blocks, len(readers))
        finally:
            stopped.set()
            watches.close()
            with board.changed:
                board.changed.notify_all()
            for reader in readers:
                break_off(reader.response)
            deadline = time.monotonic() + 1.0
            for thread in threads:
                thread.join(max(deadline - time.monotonic(), 0.0))

    return last_lines(everything(), query.last, replicas)


class _ReplicaReader:
    """Reads the attempts of one replica one after the other."""

    def __init__(
        self,
        board: Board,
        replica: tuple[str, int],
        query: LogQuery,
        blocks: queue.Queue[LogBlock | BaseException | None],
        stopped: threading.Event,
    ) -> None:
        self.replica = replica
        self.response: Any = None
        self._board = board
        self._place = [role for role, _ in board.now.job.layout].index(replica[0]), replica[1]
        self._query = query
        self._filter = LineFilter(query)
        self._blocks = blocks
        self._stopped = stopped
        #: By pod: a container that was restarted meanwhile may have answered in place of the one before.
        self._delivered: dict[str, _Delivered] = {}

    def read(self) -> None:
        """Put blocks into the queue; None or an error at the end."""
        outcome: BaseException | None = None
        try:
            done: set[tuple[str, int]] = set()
            while (run := self._next(done)) is not None:
                self._read_run(run)
                done.add(run.key)
            if self._board.now.is_lost(self._place) and not done and not self._stopped.is_set():
                log.warning("there is no pod of %s/%d, so there is no log of it", *self.replica)
        except BaseException as error:
            outcome = error
        self._put(outcome)

    def _put(self, item: LogBlock | BaseException | None) -> None:
        while not self._stopped.is_set():
            with suppress(queue.Full):
                self._blocks.put(item, timeout=0.5)
                return

    def _next(self, done: Container[tuple[str, int]]) -> Run | None:
        """Wait for a run that has begun and was not read; None if there will be none."""
        board = self._board
        with board.changed:
            while not self._stopped.is_set():
                if board.error is not None:
                    raise board.error
                run = next((each for each in board.now.runs(self._place) if each.key not in done), None)
                if run is not None or not self._query.should_tail or board.now.is_over(self._place):
                    return run
                board.changed.wait()
        return None

    def _read_run(self, run: Run) -> None:
        delivered = self._delivered.setdefault(run.name, _Delivered())
        backoff = Backoff(0.25, 10.0, stop=self._stopped)
        path = core_path("pods", self._board.now.job.namespace, run.name, "log")
        was_whole = False  # the last read came to the end of what had been written
        is_first = True
        while not self._stopped.is_set():
            run = self._board.now.later(run)
            follow = self._query.should_tail and not run.has_ended
            params = {
                "container": logged_container(run.pod),
                "timestamps": "true",
                "follow": "true" if follow else None,
                "previous": "true" if run.is_previous else None,
                "sinceTime": delivered.since() or _since(self._query),
            }
            try:
                last = delivered.last
                delivered.begin(is_first)
                is_first = False
                is_whole, count = self._read_once(path, params, delivered)
            except KubernetesError as error:
                is_last = not follow and backoff.failures + 1 >= LAST_ATTEMPTS
                # there is no pod, or no log of it any more
                if error.status == 404 or (run.has_ended and (error.status == 400 or is_last)):
                    self._explain_end(run, delivered, error)
                    return
                if is_last or error.status in (401, 403):
                    raise
                backoff.pause(error.wait)
                continue
            if delivered.has_lost_place or (not delivered.is_in_place and is_whole and not was_whole):
                log.warning(
                    "the log of %s was rotated while it could not be read: lines after %s may be missing",
                    run.name,
                    _text(last / 1e9),
                )
            if is_whole and not follow:
                self._emit(delivered.rest())
                self._explain_beginning(run, delivered)
                return
            was_whole = is_whole
            if count:
                backoff.reset()
            else:  # followed logs that end at once are not asked for in a tight loop
                with self._board.changed:
                    if not self._board.now.later(run).has_ended:
                        self._board.changed.wait(backoff.delay())

    def _read_once(self, path: str, params: dict[str, Any], delivered: _Delivered) -> tuple[bool, int]:
        """Read a log until the server ends it or it breaks.

        Returns whether it ended properly, and how many new lines came.
        """
        count = size = 0
        lines: list[Line] = []
        is_whole = False
        with self._board.now.job.server.stream(path, silence=SILENCE, **params) as response:
            self.response = response
            about_socket = response.extensions["network_stream"].get_extra_info
            try:
                chunks = response.iter_bytes()
                while not self._stopped.is_set() and (chunk := next(chunks, b"")):
                    lines += delivered.new_lines(chunk)
                    size += len(chunk)
                    # each line is a chunk: what has arrived is handed on together
                    if size >= BLOCK_SIZE or not about_socket("is_readable"):
                        self._emit(lines)
                        count += len(lines)
                        lines, size = [], 0
                is_whole = True
            except _broken():  # after what has come
                pass
            finally:
                self.response = None
        self._emit(lines)
        return is_whole, count + len(lines)

    def _emit(self, lines: list[Line]) -> None:
        for block in blocks_of(self.replica, self._chosen(lines)):
            self._put(block)

    def _chosen(self, lines: list[Line]) -> Iterator[bytes]:
        query = self._query
        if not (query.timed or query.since or query.until):
            yield self._filter.select(b"".join(text for _, text in lines))
            return
        for time_ns, text in lines:
            data = self._filter.select_at(time_ns, text) if time_ns else self._filter.select(text)
            yield TimedLine.at(time_ns, data) if query.timed else data

    def _explain_beginning(self, run: Run, delivered: _Delivered) -> None:
        """Say that the kubelet seems to have rotated a log before it was read.

        Nothing tells for sure. A program that writes evenly has run longer before the lines that are left
        than while it wrote them.
        """
        if run.began is None or self._query.since or delivered.size < LEAST_ROTATED or not delivered.first:
            return
        first, last = delivered.first / 1e9, delivered.last / 1e9
        if first - run.began > max(last - first, 1.0):
            log.warning(
                "the log of %s begins %d s after its program: if the kubelet has rotated it, lines before "
                "that are missing",
                run.name,
                first - run.began,
            )

    def _explain_end(self, run: Run, delivered: _Delivered, error: KubernetesError) -> None:
        """Deliver what the pod's status keeps of a log that can no longer be read."""
        message = str(last_end(self._board.now.later(run).pod).get("message") or "")
        if message and not delivered.newest and not message.lstrip().startswith("{"):
            self._emit([(0, message.removesuffix("\n").encode("utf-8", "surrogateescape") + b"\n")])
            log.warning("only the end of the log of %s is left: %s", run.name, error.message)
        else:
            log.warning("the log of %s cannot be read to its end: %s", run.name, error.message)


def _broken() -> tuple[type[Exception], ...]:
    """Return the errors of a connection that breaks."""
    import httpx2

    return httpx2.HTTPError, httpx2.StreamError, OSError


class _Delivered:
    """What was delivered of a log, as far as it may be read again. Times are in nanoseconds; 0 is none."""

    def __init__(self) -> None:
        #: The time of the first line, of the latest one, and of the last one.
        self.first = self.newest = self.last = 0
        self.size = 0
        #: Whether this read has come to lines that were expected again, or expects none.
        self.is_in_place = True
        #: Whether a line came before those that were expected, which must have been there.
        self.has_lost_place = False
        #: The times of the lines since `_bound`; and those of them that this read has not come to.
        self._recent: deque[int] = deque()
        self._expected: Counter[int] = Counter()
        self._partial = b""

    @property
    def _bound(self) -> int:
        """The time from which lines are remembered, a whole second: the kubelet knows no other."""
        return (self.newest // 10**9 - OVERLAP) * 10**9

    def begin(self, is_first: bool) -> None:
        """Expect the recent lines again, unless this is another run."""
        self._partial = b""
        self._expected = Counter(time for time in self._recent if time >= self._bound)
        self.is_in_place = is_first or not self._expected
        self.has_lost_place = False

    def since(self) -> str | None:
        """Return the time from which the log is read again; None at first."""
        return _text(self._bound / 1e9) if self.newest else None

    def new_lines(self, chunk: bytes) -> list[Line]:
        """Return those whole lines that were not delivered before."""
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        self.size += len(chunk)
        new: list[Line] = []
        for line in lines:
            stamp, _, text = line.partition(b" ")
            try:
                time_ns = nanoseconds(stamp)
            except ValueError:
                if not self.newest:  # the kubelet's own words, such as "failed to open log file"
                    new.append((0, line + b"\n"))
                continue
            if self._expected and self._is_known(time_ns):
                continue
            self.first, self.last = self.first or time_ns, time_ns
            self.newest = max(self.newest, time_ns)
            self._recent.append(time_ns)
            new.append((time_ns, text + b"\n"))
        while self._recent and self._recent[0] < self._bound:
            self._recent.popleft()
        return new

    def rest(self) -> list[Line]:
        """Return the last line, which has no line end; empty if there is none."""
        lines = self.new_lines(b"\n") if self._partial else []
        return [(time_ns, text.removesuffix(b"\n")) for time_ns, text in lines]

    def _is_known(self, time_ns: int) -> bool:
        """Tell whether a line was delivered before, and notice when those that are expected do not come."""
        if self._expected[time_ns] > 0:
            self._expected[time_ns] -= 1
            self.is_in_place = True
            return True
        if time_ns < self._bound:
            return True  # delivered so long ago that it is not remembered
        self.has_lost_place |= not self.is_in_place
        self.is_in_place = True
        return False


def nanoseconds(stamp: bytes) -> int:
    """Return a time of the kubelet, ``2026-01-31T10:00:00.123456789Z``, in nanoseconds since the epoch."""
    whole, _, rest = stamp.decode().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    moment = datetime.fromisoformat(whole + rest[len(digits) :])
    return int(moment.timestamp()) * 10**9 + int(digits.ljust(9, "0")[:9])


def _since(query: LogQuery) -> str | None:
    return None if query.since is None else _text(query.since.timestamp())


def _text(moment: float) -> str:
    return datetime.fromtimestamp(int(moment), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
