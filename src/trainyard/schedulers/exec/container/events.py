"""Being told when something happens to containers, instead of asking again and again."""

from __future__ import annotations

import socket
import threading
import time

from trainyard.backoff import Backoff
from trainyard.docker.engine import EngineError, EngineUnavailableError
from trainyard.schedulers.exec.container import labels
from trainyard.schedulers.exec.container.spawn import attend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainyard.docker.engine import DaemonAnswer, Engine

#: The daemon starts to listen for us a moment after it says so; events of the last seconds are asked for too.
OVERLAP_SECONDS = 5
#: How long to wait before a daemon that has gone is looked for again: at first, and at most.
FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
_OF_INTEREST = ["create", "start", "die", "stop", "destroy", "pause", "unpause", "oom"]


class Events:
    """A thread that listens, and wakes whoever waits. A context manager.

    Args:
        engine: the daemon.
        app_id: only this job's containers count.
    """

    def __init__(self, engine: Engine, app_id: str) -> None:
        self._engine = engine
        self._app_id = app_id
        self._condition = threading.Condition()
        self._count = 0
        self._closed = threading.Event()
        self._stream: DaemonAnswer | None = None
        self._thread = threading.Thread(target=self._listen, name=f"events-{app_id}", daemon=True)
        self._listening = threading.Event()
        self._attended: socket.socket | None = None

    def __enter__(self) -> Events:
        self._thread.start()
        self._listening.wait(LONGEST_DELAY)
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._closed.set()
            stream = self._stream
        if stream is not None:
            stream.interrupt()
        self._leave_watcher()
        self.wake()

    def attend_watcher(self) -> None:
        """Be woken too when the job's watcher ends, so that another can be started. May be called again."""
        with self._condition:
            if self._attended is not None or self._closed.is_set():
                return
            self._attended = visitor = attend(self._app_id)
        if visitor is not None:
            threading.Thread(target=self._await_end, args=(visitor,), daemon=True).start()

    def _await_end(self, visitor: socket.socket) -> None:
        try:
            visitor.recv(1)
        except OSError:
            pass
        with self._condition:
            if self._attended is visitor:
                self._attended = None
        visitor.close()
        self.wake()

    def _leave_watcher(self) -> None:
        with self._condition:
            visitor, self._attended = self._attended, None
        if visitor is not None:
            try:
                visitor.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def count(self) -> int:
        """Return how many events there have been: to be read before looking, and given to `wait`."""
        with self._condition:
            return self._count

    def wait(self, seen: int, timeout: float | None = None) -> None:
        """Block until there are more events than these, or some seconds have passed."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout)

    def wake(self) -> None:
        """Wake all that wait."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def _listen(self) -> None:
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY, jitter=0, stop=self._closed)
        while not self._closed.is_set():
            try:
                self._follow()
                backoff.reset()
            except (EngineError, EngineUnavailableError):
                if self._closed.is_set():
                    return
            self._listening.set()
            self.wake()  # whoever waits finds out by asking that the daemon has gone
            if not self._closed.is_set():
                backoff.pause()

    def _follow(self) -> None:
        filters = {
            "type": ["container"],
            "event": _OF_INTEREST,
            "label": [f"{labels.OLD_APP_ID}={self._app_id}"],
        }
        params = {"since": int(time.time()) - OVERLAP_SECONDS, "filters": filters}
        with self._engine.stream("GET", "/events", params=params) as stream:
            with self._condition:
                self._stream = stream
                if self._closed.is_set():
                    return
            self._listening.set()
            self.wake()
            for _ in stream.lines():
                self.wake()


def wait_until(engine: Engine, app_id: str, look: Callable[[], bool], timeout: float | None) -> None:
    """Block until ``look()`` is true, looking after every event, or until some seconds have passed."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with Events(engine, app_id) as events:
        while True:
            seen = events.count()
            if look():
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            events.attend_watcher()
            events.wait(seen, left)
