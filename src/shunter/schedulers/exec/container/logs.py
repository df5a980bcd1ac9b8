r"""Logs of containers: the daemon's frames, joined to lines, read once or followed.

A frame is a byte for the stream (1 stdout, 2 stderr, 3 an error of the daemon's), three zeros, the length in
four bytes, and that many bytes. They hold a line, or a piece of at most 16 KiB of a longer one, then without
``\n``. If times are asked for, each frame begins with one.
https://docs.docker.com/reference/api/engine/version/v1.47/#tag/Container/operation/ContainerAttach
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from shunter.docker.daemon_errors import EngineError, EngineUnavailableError
from shunter.docker.engine import DaemonAnswer, Engine
from shunter.errors import BackendError
from shunter.schedulers.api import LogBlock, LogQuery, Stream
from shunter.schedulers.exec.container.inventory import Container, Job, format_time, load_job, parse_time
from shunter.schedulers.exec.container.job_events import JobEvents
from shunter.schedulers.exec.container.judge import Judgement
from shunter.schedulers.lines import LineFilter, TimedLine, blocks_of, blocks_until_ended, iter_lines

#: A stream and what a frame of it holds.
Frame = tuple[int, bytes]

#: When a line began, as `split_time` gives it, and the line.
StampedLine = tuple[bytes, bytes]

#: How containers' logs are kept. This driver keeps bytes that are not UTF-8, and is faster to read than the
#: others. By default it drops the oldest lines at 100 MB. It does not accept "unlimited", so the limit is one
#: that no disk reaches.
LOG_CONFIG = {"Type": "local", "Config": {"max-size": "1000p"}}
HEADER = 8
DAEMON_ERROR = 3
#: The daemon cuts longer lines into pieces of this many bytes.
PIECE_LENGTH = 16384
#: Length of ``2026-11-21T18:49:14.260944552Z``.
TIME_LENGTH = 30
#: The daemon sends each line separately. A reader that sleeps for a moment finds many, which saves both sides
#: a context switch for each line: 8 MB in 0.20 s instead of 0.36 s.
NAP_SECONDS = 0.0002
#: The reader does not sleep after having received this many bytes at once.
PLENTY = 96 << 10
READ_SIZE = 1 << 20
#: By how much a frame's time may be earlier than that of a frame before it.
DISORDER_NS = 1_000_000_000
LARGEST_BLOCK = 256 << 10
QUEUED_BLOCKS = 256
#: How long to wait, at most, before a daemon that has gone away is asked again.
RECHECK_SECONDS = 5.0
#: The query for both streams, with times.
_BOTH_TIMED = {"stdout": True, "stderr": True, "timestamps": True}
_NUMBERS = {Stream.STDOUT: (1,), Stream.STDERR: (2,), Stream.COMBINED: (1, 2)}


# ---- frames and lines


class FrameReader:
    """Cuts frames out of the bytes of an answer, whatever parts those arrive in."""

    def __init__(self) -> None:
        self._pending = b""

    def frames(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now.

        Raises:
            BackendError: the daemon could not read its own log.
        """
        if self._pending:
            data = self._pending + data
        found: list[Frame] = []
        append = found.append
        position, end = 0, len(data)
        from_bytes = int.from_bytes
        while position + HEADER <= end:
            start = position + HEADER
            following = start + from_bytes(data[position + 4 : start], "big")
            if following > end:
                break
            stream = data[position]
            if stream == DAEMON_ERROR:
                words = data[start:following].decode("utf-8", "replace").strip()
                raise BackendError(f"the Docker daemon cannot read the log: {words}")
            append((stream, data[start:following]))
            position = following
        self._pending = data[position:]
        return found

    @property
    def is_complete(self) -> bool:
        """Whether no part of a frame is left."""
        return not self._pending


class LineJoiner:
    """Joins pieces to lines, each stream separately, so that no line is broken by one of the other stream.

    The driver ``local`` drops the line feed of lines that it had to cut. A piece that is shorter than the
    longest was the last one of its line, or the last that a program wrote: what follows is a new line.
    """

    def __init__(self) -> None:
        self._pieces: dict[int, list[bytes]] = {}

    def add(self, stream: int, piece: bytes) -> bytes:
        """Add a piece; returns the lines that are complete now."""
        pieces = self._pieces.get(stream)
        if not pieces and piece.endswith(b"\n"):
            return piece
        ended = self.end_of_cut_line(stream)
        pieces = self._pieces.setdefault(stream, [])
        pieces.append(piece)
        if piece.endswith(b"\n"):
            ended += b"".join(pieces)
            pieces.clear()
        return ended

    def end_of_cut_line(self, stream: int) -> bytes:
        """Return the line that the next piece does not belong to, or b"" if it continues one."""
        pieces = self._pieces.get(stream)
        if not pieces or len(pieces[-1]) >= PIECE_LENGTH:
            return b""
        line = b"".join(pieces) + b"\n"
        pieces.clear()
        return line

    def rest(self) -> Iterator[bytes]:
        """Yield the last lines, which have no end."""
        for pieces in self._pieces.values():
            line = b"".join(pieces)
            pieces.clear()
            if line:
                yield line


def split_time(content: bytes) -> tuple[bytes, bytes]:
    """Split a frame's content into its time, as a text that sorts like the times do, and the rest."""
    if content[TIME_LENGTH - 1 : TIME_LENGTH + 1] == b"Z ":
        return content[:TIME_LENGTH], content[TIME_LENGTH + 1 :]
    stamp, _, rest = content.partition(b" ")
    return stamp_of(time_ns(stamp)), rest  # of a daemon that does not use UTC


def time_ns(stamp: bytes) -> int:
    """Return a frame's time in nanoseconds since the epoch."""
    return parse_time(stamp.decode("ascii"))


def stamp_of(nanoseconds: int) -> bytes:
    """Return a time as frames begin with it."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09d}Z".encode()


class Cursor:
    """How far a log was read, so that a later answer of the daemon can be continued from there.

    The times of a log's frames do not always ascend: the daemon takes them in one thread for each stream,
    before it writes, and all pieces of a line have the time of the first. Hence a time does not tell what was
    read; the last frame does, since the daemon sends frames in the order in which it wrote them.

    Attributes:
        latest: the latest time of the frames that were read, or b"" before the first.
    """

    __slots__ = ("_last", "_streams", "latest")

    def __init__(self) -> None:
        self.latest = b""
        #: Of each stream: time of its last frame, how many of its frames have it, whether the line goes on.
        self._streams: list[tuple[bytes, int, bool]] = [(b"", 0, False)] * DAEMON_ERROR
        self._last = 0

    def advance(self, stream: int, stamp: bytes, length: int) -> None:
        """Note a frame that has been read, and the length of its content in bytes."""
        last, count, _ = self._streams[stream]
        self._streams[stream] = stamp, count + 1 if stamp == last else 1, length >= PIECE_LENGTH
        self._last = stream
        if stamp > self.latest:
            self.latest = stamp

    @property
    def last(self) -> tuple[int, bytes, int]:
        """Stream and time of the last frame, and how many frames with these have been read."""
        stamp, count, _ = self._streams[self._last]
        return self._last, stamp, count

    def resume_ns(self) -> int:
        """Return the time since which frames are to be asked for: nanoseconds since the epoch."""
        unended = [stamp for stamp, _, goes_on in self._streams if goes_on]
        earliest = min(time_ns(stamp) for stamp in (self.last[1], *unended))
        return min(earliest, time_ns(self.latest) - DISORDER_NS)


# ---- what is asked of the daemon


def open_log(engine: Engine, container_id: str, params: dict[str, Any]) -> DaemonAnswer | None:
    """Ask for a container's log; returns None if there is no such container.

    Raises:
        BackendError: the daemon cannot read it.
    """
    try:
        return engine.stream("GET", f"/containers/{container_id}/logs", params=params, unframed=True)
    except EngineError as error:
        if error.status == 404:
            return None
        raise BackendError(f"the Docker daemon cannot read the log: {error.message}") from error


def frames_of(answer: DaemonAnswer, *, naps: bool) -> Iterator[list[Frame]]:
    """Yield the frames of an answer, as many at a time as have arrived."""
    reader = FrameReader()
    while data := answer.read1(READ_SIZE):
        yield reader.frames(data)
        if naps and len(data) < PLENTY:
            time.sleep(NAP_SECONDS)


def frames_after(
    engine: Engine,
    container_id: str,
    cursor: Cursor,
    *,
    follow: bool,
    since: str | None = None,
    opened: Callable[[DaemonAnswer], None] = lambda answer: None,
) -> Iterator[list[tuple[int, bytes, bytes]]]:
    """Yield stream, time and content of the frames after a cursor, and advance it.

    With ``follow``, waits for more until the container ends. ``since`` is where to begin if nothing was read
    yet. ``opened`` is called with the answer before it is read.
    """
    skips = cursor.latest
    if skips:
        since = format_time(cursor.resume_ns())
    # Always both streams, so that the last frame that was read is among the answer's.
    params = {**_BOTH_TIMED, "follow": follow, "since": since}
    answer = open_log(engine, container_id, params)
    if answer is None:
        return
    opened(answer)
    stream_of_last, stamp_of_last, repeated = cursor.last
    with answer:
        for frames in frames_of(answer, naps=engine.is_local):
            found = []
            for stream, content in frames:
                stamp, piece = split_time(content)
                if skips and stamp <= skips:  # a later one is of a new container
                    if stamp == stamp_of_last and stream == stream_of_last:
                        repeated -= 1
                        if not repeated:
                            skips = b""
                    continue
                skips = b""
                cursor.advance(stream, stamp, len(piece))
                found.append((stream, stamp, piece))
            yield found


# ---- reading what has been written


class LogWindow(LineFilter):
    """The lines of a log that a query asks for, with times to the nanosecond."""

    def __init__(self, query: LogQuery) -> None:
        super().__init__(query)
        stream = Stream(query.streams) if query.streams is not None else Stream.COMBINED
        self.streams = _NUMBERS[stream]
        self.since = None if query.since is None else format_time(max(0, to_ns(query.since)))
        #: The daemon's ``until`` includes its moment, ours does not.
        self.until_ns = None if query.until is None else to_ns(query.until)
        self.until_stamp = b"" if self.until_ns is None else stamp_of(self.until_ns)
        self.has_pattern = query.regex is not None
        self.last = query.last
        self.timed = query.timed

    def params(self, **more: Any) -> dict[str, Any]:
        """Return the query of a request."""
        until = None if self.until_ns is None else format_time(max(1, self.until_ns - 1))
        streams = {"stdout": 1 in self.streams, "stderr": 2 in self.streams}
        return {**streams, "since": self.since, "until": until, **more}


def to_ns(moment: datetime) -> int:
    """Return nanoseconds since the epoch, exactly."""
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def read_one(engine: Engine, container_id: str, window: LogWindow) -> Iterator[bytes]:
    """Yield blocks of whole lines of one container's log, as far as it has been written."""
    if window.last is not None:
        yield from read_last(engine, container_id, window)[0]
        return
    answer = open_log(engine, container_id, window.params())
    if answer is None:
        return
    joiner = LineJoiner()
    with answer:
        for frames in frames_of(answer, naps=engine.is_local):
            block = b"".join([joiner.add(stream, content) for stream, content in frames])
            if block:
                yield window.select(block)
    yield from map(window.select, joiner.rest())


def read_timed(engine: Engine, container_id: str, window: LogWindow) -> Iterator[StampedLine]:
    """Yield the lines of one container's log with the times at which they began."""
    answer = open_log(engine, container_id, window.params(timestamps=True))
    if answer is None:
        return
    joiner = LineJoiner()
    begun: dict[int, bytes] = {}
    with answer:
        for frames in frames_of(answer, naps=engine.is_local):
            for stream, content in frames:
                stamp, piece = split_time(content)
                ended = joiner.end_of_cut_line(stream)
                if ended and (found := window.select(ended)):
                    yield begun[stream], found
                line = joiner.add(stream, piece)
                if ended or stream not in begun:
                    begun[stream] = stamp
                if line:
                    first = begun.pop(stream)
                    if found := window.select(line):
                        yield first, found
    left = window.select(b"".join(joiner.rest()))
    if left:
        yield max(begun.values()), left


def lines_since(
    engine: Engine, container_id: str, since_ns: int, last: int, *, complete: bool = False
) -> list[StampedLine]:
    """Return the last lines that a container has written since a time, each with its time.

    ``since_ns`` is in nanoseconds since the epoch, ``last`` how many lines at most. With ``complete``, the
    container has ended: this waits until the daemon has written all of its log, which may take a moment.
    """
    params = {**_BOTH_TIMED, "follow": complete, "since": format_time(since_ns), "tail": last}
    answer = open_log(engine, container_id, params)
    if answer is None:
        return []
    with answer:
        pieces = [piece for frames in frames_of(answer, naps=False) for _, piece in frames]
    return [split_time(piece) for piece in pieces]


def read_many(
    engine: Engine, containers: dict[tuple[str, int], str], window: LogWindow
) -> Iterator[LogBlock]:
    """Yield the lines of several containers, given by role and index, in the order of their times."""
    if window.last is not None or (len(containers) == 1 and not window.timed):
        for (role, k), container_id in containers.items():
            yield from blocks_of((role, k), read_one(engine, container_id, window))
        return

    def keyed(
        key: tuple[str, int], lines: Iterator[StampedLine]
    ) -> Iterator[tuple[bytes, tuple[str, int], bytes]]:
        return ((stamp, key, line) for stamp, line in lines)

    sources = [keyed(key, read_timed(engine, id_, window)) for key, id_ in containers.items()]
    merged = heapq.merge(*sources, key=lambda item: item[0])
    if window.timed:
        yield from (LogBlock(*key, line, time_ns(stamp)) for stamp, key, line in merged)
        return
    yield from _in_blocks(merged)


def _in_blocks(lines: Iterable[tuple[bytes, tuple[str, int], bytes]]) -> Iterator[LogBlock]:
    """Put adjacent lines of the same replica together."""
    held: list[bytes] = []
    owner, size = ("", 0), 0
    for _, key, line in lines:
        if held and (key != owner or size > LARGEST_BLOCK):
            yield LogBlock(*owner, b"".join(held))
            held, size = [], 0
        owner = key
        held.append(line)
        size += len(line)
    if held:
        yield LogBlock(*owner, b"".join(held))


def read_last(engine: Engine, container_id: str, window: LogWindow) -> tuple[list[bytes], Cursor]:
    """Return the last lines that are asked for, and how far the log has been read.

    The daemon counts pieces of lines of both streams, so it is asked for more until there are enough.
    """
    wanted = window.last or 0
    # The daemon selects the last frames before it filters by time, and it cannot filter by pattern.
    asked = None if window.has_pattern or window.until_ns is not None else wanted + 1
    while True:
        lines, cursor, first, is_cut = _read_tail(engine, container_id, window, asked)
        # Frames with the time of the last one may precede the tail, unless the tail begins at an earlier one.
        if asked is None or not is_cut or (len(lines) > wanted and first < cursor.last[1]):
            return list(deque(lines, maxlen=wanted)) if wanted else [], cursor
        asked = 4 * asked + 64


def _read_tail(
    engine: Engine, container_id: str, window: LogWindow, asked: int | None
) -> tuple[list[bytes], Cursor, bytes, bool]:
    """Read the last frames; returns lines, how far it was read, the first frame's time, and whether there may
    be frames before it, so that the first line may lack its beginning."""
    cursor, joiner, blocks, count, first = Cursor(), LineJoiner(), [], 0, b""
    params = {**window.params(tail=asked), **_BOTH_TIMED}
    answer = open_log(engine, container_id, params)
    if answer is None:
        return [], cursor, b"", False
    with answer:
        for frames in frames_of(answer, naps=engine.is_local):
            for stream, content in frames:
                stamp, piece = split_time(content)
                first = first or stamp
                cursor.advance(stream, stamp, len(piece))
                count += 1
                if stream in window.streams:
                    blocks.append((stamp, joiner.add(stream, piece)))
    blocks += [(cursor.latest, block) for block in joiner.rest()]
    lines: list[bytes] = []
    for stamp, block in blocks:
        found = iter_lines(window.select(block)) if block else ()
        lines += (TimedLine.at(time_ns(stamp), line) for line in found) if window.timed else found
    return lines, cursor, first, asked is not None and count >= asked


# ---- following


def follow(
    engine: Engine,
    app_id: str,
    replicas: list[tuple[str, int]],
    window: LogWindow,
    judge: Callable[[Job], Judgement],
) -> Iterator[LogBlock]:
    """Yield what the replicas write until the job has ended and all of it has been read.

    Restarts of the containers and of the daemon do not end it. ``judge`` judges the job, and ensures that it
    is watched.
    """
    blocks: queue.Queue[LogBlock | BaseException | None] = queue.Queue(QUEUED_BLOCKS)
    with JobEvents(engine, app_id) as events:
        view = _JobView(engine, app_id, judge)
        followers = [_Follower(engine, view, events, key, window, blocks) for key in replicas]
        for follower in followers:
            follower.thread.start()
        timer = None
        if window.until_ns is not None:
            seconds = max(0.0, window.until_ns / 1e9 - time.time())
            timer = threading.Timer(seconds, lambda: deque(map(_Follower.finish, followers), maxlen=0))
            timer.daemon = True
            timer.start()
        try:
            yield from blocks_until_ended(blocks, len(followers))
        finally:
            if timer is not None:
                timer.cancel()
            for follower in followers:
                follower.stop()


class _JobView:
    """The job as it was last seen: loaded once for each event, however many replicas are followed."""

    def __init__(self, engine: Engine, app_id: str, judge: Callable[[Job], Judgement]) -> None:
        self._engine = engine
        self._judge = judge
        self._app_id = app_id
        self._lock = threading.Lock()
        self._seen = -1
        self._containers: dict[tuple[str, int], Container] = {}
        self._is_over = False

    def at(self, seen: int, key: tuple[str, int]) -> tuple[Container | None, bool]:
        """Return a replica's container and whether the job is over, as of after this many events."""
        with self._lock:
            if self._seen != seen:
                job = load_job(self._engine, self._app_id)
                self._containers = {} if job is None else job.by_replica()
                self._is_over = job is None or self._judge(job).is_over
                self._seen = seen
            return self._containers.get(key), self._is_over


class _Follower:
    """Follows one replica, in a thread."""

    def __init__(
        self,
        engine: Engine,
        view: _JobView,
        events: JobEvents,
        key: tuple[str, int],
        window: LogWindow,
        blocks: queue.Queue[LogBlock | BaseException | None],
    ) -> None:
        self._engine = engine
        self._view = view
        self._events = events
        self._key = key
        self._window = window
        self._blocks = blocks
        self._cursor = Cursor()
        self._joiner = LineJoiner()
        self._stopped = threading.Event()
        self._time_is_up = threading.Event()
        self._skips_to_last = window.last is not None
        self._lock = threading.Lock()
        self._answer: DaemonAnswer | None = None
        self.thread = threading.Thread(target=self._run, name=f"log-{key[0]}-{key[1]}", daemon=True)

    def stop(self) -> None:
        """End the thread soon, whatever it waits for."""
        self._interrupt(self._stopped)

    def finish(self) -> None:
        """Read what has been written, and wait for no more."""
        self._interrupt(self._time_is_up)

    def _interrupt(self, why: threading.Event) -> None:
        with self._lock:
            why.set()
            if self._answer is not None:
                self._answer.interrupt()
        self._events.wake()

    def _run(self) -> None:
        outcome: BaseException | None = None
        try:
            self._follow()
            for line in self._joiner.rest():
                self._put_lines(line)
        except BaseException as error:
            outcome = error
        if outcome is not None and not self._stopped.is_set():
            self._put(outcome)
        self._put(None)

    def _follow(self) -> None:
        read_to = -1
        while not (self._stopped.is_set() or self._time_is_up.is_set()):
            seen = self._events.count()
            try:
                container, is_over = self._view.at(seen, self._key)
                if container is not None and (container.is_active or container.finished != read_to):
                    self._read(container.id)
                    read_to = -1 if container.is_active else container.finished
            except EngineUnavailableError:
                self._events.wait(seen, RECHECK_SECONDS)
                continue
            if is_over:
                break
            self._events.attend_watcher()
            self._events.wait(seen)
        if self._time_is_up.is_set() and not self._stopped.is_set():
            container, _ = self._view.at(self._events.count(), self._key)
            if container is not None:  # the end of the time may have cut the last reading short
                self._read(container.id, follow=False)

    def _read(self, container_id: str, *, follow: bool = True) -> None:
        """Read from where the last reading ended until the container ends, or the daemon goes away."""
        if self._skips_to_last:
            lines, self._cursor = read_last(self._engine, container_id, self._window)
            for block in blocks_of(self._key, lines):
                self._put(block)
            self._skips_to_last = False

        def opened(answer: DaemonAnswer) -> None:
            with self._lock:
                self._answer = answer
                if self._stopped.is_set() or (follow and self._time_is_up.is_set()):
                    answer.interrupt()

        window, add = self._window, self._joiner.add
        batches = frames_after(
            self._engine, container_id, self._cursor, follow=follow, since=window.since, opened=opened
        )
        try:
            for frames in batches:
                pieces = [
                    (stamp, add(stream, piece))
                    for stream, stamp, piece in frames
                    if stream in window.streams and not (window.until_stamp and stamp >= window.until_stamp)
                ]
                if window.timed:
                    for stamp, line in pieces:
                        self._put_lines(line, time_ns(stamp))
                else:
                    self._put_lines(b"".join([line for _, line in pieces]))
        finally:
            with self._lock:
                self._answer = None

    def _put_lines(self, block: bytes, written_ns: float = 0) -> None:
        data = self._window.select(block)
        if data:
            self._put(LogBlock(*self._key, data, written_ns))

    def _put(self, item: LogBlock | BaseException | None) -> None:
        while True:
            try:
                self._blocks.put(item, timeout=0.5)
            except queue.Full:
                if self._stopped.is_set():
                    return
            else:
                return
