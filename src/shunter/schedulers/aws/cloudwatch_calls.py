"""The calls to CloudWatch Logs that reading takes, each repeated until it is answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from shunter.backoff import Backoff, Clock
from shunter.errors import BackendError
from shunter.schedulers.aws.aws_errors import error_code, failure_kind

#: How long calls may fail in a row (s), of a service that has answered before, and of one that has not.
PATIENCE = 600.0
FIRST_PATIENCE = 30.0
#: The first delay after a call that failed, and the longest, in seconds.
FIRST_DELAY, LONGEST_DELAY = 0.5, 20.0
#: Differences between clocks below this (s) are ignored.
LEAST_OFFSET = 3.0
#: A list of streams ends if its pages repeat more often than this.
MOST_REPEATS = 5
#: Throttling never lowers the rate below this many calls per second.
LEAST_RATE = 1.0
#: Factors by which a throttled call and an answered call change the rate.
SLOWER, FASTER = 0.8, 1.15


class CloudWatchEvent(NamedTuple):
    """A log event: when it was written, in milliseconds since the epoch, and its text."""

    time: int
    message: str


class Page(NamedTuple):
    """Events in order of time, the newest ingestion time (ms; 0 without events), and the tokens."""

    events: list[CloudWatchEvent]
    ingested: int
    forward: str
    backward: str


class MissingStreamError(Exception):
    """The log stream does not exist, or not yet."""


class MissingGroupError(Exception):
    """The log group does not exist, or not yet."""


class StaleTokenError(Exception):
    """The token of a page is no longer known: tokens live for 24 hours."""


class IncompleteAnswerError(ConnectionError):
    """The answer lacks a member that every answer has: its end was lost."""


class ReadingStoppedError(Exception):
    """The reader was closed while a call waited."""


class RateLimit:
    """Bounds the calls per second of all that share it, and adapts to throttling.

    Throttled calls lower the bound and answered calls raise it, such that it falls only while about two of
    five calls or more are throttled. Below that, calls of others are the likely cause, which a lower rate of
    ours would not change.

    Args:
        rate: calls per second.
        burst: how many calls may follow each other at once after a pause.
        clock: the time.
    """

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._most = rate
        self.rate = rate
        self._burst = burst
        self._clock = clock
        self._next = clock.monotonic() - burst / rate
        self._lock = threading.Lock()

    def wait_for_turn(self, stop: threading.Event) -> None:
        """Wait until the next call may be made.

        Raises:
            ReadingStoppedError: ``stop`` was set meanwhile.
        """
        with self._lock:
            now = self._clock.monotonic()
            turn = max(self._next, now - (self._burst - 1) / self.rate)
            self._next = turn + 1 / self.rate
        if stop.is_set() or (turn > now and self._clock.wait(stop, turn - now)):
            raise ReadingStoppedError

    def throttled(self) -> None:
        """Lower the rate after a throttled call."""
        with self._lock:
            self.rate = max(LEAST_RATE, self.rate * SLOWER)

    def succeeded(self) -> None:
        """Raise the rate after an answered call."""
        if self.rate < self._most:
            with self._lock:
                self.rate = min(self._most, self.rate * FASTER)


def default_translation(error: Exception, operation: str) -> Exception:
    """Return our error for one of botocore, without knowing the session."""
    return BackendError(f"CloudWatch Logs did not carry out {operation}: {error}")


class LogCalls:
    """Calls CloudWatch Logs for one log group. May be used by several threads.

    Args:
        client: boto3's client of the service ``logs``.
        group: name of the log group.
        rate_limit: bounds the calls.
        clock: the time.
        renew: makes another client when the credentials have expired; None if that cannot help.
        translate: returns our error for one of botocore and the operation's name.
    """

    def __init__(
        self,
        client: Any,
        group: str,
        rate_limit: RateLimit,
        clock: Clock,
        renew: Callable[[], Any] | None = None,
        translate: Callable[[Exception, str], Exception] = default_translation,
    ) -> None:
        self.client = client
        self.group = group
        self.clock = clock
        self.stop = threading.Event()
        self._rate_limit = rate_limit
        self._renew = renew
        self._translate = translate
        self._was_answered = False
        self._may_describe = True
        self._offset = 0.0

    def now(self) -> float:
        """Return AWS's time since the epoch, in seconds: this machine's clock may be wrong."""
        return self.clock.time() + self._offset

    def refusal(self, error: Exception) -> Exception:
        """Return our error for one that reading a page raised."""
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        return self._translate(cause, "GetLogEvents")

    def missing_group(self) -> BackendError:
        """Return the error that the log group does not exist."""
        return BackendError(
            f"the log group {self.group} does not exist",
            hint="Is it the right group and region? Somebody may have deleted it.",
        )

    def page(
        self, stream: str, *, start: int, end: int | None, limit: int, token: str = "", forward: bool = True
    ) -> Page:
        """Read one page of a stream, in order of time.

        Args:
            stream: its name.
            start, end: only events from ``start`` on and before ``end``, in milliseconds; no end if None.
            limit: the most events.
            token: where to go on.
            forward: whether to begin with the oldest events.

        Raises:
            MissingStreamError, MissingGroupError, StaleTokenError: the page cannot be read.
        """
        params: dict[str, Any] = {"logGroupName": self.group, "logStreamName": stream, "limit": limit}
        params["startFromHead"] = forward or bool(token)
        if start:
            params["startTime"] = start
        if end is not None:
            params["endTime"] = end
        if token:
            params["nextToken"] = token
        found = self.call("get_log_events", ("events", "nextForwardToken", "nextBackwardToken"), params)
        # Servers other than AWS give times as fractions.
        events = [CloudWatchEvent(int(event["timestamp"]), event["message"]) for event in found["events"]]
        ingested = max((int(event.get("ingestionTime", 0)) for event in found["events"]), default=0)
        return Page(events, ingested, found["nextForwardToken"], found["nextBackwardToken"])

    def last_ingestion(self, stream: str) -> int:
        """Return when the stream last received events (ms); 0 if AWS does not tell.

        It only helps to wait for the end of a log, so a failure (it needs another permission) is ignored.
        """
        if not self._may_describe:
            return 0
        params = {"logGroupName": self.group, "logStreamNamePrefix": stream, "limit": 1}
        try:
            answer = self.call("describe_log_streams", ("logStreams",), params, patience=FIRST_PATIENCE)
        except ReadingStoppedError:
            raise
        except Exception:
            self._may_describe = False
            return 0
        found = [each for each in answer["logStreams"] if each["logStreamName"] == stream]
        return max((int(each.get("lastIngestionTime", 0)) for each in found), default=0)

    def stream_names(self, prefix: str) -> list[str]:
        """Return the names of all streams with this prefix."""
        names: dict[str, None] = {}
        params: dict[str, Any] = {"logGroupName": self.group, "logStreamNamePrefix": prefix}
        tokens: set[str] = set()
        repeats = 0
        while True:
            answer = self.call("describe_log_streams", ("logStreams",), params)
            names |= dict.fromkeys(found["logStreamName"] for found in answer["logStreams"])
            token = answer.get("nextToken")
            repeats = repeats + 1 if token in tokens else 0
            if not token or repeats > MOST_REPEATS:
                return list(names)
            tokens.add(token)
            params["nextToken"] = token

    def call(
        self, method: str, members: tuple[str, ...], params: dict[str, Any], patience: float = PATIENCE
    ) -> dict[str, Any]:
        """Call until an answer has these members; calls may fail for ``patience`` seconds."""
        backoff = self.backoff(patience)
        while True:
            self._rate_limit.wait_for_turn(self.stop)
            client = self.client
            try:
                answer: dict[str, Any] = getattr(client, method)(**params)
                # botocore makes an empty answer of one whose end is missing.
                if any(member not in answer for member in members):
                    raise IncompleteAnswerError(f"{method}: an answer without {' or '.join(members)}")
            except Exception as error:
                self._wait_or_raise(error, method, client, backoff)
            else:
                self._was_answered = True
                self._read_clock(answer)
                self._rate_limit.succeeded()
                return answer

    def backoff(self, patience: float | None = None) -> Backoff:
        """Return the delays after failures, for ``patience`` seconds from now on."""
        return Backoff(FIRST_DELAY, LONGEST_DELAY, limit=patience, stop=self.stop, clock=self.clock).start()

    def _read_clock(self, answer: dict[str, Any]) -> None:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date:
            offset = parsedate_to_datetime(date).timestamp() - self.clock.time()
            # The header has whole seconds, and the answer took time.
            self._offset = offset if abs(offset) > LEAST_OFFSET else 0.0

    def _wait_or_raise(self, error: Exception, method: str, client: Any, backoff: Backoff) -> None:
        """Wait before the next attempt, or raise what ends the attempts."""
        code, text = error_code(error), str(error)
        if code == "ResourceNotFoundException":
            raise (MissingGroupError if "group" in text else MissingStreamError)(text) from error
        if code == "InvalidParameterException" and "token" in text.lower():
            raise StaleTokenError(text) from error
        kind = failure_kind(error)
        if kind == "expired" and self._renew is not None and backoff.failures < 2:
            backoff.failures += 1
            if self.client is client:
                self.client = self._renew()
            return
        if kind == "throttled":
            self._was_answered = True
            self._rate_limit.throttled()
        if not self._was_answered:
            backoff.limit = min(backoff.limit or 0.0, FIRST_PATIENCE)
        if kind in ("final", "expired") or not backoff.pause():
            raise self._translate(error, "".join(map(str.capitalize, method.split("_")))) from error
        if self.stop.is_set():
            raise ReadingStoppedError
