"""Following logs of a job until it ends, over restarts of its containers and of the daemon."""

from __future__ import annotations

import queue
import threading
import time

from trainyard.docker.engine import EngineUnavailableError
from trainyard.schedulers.base import LogBlock
from trainyard.schedulers.exec.container import inventory
from trainyard.schedulers.exec.container.events import Events
from trainyard.schedulers.exec.container.frames import LineJoiner, split_time
from trainyard.schedulers.exec.container.logs import Cursor, Window, frames_of, open_log, read_last

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from trainyard.docker.engine import DaemonAnswer as Answer
    from trainyard.docker.engine import Engine
    from trainyard.schedulers.exec.container.inventory import Job
    from trainyard.schedulers.exec.container.judge import Verdict

QUEUED_BLOCKS = 256
#: How long to wait, at most, before a daemon that has gone is asked again.
RECHECK_SECONDS = 5.0


class JobView:
    """The job as it was seen last; looked at once for each event, however many replicas are followed."""

    def __init__(self, engine: Engine, app_id: str, judge: Callable[[Job], Verdict]) -> None:
        self._engine = engine
        self._judge = judge
        self._app_id = app_id
        self._lock = threading.Lock()
        self._seen = -1
        self._found: tuple[Job, Verdict] | None = None

    def at(self, seen: int) -> tuple[Job, Verdict] | None:
        """Return the job, seen after this many events; None if it is gone."""
        with self._lock:
            if self._seen != seen:
                job = inventory.load_job(self._engine, self._app_id)
                self._found = None if job is None else (job, self._judge(job))
                self._seen = seen
            return self._found


def follow(
    engine: Engine,
    app_id: str,
    replicas: list[tuple[str, int]],
    window: Window,
    judge: Callable[[Job], Verdict],
) -> Iterator[LogBlock]:
    """Yield what the replicas write until the job has ended and all of it has been read.

    Args:
        engine: the daemon.
        app_id: id of the job.
        replicas: pairs of a role's name and a replica's index.
        window: which lines.
        judge: tells what has become of the job, and sees to it that it is watched.
    """
    blocks: queue.Queue[LogBlock | BaseException | None] = queue.Queue(QUEUED_BLOCKS)
    with Events(engine, app_id) as events:
        view = JobView(engine, app_id, judge)
        followers = [_Follower(engine, view, events, key, window, blocks) for key in replicas]
        for follower in followers:
            follower.thread.start()
        timer = _end_at(window, followers)
        try:
            running = len(followers)
            while running:
                item = blocks.get()
                if isinstance(item, LogBlock):
                    yield item
                elif item is not None:
                    raise item
                else:
                    running -= 1
        finally:
            if timer is not None:
                timer.cancel()
            for follower in followers:
                follower.stop()


def _end_at(window: Window, followers: list[_Follower]) -> threading.Timer | None:
    """Stop waiting for lines when the time is up until which they are asked for."""
    if window.until_ns is None:
        return None

    def finish() -> None:
        for follower in followers:
            follower.finish()

    timer = threading.Timer(max(0.0, window.until_ns / 1e9 - time.time()), finish)
    timer.daemon = True
    timer.start()
    return timer


class _Follower:
    """Follows one replica, in a thread."""

    def __init__(
        self,
        engine: Engine,
        view: JobView,
        events: Events,
        key: tuple[str, int],
        window: Window,
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
        self._answer: Answer | None = None
        self.thread = threading.Thread(target=self._run, name=f"log-{key[0]}-{key[1]}", daemon=True)

    def stop(self) -> None:
        """End it soon, wherever it waits."""
        with self._lock:
            self._stopped.set()
            if self._answer is not None:
                self._answer.interrupt()
        self._events.wake()

    def finish(self) -> None:
        """Have it read what has been written, and wait for no more."""
        with self._lock:
            self._time_is_up.set()
            if self._answer is not None:
                self._answer.interrupt()
        self._events.wake()

    def _run(self) -> None:
        outcome: BaseException | None = None
        try:
            self._follow()
            for line in self._joiner.rest():
                self._give(line)
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
                found = self._view.at(seen)
                container = found[0].by_replica().get(self._key) if found else None
                if container is not None and (container.is_active or container.finished != read_to):
                    self._read(container.id)
                    read_to = -1 if container.is_active else container.finished
            except EngineUnavailableError:
                self._events.wait(seen, RECHECK_SECONDS)
                continue
            if found is None or found[1].is_over:
                break
            self._events.attend_watcher()
            self._events.wait(seen)
        if self._time_is_up.is_set():  # which may have cut the last reading short
            self._read_rest()

    def _read_rest(self) -> None:
        """Read what was written before the time was up, and has not been read."""
        if self._stopped.is_set():
            return
        found = self._view.at(self._events.count())
        container = found[0].by_replica().get(self._key) if found else None
        if container is not None:
            self._read(container.id, follow=False)

    def _read_last(self, container_id: str) -> None:
        lines, self._cursor = read_last(self._engine, container_id, self._window)
        for line in lines:
            self._put(LogBlock(*self._key, line))

    def _read(self, container_id: str, *, follow: bool = True) -> None:
        """Read from where the last reading ended until the container ends, or the daemon goes away."""
        if self._skips_to_last:
            self._read_last(container_id)
            self._skips_to_last = False
        cursor = self._cursor
        since = cursor.since() or self._window.since
        # Both streams are read whatever is asked for: frames are told apart by counting those of one time.
        params = {"stdout": True, "stderr": True, "timestamps": True, "follow": follow, "since": since}
        answer = open_log(self._engine, container_id, params)
        if answer is None:
            return
        with self._lock:
            self._answer = answer
            if self._stopped.is_set() or (follow and self._time_is_up.is_set()):
                answer.interrupt()
        again = [cursor.stamp, cursor.seen]
        try:
            with answer:
                for frames in frames_of(answer, naps=self._engine.is_local):
                    block = b"".join(self._lines(frames, again))
                    if block:
                        self._give(block)
        finally:
            with self._lock:
                self._answer = None

    def _lines(self, frames: list[tuple[int, bytes]], again: list[Any]) -> Iterator[bytes]:
        """Yield the lines of frames, but for those that were read before the stream broke off."""
        for stream, content in frames:
            stamp, piece = split_time(content)
            if again[1] and stamp == again[0]:
                again[1] -= 1
                continue
            self._cursor.advance(stamp)
            if self._window.until_stamp and stamp >= self._window.until_stamp:
                continue
            if stream in self._window.streams:
                yield self._joiner.add(stream, piece)

    def _give(self, block: bytes) -> None:
        data = self._window.select(block)
        if data:
            self._put(LogBlock(*self._key, data))

    def _put(self, item: LogBlock | BaseException | None) -> None:
        while True:
            try:
                self._blocks.put(item, timeout=0.5)
            except queue.Full:
                if self._stopped.is_set():
                    return
            else:
                return
