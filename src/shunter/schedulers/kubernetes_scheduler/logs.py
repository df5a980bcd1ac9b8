"""Read the logs of pods: of all replicas and their attempts at the same time, each line once.

The kubelet gives each line its time, in nanoseconds, but takes ``sinceTime`` in whole seconds. So after a
break the log is read again from two seconds before the last line, and what was delivered since then is left
out: nothing is lost and nothing doubled. A line that a break cuts in two is read again as a whole. Which
attempts there are, and when they have ended, is watched.

Kubernetes keeps no logs of pods that are gone, and only the last file of a log that the kubelet has rotated.
All that remains of such a pod is the end of its log in its status (``terminationMessagePolicy:
FallbackToLogsOnError``).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from shunter.backoff import Backoff, Clock
from shunter.errors import ShunterError
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.api_server import KubernetesError, Watch
from shunter.schedulers.kubernetes_scheduler.observe import (
    FoundJob,
    app_reason,
    core_path,
    describe,
    group_pods,
    is_final,
    list_path,
    selector,
)
from shunter.schedulers.kubernetes_scheduler.reasons import (
    container_status,
    last_end,
    logged_container,
    seconds,
)
from shunter.schedulers.lines import (
    QUEUED_BLOCKS,
    LineFilter,
    TimedLine,
    blocks_of,
    blocks_until_ended,
    last_lines,
)
from shunter.schedulers.responses import LogBlock, LogQuery
from shunter.specs.status import NONE, AppState, is_terminal

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


class PodRun(NamedTuple):
    """A run of a replica's program: a container of a pod, and how many times the kubelet had restarted it."""

    pod: str
    uid: str
    restart: int


class PodBoard:
    """What is known of a job's pods now, kept up to date by two watches.

    Args:
        job: the job.
        follow: whether to watch; otherwise it is asked for once.
        clock: the time.
    """

    def __init__(self, job: FoundJob, follow: bool, clock: Clock | None = None) -> None:
        self.job = job
        self.changed = threading.Condition()
        self.error: ShunterError | None = None
        self._clock = clock
        self._pods: dict[str, dict[str, Any]] = {}
        #: Pods that are gone, as they were last seen: their ends can still be told.
        self._gone: dict[str, dict[str, Any]] = {}
        self._objects = {names.name_of(each): each for each in job.objects}
        self._is_gone = False
        #: Whether nothing more will be learnt about the job's pods, provided that the job is over.
        self.is_settled = not follow
        self._listed = [False, False]
        self._stop = threading.Event()
        self._watches: list[Watch] = []
        if follow:
            self._start()
        else:
            self._pods = {names.name_of(pod): pod for pod in job.pods()}

    def _start(self) -> None:
        job = self.job
        paths = [core_path("pods", job.namespace), list_path(job.kind, job.namespace)]
        for number, path in enumerate(paths):
            params = {"labelSelector": selector([job.name])}
            watch = Watch(job.server, path, params, self._stop, self._clock)
            self._watches.append(watch)
            threading.Thread(
                target=self._follow, args=(number, watch), name="watch-pods", daemon=True
            ).start()

    def close(self) -> None:
        """End the watches."""
        self._stop.set()
        for watch in self._watches:
            watch.close()
        with self.changed:
            self.changed.notify_all()

    def _follow(self, number: int, watch: Watch) -> None:
        try:
            for kind, item in watch.events():
                with self.changed:
                    self._note(number, kind, item)
                    self._listed[number] = True
                    self.changed.notify_all()
        except ShunterError as error:
            self._fail(error)
        except Exception as error:  # nobody would hear of it otherwise
            self._fail(KubernetesError(f"watching the job {self.job.app_id} failed: {error!r}"))

    def _fail(self, error: ShunterError) -> None:
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def _note(self, number: int, kind: str, item: Any) -> None:
        known = self._objects if number else self._pods
        if kind == "LIST":
            there = {names.name_of(each): each for each in item}
            if not number:
                self._gone.update({name: pod for name, pod in known.items() if name not in there})
            elif self._listed[1] or known:
                self._is_gone = not there
            known.clear()
            known.update(there)
        elif kind == "DELETED":
            known.pop(names.name_of(item), None)
            if number:
                self._is_gone = not known
            else:
                self._gone[names.name_of(item)] = item
        else:
            known[names.name_of(item)] = item

    def settle(self) -> None:
        """List the pods of a job that is over once more: the watch of the pods may lag behind the job's."""
        with self.changed:
            if self.is_settled:
                return
        pods = self.job.pods()
        with self.changed:
            self._note(0, "LIST", pods)
            self.is_settled = True
            self.changed.notify_all()

    def say_what_it_waits_for(self) -> None:
        """Say why nothing has begun, and again when that changes; returns when something has."""
        said, delay = NONE, FIRST_NOTICE
        while True:
            with self.changed:
                if self.changed.wait_for(self._has_begun, delay):
                    return
                job = self._now()
            delay = NEXT_NOTICE
            with suppress(ShunterError):  # the watches report it
                response = describe(job)
                waits = response.state in (AppState.PENDING, AppState.SUSPENDED)
                if waits and response.msg not in (NONE, said):
                    said = response.msg
                    log.warning("%s has not started yet: %s", job.app_id, said)

    # ---- called while holding `changed`

    def _has_begun(self) -> bool:
        states = [container_status(pod).get("state") or {} for pod in self._pods.values()]
        has_begun = any(state.get("running") or state.get("terminated") for state in states)
        return has_begun or self._is_gone or self.error is not None or self._stop.is_set()

    def attempts(self, place: tuple[int, int]) -> list[dict[str, Any]]:
        """Return the pods of a replica, the oldest first, those that are gone included."""
        return group_pods([*self._gone.values(), *self._pods.values()]).get(place, [])

    def pod(self, name: str) -> tuple[dict[str, Any] | None, bool]:
        """Return a pod as last seen, and whether it is still there."""
        return self._pods.get(name) or self._gone.get(name), name in self._pods

    def is_over(self, place: tuple[int, int]) -> bool:
        """Tell whether a replica will have no further attempt."""
        if self._is_gone:
            return True
        if not all(self._listed) and self._watches:
            return False
        job = self._now()
        if is_terminal(app_reason(job).state):
            return True
        latest = self.attempts(place)[-1:]
        phase = (latest[0].get("status") or {}).get("phase") if latest else None
        return phase == "Succeeded" or (phase == "Failed" and is_final(job, *place))

    def _now(self) -> FoundJob:
        job = self.job
        wanted = []
        for item in self._objects.values():
            item.setdefault("apiVersion", job.objects[0]["apiVersion"])
            item.setdefault("kind", job.objects[0]["kind"])
            if names.labels_of(item).get(names.LABEL_KIND, job.kind) == job.kind:
                wanted.append(item)
        wanted.sort(key=names.name_of)
        return FoundJob(job.server, job.namespace, job.name, job.kind, wanted or job.objects)


def read_logs(
    job: FoundJob, replicas: Sequence[tuple[str, int]], query: LogQuery, clock: Clock | None = None
) -> Iterator[LogBlock]:
    """Return the lines of replicas of a job, in about the order in which they were written.

    Args:
        job: the job.
        replicas: pairs of a role's name and a replica's index, all of which the job has.
        query: which lines.
        clock: the time.
    """
    roles = {role: index for index, (role, _) in enumerate(job.layout)}
    board = PodBoard(job, query.should_tail, clock)
    blocks: queue.Queue[LogBlock | BaseException | None] = queue.Queue(QUEUED_BLOCKS)
    stopped = threading.Event()
    readers = [
        _ReplicaReader(board, role, k, (roles[role], k), query, blocks, stopped, clock)
        for role, k in replicas
    ]

    def everything() -> Iterator[LogBlock]:
        for reader in readers:
            threading.Thread(target=reader.run, name=f"log-{reader.role}-{reader.k}", daemon=True).start()
        if query.should_tail:
            threading.Thread(target=board.say_what_it_waits_for, name="log-waiting", daemon=True).start()
        try:
            yield from blocks_until_ended(blocks, len(readers))
        finally:
            stopped.set()
            board.close()
            for reader in readers:
                reader.close()

    return last_lines(everything(), query.last, replicas)


class _ReplicaReader:
    """Reads the attempts of one replica one after the other."""

    def __init__(
        self,
        board: PodBoard,
        role: str,
        k: int,
        place: tuple[int, int],
        query: LogQuery,
        blocks: queue.Queue[LogBlock | BaseException | None],
        stopped: threading.Event,
        clock: Clock | None,
    ) -> None:
        self.role = role
        self.k = k
        self._board = board
        self._place = place
        self._query = query
        self._filter = LineFilter(query)
        self._blocks = blocks
        self._stopped = stopped
        self._clock = clock or Clock()
        self._response: Any = None
        self._memories: dict[str, _Memory] = {}

    def close(self) -> None:
        """End a read that is in progress, from another thread."""
        response = self._response
        if response is not None:
            with suppress(Exception):  # it is being read in another thread, and may have ended
                response.close()

    def run(self) -> None:
        """Put blocks into the queue; None or an error at the end."""
        outcome: BaseException | None = None
        try:
            done: set[PodRun] = set()
            while (attempt := self._next(done)) is not None:
                self._read(attempt)
                done.add(attempt)
            if not done and not self._stopped.is_set():
                self._explain_absence()
        except BaseException as error:
            outcome = None if self._stopped.is_set() else error
        self._put(outcome)

    def _put(self, item: LogBlock | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._blocks.put(item, timeout=0.5)
            except queue.Full:
                continue
            return

    def _next(self, done: set[PodRun]) -> PodRun | None:
        """Wait for an attempt that has begun and was not read; None if there will be none."""
        board = self._board
        while not self._stopped.is_set():
            with board.changed:
                if board.error is not None:
                    raise board.error
                found = next((each for each in self._begun() if each not in done), None)
                if found is not None or not self._query.should_tail:
                    return found
                is_over = board.is_over(self._place)
                if is_over and board.is_settled:
                    return None
                if not is_over:
                    board.changed.wait()
            if is_over:
                board.settle()
        return None

    def _begun(self) -> Iterator[PodRun]:
        """Yield the attempts whose program has begun and whose log may exist, the oldest first."""
        for pod in self._board.attempts(self._place):
            name, uid = names.name_of(pod), str(pod["metadata"].get("uid", ""))
            status = container_status(pod)
            restarts = int(status.get("restartCount") or 0)
            if restarts:  # the kubelet keeps the log of the one before, and of no older one
                yield PodRun(name, uid, restarts - 1)
            state = status.get("state") or {}
            if state.get("running") or state.get("terminated"):
                yield PodRun(name, uid, restarts)

    def _state(self, attempt: PodRun) -> tuple[bool, bool, bool]:
        """Return whether an attempt has ended, its pod has begun another one, and the pod still exists."""
        with self._board.changed:
            pod, is_there = self._board.pod(attempt.pod)
            if pod is None:
                return True, False, False
            status = container_status(pod)
            is_previous = int(status.get("restartCount") or 0) > attempt.restart
            phase = (pod.get("status") or {}).get("phase")
            ended = is_previous or bool(last_end(pod)) or phase in ("Succeeded", "Failed") or not is_there
            return ended, is_previous, is_there

    def _read(self, attempt: PodRun) -> None:
        board = self._board
        # by pod: a container that was restarted meanwhile may have answered in place of the one before
        memory = self._memories.setdefault(attempt.uid, _Memory())
        backoff = Backoff(0.25, 10.0, clock=self._clock, stop=self._stopped)
        path = core_path("pods", board.job.namespace, attempt.pod, "log")
        was_whole = False  # the last read came to the end of what had been written
        while not self._stopped.is_set():
            ended, is_previous, is_there = self._state(attempt)
            with board.changed:
                pod = board.pod(attempt.pod)[0] or {}
            params: dict[str, Any] = {
                "container": logged_container(pod),
                "timestamps": "true",
                "follow": "true" if self._query.should_tail and not ended else None,
                "previous": "true" if is_previous else None,
                "sinceTime": memory.since() or _since(self._query),
            }
            try:
                memory.begin(attempt.restart)
                whole, lines = self._read_once(path, params, memory)
                if memory.has_lost_place or (memory.is_lost() and whole and not was_whole):
                    log.warning(
                        "the log of %s was rotated while it could not be read: lines after %s may be missing",
                        attempt.pod,
                        memory.resumed_after,
                    )
            except KubernetesError as error:
                if error.status == 404 or (error.status == 400 and ended):  # no pod, or no log of it any more
                    self._explain_end(attempt, memory, error)
                    return
                if error.status in (401, 403):
                    raise
                if (ended or not self._query.should_tail) and backoff.failures + 1 >= LAST_ATTEMPTS:
                    if not ended:
                        raise
                    self._explain_end(attempt, memory, error)
                    return
                backoff.pause(error.wait)
                continue
            if lines:
                backoff.reset()
            if whole and (ended or not self._query.should_tail or not is_there):
                self._emit(memory.rest())
                self._explain_beginning(attempt, memory)
                return
            was_whole = whole
            memory.forget_rest()
            if not lines:  # followed logs that end at once are not asked for in a tight loop
                self._wait_for_end(attempt, backoff)

    def _wait_for_end(self, attempt: PodRun, backoff: Backoff) -> None:
        if not self._state(attempt)[0]:
            seconds = backoff.delay()
            with self._board.changed:
                self._board.changed.wait(seconds)

    def _read_once(self, path: str, params: dict[str, Any], memory: _Memory) -> tuple[bool, int]:
        """Read a log until the server ends it or it breaks.

        Returns whether it ended properly, and how many new lines came.
        """
        count = size = 0
        lines: list[tuple[bytes, bytes]] = []
        with self._board.job.server.stream(path, silence=SILENCE, **params) as response:
            self._response = response
            about_socket = response.extensions["network_stream"].get_extra_info
            try:
                for chunk in _with_errors(response.iter_bytes(), self._stopped):
                    if chunk is None:
                        self._emit(lines)
                        return False, count + len(lines)
                    lines += memory.new_lines(chunk)
                    size += len(chunk)
                    # each line is a chunk: what has arrived is handed on together
                    if size >= BLOCK_SIZE or not about_socket("is_readable"):
                        self._emit(lines)
                        count += len(lines)
                        lines, size = [], 0
            finally:
                self._response = None
        self._emit(lines)
        return True, count + len(lines)

    def _chosen(self, lines: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
        query = self._query
        if not (query.timed or query.since or query.until):
            yield self._filter.select(b"".join(text for _, text in lines))
            return
        for stamp, text in lines:
            time_ns = nanoseconds(stamp.decode()) if stamp else 0
            data = self._filter.select_at(time_ns, text) if stamp else self._filter.select(text)
            yield TimedLine.at(time_ns, data) if query.timed else data

    def _emit(self, lines: list[tuple[bytes, bytes]]) -> None:
        for block in blocks_of((self.role, self.k), self._chosen(lines)):
            self._put(block)

    def _explain_absence(self) -> None:
        """Say that there is no log of a job that is over."""
        with self._board.changed:
            is_lost = self._board.is_over(self._place) and not self._board.attempts(self._place)
        if is_lost:
            log.warning("there is no pod of %s/%s, so there is no log of it", self.role, self.k)

    def _explain_beginning(self, attempt: PodRun, memory: _Memory) -> None:
        """Say that the kubelet seems to have rotated a log before it was read.

        Nothing tells for sure. A program that writes evenly has run longer before the lines that are left
        than while it wrote them.
        """
        with self._board.changed:
            status = container_status(self._board.pod(attempt.pod)[0] or {})
        is_previous = int(status.get("restartCount") or 0) > attempt.restart
        state = (status.get("lastState") if is_previous else status.get("state")) or {}
        began = seconds((state.get("terminated") or state.get("running") or {}).get("startedAt"))
        if self._query.since or not memory.first or began is None or memory.size < LEAST_ROTATED:
            return
        first, last = (nanoseconds(stamp.decode()) / 1e9 for stamp in (memory.first, memory.last))
        if first - began > max(last - first, 1.0):
            log.warning(
                "the log of %s begins %d s after its program: if the kubelet has rotated it, lines before "
                "that are missing",
                attempt.pod,
                first - began,
            )

    def _explain_end(self, attempt: PodRun, memory: _Memory, error: KubernetesError) -> None:
        """Deliver what the pod's status keeps of a log that can no longer be read."""
        with self._board.changed:
            pod = self._board.pod(attempt.pod)[0]
        self._emit(memory.rest())
        message = str(last_end(pod).get("message") or "") if pod is not None else ""
        if message and not memory.newest and not message.lstrip().startswith("{"):
            data = message.encode("utf-8", "surrogateescape")
            self._emit([(b"", data if data.endswith(b"\n") else data + b"\n")])
            log.warning("only the end of the log of %s is left: %s", attempt.pod, error.message)
        else:
            log.warning("the log of %s cannot be read to its end: %s", attempt.pod, error.message)


def _with_errors(chunks: Iterator[bytes], stopped: threading.Event) -> Iterator[bytes | None]:
    """Yield chunks; None if the connection broke, after what had come."""
    import httpx2

    while not stopped.is_set():
        try:
            chunk = next(chunks, b"")
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            yield None
            return
        if not chunk:
            return
        yield chunk


class _Memory:
    """What was delivered of a log, as far as it may be read again."""

    def __init__(self) -> None:
        #: The second of the latest line; 0 before the first.
        self.newest = 0
        #: The time of the last line that was delivered before this read.
        self.resumed_after = ""
        #: Whether lines that must have been there were missing at the beginning of this read.
        self.has_lost_place = False
        self.first = self.last = b""
        self.size = 0
        #: The times of recent lines by their second; of the current second, and as which text it is written.
        self._recent: dict[int, list[bytes]] = {}
        self._stamps: list[bytes] = []
        self._second = 0
        self._prefix = b""
        self._expected: Counter[bytes] = Counter()
        self._bound = 0
        self._partial = b""
        self._is_in_place = True
        self._restart = 0

    def begin(self, restart: int = 0) -> None:
        """Expect the recent lines again, unless another container of the pod has written them."""
        self._partial = b""
        self.resumed_after = self.last.decode()
        self._expected = Counter(stamp for stamps in self._recent.values() for stamp in stamps)
        self._bound = self.newest - OVERLAP
        self._is_in_place = not self._expected or restart != self._restart
        self.has_lost_place = False
        self._restart = restart

    def since(self) -> str:
        """Return the time from which the log is read again; "" at first."""
        if not self.newest:
            return ""
        return datetime.fromtimestamp(self.newest - OVERLAP, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def new_lines(self, chunk: bytes) -> list[tuple[bytes, bytes]]:
        """Return the time and text of those whole lines that were not delivered before."""
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        found = []
        for line in lines:
            stamp, _, text = line.partition(b" ")
            if stamp[:19] != self._prefix and not self._begin_second(stamp):
                if not self.newest:  # the kubelet's own words, such as "failed to open log file"
                    found.append((b"", line + b"\n"))
                continue
            if self._expected and self._is_known(stamp):
                continue
            self._stamps.append(stamp)
            found.append((stamp, text + b"\n"))
        if found:
            self.size += len(chunk)
            self.first, self.last = self.first or found[0][0], found[-1][0] or self.last
        return found

    def rest(self) -> list[tuple[bytes, bytes]]:
        """Return the last line, which has no line end; empty if there is none."""
        lines = self.new_lines(b"\n") if self._partial else []
        return [(stamp, text.removesuffix(b"\n")) for stamp, text in lines]

    def forget_rest(self) -> None:
        """Forget a line whose end has not come: it will be read again."""
        self._partial = b""

    def is_lost(self) -> bool:
        """Tell whether none of the expected lines came again, and no other either."""
        return not self._is_in_place

    def _begin_second(self, stamp: bytes) -> bool:
        """Note the second in which the next lines were written; False if this is no time."""
        try:
            self._second = nanoseconds(stamp.decode()) // 10**9
        except ValueError:
            return False
        self._prefix = stamp[:19]
        self.newest = max(self.newest, self._second)
        for old in [second for second in self._recent if second < self.newest - OVERLAP]:
            del self._recent[old]
        self._stamps = self._recent.setdefault(self._second, [])
        return True

    def _is_known(self, stamp: bytes) -> bool:
        """Tell whether a line was delivered before, and notice when those that are expected do not come."""
        if self._expected[stamp] > 0:
            self._expected[stamp] -= 1
            self._is_in_place = True
            return True
        if self._second < self._bound:
            return True  # delivered so long ago that it is not remembered
        self.has_lost_place |= not self._is_in_place
        self._is_in_place = True
        return False


def nanoseconds(stamp: str) -> int:
    """Return a time of the kubelet, ``2026-01-31T10:00:00.123456789Z``, in nanoseconds since the epoch."""
    whole, dot, rest = stamp.partition(".")
    if not dot:
        return int(datetime.fromisoformat(stamp).timestamp()) * 10**9
    digits = len(rest) - len(rest.lstrip("0123456789"))
    moment = datetime.fromisoformat(whole + (rest[digits:] or "Z"))
    return int(moment.timestamp()) * 10**9 + int(rest[:digits].ljust(9, "0")[:9])


def _since(query: LogQuery) -> str | None:
    if query.since is None:
        return None
    return datetime.fromtimestamp(int(query.since.timestamp()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
