"""Waiting for what happens to a job's containers, and for the end of its watcher."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from shunter.backoff import Backoff
from shunter.docker.daemon_errors import EngineError, EngineUnavailableError
from shunter.docker.engine import DaemonAnswer, Engine
from shunter.schedulers.exec.container import labels
from shunter.schedulers.exec.container.watcher_door import connect_to_watcher

#: The daemon begins to report events a moment after it says so, so those of the last seconds are asked for
#: too.
OVERLAP_SECONDS = 5
#: How long to wait before a daemon that has gone away is asked again: at first, and at most.
FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
_EVENTS = ["create", "start", "die", "stop", "destroy", "pause", "unpause", "oom"]


class JobEvents:
    """Wakes threads when something happens to a job's containers; a thread listens to the daemon.

    A context manager.
    """

    def __init__(self, engine: Engine, app_id: str) -> None:
        self._engine = engine
        self._app_id = app_id
        self._condition = threading.Condition()
        self._count = 0
        self._closed = threading.Event()
        self._answer: DaemonAnswer | None = None
        self._thread = threading.Thread(target=self._listen, name=f"events-{app_id}", daemon=True)
        self._listening = threading.Event()
        self._watcher: socket.socket | None = None

    def __enter__(self) -> JobEvents:
        self._thread.start()
        self._listening.wait(LONGEST_DELAY)
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._closed.set()
            answer = self._answer
            watcher, self._watcher = self._watcher, None
        if answer is not None:
            answer.interrupt()
        if watcher is not None:
            try:
                watcher.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.wake()

    def attend_watcher(self) -> None:
        """Wake up also when the job's watcher ends, so that another can be started. May be called again."""
        with self._condition:
            if self._watcher is not None or self._closed.is_set():
                return
            self._watcher = connection = connect_to_watcher(self._app_id)
        if connection is not None:
            threading.Thread(target=self._await_end, args=(connection,), daemon=True).start()

    def _await_end(self, connection: socket.socket) -> None:
        try:
            connection.recv(1)
        except OSError:
            pass
        with self._condition:
            if self._watcher is connection:
                self._watcher = None
        connection.close()
        self.wake()

    def count(self) -> int:
        """Return the number of events so far. Read it before reading the job, and pass it to `wait`."""
        with self._condition:
            return self._count

    def wait(self, seen: int, timeout: float | None = None) -> None:
        """Block until there are more events than these, or some seconds have passed."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout)

    def wake(self) -> None:
        """Wake all waiting threads."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def _listen(self) -> None:
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY, jitter=0, stop=self._closed)
        while not self._closed.is_set():
            try:
                self._read_events()
                backoff.reset()
            except (EngineError, EngineUnavailableError):
                if self._closed.is_set():
                    return
            self._listening.set()
            self.wake()  # waiting threads query the daemon, and so find out that it has gone away
            if not self._closed.is_set():
                backoff.pause()

    def _read_events(self) -> None:
        label = [f"{labels.OLD_APP_ID}={self._app_id}"]
        filters = {"type": ["container"], "event": _EVENTS, "label": label}
        params = {"since": int(time.time()) - OVERLAP_SECONDS, "filters": filters}
        with self._engine.stream("GET", "/events", params=params) as answer:
            with self._condition:
                self._answer = answer
                if self._closed.is_set():
                    return
            self._listening.set()
            self.wake()
            for _ in answer.lines():
                self.wake()


def wait_until(engine: Engine, app_id: str, is_done: Callable[[], bool], timeout: float | None) -> None:
    """Block until ``is_done()``, which is asked after every event, or until some seconds have passed."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with JobEvents(engine, app_id) as events:
        while True:
            seen = events.count()
            if is_done():
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            events.attend_watcher()
            events.wait(seen, left)
