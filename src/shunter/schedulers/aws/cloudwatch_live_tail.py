"""CloudWatch's Live Tail as a notification of which streams have grown; polling reads them.

Live Tail is not exact. It samples above 500 events a second, drops events that are not fetched fast enough,
shows none from before the session, and ends after three hours. So no line is taken from it: it only triggers
a read, and lets silent streams be polled less often. Whenever a session begins or ends every stream is read,
so lines are neither lost nor doubled, whatever Live Tail does.
"""

from __future__ import annotations

import threading
from typing import Any

from shunter.backoff import Clock
from shunter.schedulers.aws.aws_errors import error_code, failure_kind
from shunter.schedulers.aws.cloudwatch_calls import LogCalls

#: How many streams a session can watch.
MOST_STREAMS = 100
#: How old a session has to be before one with other streams replaces it, in seconds.
LEAST_SESSION = 30.0
#: Live Tail is given up after this many failures in a row.
FAILURES = 3


class LiveTail:
    """Watches streams of a log group in a thread.

    Attributes:
        changed: set when `grown_streams` has news.
        is_up: whether a session watches the streams.
    """

    def __init__(self, calls: LogCalls, clock: Clock) -> None:
        self.changed = threading.Event()
        self.is_up = False
        self._calls = calls
        self._clock = clock
        self._lock = threading.Lock()
        self._news: set[str] | None = set()
        self._names: frozenset[str] = frozenset()
        self._session = 0
        self._began = 0.0
        self._is_off = False

    def watch(self, names: set[str]) -> None:
        """Watch these existing streams from now on. Does nothing if Live Tail is unavailable."""
        if self._is_off or not names or names <= self._names or len(names) > MOST_STREAMS:
            return
        now = self._clock.monotonic()
        if self._session and now - self._began < LEAST_SESSION:
            return
        self._began = now
        with self._lock:
            self._names = frozenset(names)
            self._session += 1
            self.is_up = False
        threading.Thread(
            target=self._run, args=(self._session, sorted(names)), name="live-tail", daemon=True
        ).start()

    def watches(self, name: str) -> bool:
        """Tell whether a session watches this stream."""
        return self.is_up and name in self._names

    def grown_streams(self) -> set[str] | None:
        """Return which streams have grown since the last call; None for any of them."""
        with self._lock:
            self.changed.clear()
            news, self._news = self._news, set()
            return news

    def close(self) -> None:
        """End the session. Its thread ends with the next message, which AWS sends every second."""
        self._session += 1
        self._is_off = True

    def _run(self, session: int, names: list[str]) -> None:
        backoff = self._calls.backoff()
        while session == self._session and not self._is_off:
            try:
                if self._listen(session, names):
                    backoff.reset()
            except Exception as error:
                if error_code(error) == "SessionTimeoutException":
                    continue
                if failure_kind(error) not in ("transient", "throttled") or backoff.failures + 1 >= FAILURES:
                    self._is_off = session == self._session or self._is_off
                    return
            if session == self._session:
                backoff.pause()

    def _listen(self, session: int, names: list[str]) -> bool:
        """Hold a session until it ends; returns whether it had begun."""
        arn = self._calls.group_arn()
        answer = self._calls.client.start_live_tail(logGroupIdentifiers=[arn], logStreamNames=names)
        stream: Any = answer["responseStream"]
        try:
            for message in stream:
                if session != self._session:
                    break
                if "sessionStart" in message:
                    self._notify(session, None, is_up=True)
                elif grown := {event["logStreamName"] for event in _results(message)}:
                    self._notify(session, grown, is_up=True)
        finally:
            stream.close()
            was_up = self.is_up
            self._notify(session, None, is_up=False)
        return was_up

    def _notify(self, session: int, grown: set[str] | None, *, is_up: bool) -> None:
        with self._lock:
            if session != self._session:
                return
            self.is_up = is_up
            self._news = None if grown is None or self._news is None else self._news | grown
            self.changed.set()


def _results(message: dict[str, Any]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = message.get("sessionUpdate", {}).get("sessionResults", [])
    return results
