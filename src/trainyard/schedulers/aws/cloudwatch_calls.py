"""The calls to CloudWatch Logs that reading takes, each repeated until it is answered."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from trainyard.backoff import Backoff, Clock
from trainyard.errors import BackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: For so many seconds a service that answered before may fail in a row, and one that never has.
PATIENCE = 600.0
FIRST_PATIENCE = 30.0
#: The first delay after a call that failed, and the longest, in seconds.
FIRST_DELAY, LONGEST_DELAY = 0.5, 20.0
#: Clocks that differ by less (s) are taken to agree.
LEAST_OFFSET = 3.0
#: A list of streams whose pages repeat is given up after so many.
MOST_REPEATS = 5

_THROTTLED = {
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_PASSING = {"InternalFailure", "InternalServerError", "ServiceUnavailable", "ServiceUnavailableException"}


class LogEvent(namedtuple("LogEvent", "time message")):
    """A log event: when it was written, in milliseconds since the epoch, and its text."""

    __slots__ = ()
    time: int
    message: str


class Page(namedtuple("Page", "events ingested forward backward")):
    """Events in order of time, when the newest of them came in (ms; 0 if none), and the tokens."""

    __slots__ = ()
    events: list[LogEvent]
    ingested: int
    forward: str
    backward: str


class MissingStreamError(Exception):
    """There is no such stream, or not yet."""


class MissingGroupError(Exception):
    """There is no such log group, or not yet."""


class StaleTokenError(Exception):
    """The token of a page is no longer known: they live for 24 hours."""


class BrokenAnswerError(Exception):
    """The answer does not hold what it must: its end was lost on the way."""


def verdict(error: BaseException) -> str:
    """Say what an error of botocore, or one raised from it, means: throttled, expired, passing or final."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
    from botocore.exceptions import ConnectionError as NoConnectionError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    # The last three come through botocore as they are when a stream of events breaks off.
    broken = (BrokenAnswerError, ResponseParserError, HTTPError, ConnectionError, TimeoutError)
    cause: BaseException | None = error
    known = (BotoCoreError, ClientError, *broken)
    while cause is not None and not isinstance(cause, known):
        cause = cause.__cause__
    if isinstance(cause, ClientError):
        code = error_code(cause)
        status = cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _THROTTLED or status == 429:
            return "throttled"
        if code in _EXPIRED:
            return "expired"
        return "passing" if code in _PASSING or status >= 500 else "final"
    return "passing" if isinstance(cause, (HTTPClientError, NoConnectionError, *broken)) else "final"


def error_code(error: BaseException) -> str:
    """Return the code of an error that the service answered with; empty for other errors."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def untranslated(error: Exception, operation: str) -> Exception:
    """Make an error of ours; used where nobody knows better."""
    return BackendError(f"CloudWatch Logs did not carry out {operation}: {error}")


class LogCalls:
    """Calls CloudWatch Logs for one log group. May be used by several threads.

    Args:
        client: boto3's client of the service ``logs``.
        group: name of the log group.
        pace: bounds the calls.
        clock: the time.
        renew: makes another client when the credentials of this one have expired; None if that cannot help.
        translate: makes an error of ours from one of botocore and the operation's name.
    """

    def __init__(
        self,
        client: Any,
        group: str,
        pace: RateLimit,
        clock: Clock,
        renew: Callable[[], Any] | None = None,
        translate: Callable[[Exception, str], Exception] = untranslated,
    ) -> None:
        self.client = client
        self.group = group
        self.stop = threading.Event()
        self._pace = pace
        self._clock = clock
        self._renew = renew
        self._translate = translate
        self._was_answered = False
        self._may_describe = True
        self._offset = 0.0

    def now(self) -> float:
        """Return the time since the epoch as AWS has it, in seconds: this machine's clock may be wrong."""
        return self._clock.time() + self._offset

    def monotonic(self) -> float:
        """Return a time in seconds that never goes back."""
        return self._clock.monotonic()

    def refusal(self, error: Exception) -> Exception:
        """Return the error of ours for one that reading a page raised."""
        return self._translate(
            error.__cause__ if isinstance(error.__cause__, Exception) else error, "GetLogEvents"
        )

    def no_group(self) -> BackendError:
        """Return the error that the log group is not there."""
        return BackendError(
            f"the log group {self.group} does not exist",
            hint="Is it the right group and region? Somebody may have deleted it.",
        )

    def page(
        self,
        stream: str,
        *,
        start: int,
        end: int | None,
        limit: int,
        token: str = "",
        forward: bool = True,
    ) -> Page:
        """Read one page of a stream.

        Args:
            stream: its name.
            start, end: only events from ``start`` on and before ``end``, in milliseconds; no end if None.
            limit: at most so many events.
            token: where to go on.
            forward: whether the oldest events come first; in any case a page is in order of time.

        Raises:
            MissingStreamError, MissingGroupError, StaleTokenError: the page cannot be had.
        """
        params: dict[str, Any] = {
            "logGroupName": self.group,
            "logStreamName": stream,
            "limit": limit,
            "startFromHead": forward,
        }
        if start:
            params["startTime"] = start
        if end is not None:
            params["endTime"] = end
        if token:
            params["nextToken"] = token
            params["startFromHead"] = True
        found = self.call("get_log_events", ("events", "nextForwardToken", "nextBackwardToken"), params)
        # Servers other than AWS give times as fractions.
        events = [LogEvent(int(event["timestamp"]), event["message"]) for event in found["events"]]
        ingested = max((int(event.get("ingestionTime", 0)) for event in found["events"]), default=0)
        return Page(events, ingested, found["nextForwardToken"], found["nextBackwardToken"])

    def last_ingestion(self, stream: str) -> int:
        """Return when the stream last took in events as far as AWS tells (ms); 0 if it does not.

        This only helps to wait for the end of a log, so that it cannot be had (a permission of its own is
        needed) is no error.
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
        times = [
            int(s.get("lastIngestionTime", 0)) for s in answer["logStreams"] if s["logStreamName"] == stream
        ]
        return max(times, default=0)

    def stream_names(self, prefix: str) -> list[str]:
        """Return the names of all streams that begin with this."""
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

    def group_arn(self) -> str:
        """Return the log group's ARN, without the asterisk at its end; empty if there is no such group."""
        params = {"logGroupNamePrefix": self.group, "limit": 1}
        for found in self.call("describe_log_groups", ("logGroups",), params)["logGroups"]:
            if found["logGroupName"] == self.group:
                return str(found.get("logGroupArn") or found["arn"]).removesuffix(":*")
        return ""

    def call(
        self, method: str, members: tuple[str, ...], params: dict[str, Any], patience: float = PATIENCE
    ) -> dict[str, Any]:
        """Call until there is an answer that has these members.

        Args:
            method: the client's method.
            members: what an answer must have to be one.
            params: the request.
            patience: for so many seconds calls may fail.
        """
        backoff = self.backoff(patience)
        while True:
            self._pace.take(self.stop)
            client = self.client
            try:
                answer: dict[str, Any] = getattr(client, method)(**params)
                # botocore makes an empty answer of one whose end is missing.
                if any(member not in answer for member in members):
                    raise BrokenAnswerError(f"{method}: an answer without {' or '.join(members)}")
            except Exception as error:
                self._wait_or_raise(error, method, client, backoff)
            else:
                self._was_answered = True
                self._read_clock(answer)
                self._pace.succeeded()
                return answer

    def _read_clock(self, answer: dict[str, Any]) -> None:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date:
            offset = parsedate_to_datetime(date).timestamp() - self._clock.time()
            # The header has whole seconds, and the answer took its time.
            self._offset = offset if abs(offset) > LEAST_OFFSET else 0.0

    def backoff(self, patience: float | None = None) -> Backoff:
        """Return the delays after failures, for so many seconds from now on."""
        clock = self._clock
        return Backoff(FIRST_DELAY, LONGEST_DELAY, limit=patience, stop=self.stop, clock=clock).start()

    def _wait_or_raise(self, error: Exception, method: str, client: Any, backoff: Backoff) -> None:
        """Wait before the next attempt, or raise what ends the attempts."""
        code, text = error_code(error), str(error)
        if code == "ResourceNotFoundException":
            raise (MissingGroupError if "group" in text else MissingStreamError)(text) from error
        if code == "InvalidParameterException" and "token" in text.lower():
            raise StaleTokenError(text) from error
        found = verdict(error)
        if found == "expired" and self._renew is not None and backoff.failures < 2:
            backoff.failures += 1
            if self.client is client:
                self.client = self._renew()
            return
        if found == "throttled":
            self._was_answered = True
            self._pace.throttled()
        if not self._was_answered:
            backoff.limit = min(backoff.limit or 0.0, FIRST_PATIENCE)
        if found in ("final", "expired") or not backoff.pause():
            raise self._translate(error, _operation(method)) from error
        if self.stop.is_set():
            raise ReadingStoppedError


def _operation(method: str) -> str:
    return "".join(word.capitalize() for word in method.split("_"))


#: However often AWS says that it is too much, calls are not made more rarely than so many a second.
LEAST_RATE = 1.0
#: What a throttled call and an answered one do to the rate.
SLOWER, FASTER = 0.8, 1.15


class ReadingStoppedError(Exception):
    """Waiting was given up because nobody wants the result any more."""


class RateLimit:
    """Bounds the calls per second of everybody who shares it, and adapts to throttling.

    The bound falls with every call that AWS throttles, and rises with every one that it answers, by so much
    that it falls only while about two of five calls or more are throttled. Below that the calls of others
    are likely the reason, which a slower pace of ours would not change.

    Args:
        rate: calls per second.
        burst: so many calls may follow each other at once after a pause.
        clock: the time.
    """

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._most = rate
        self.rate = rate
        self._burst = burst
        self._clock = clock
        self._next = clock.monotonic() - burst / rate
        self._lock = threading.Lock()

    def take(self, stop: threading.Event) -> None:
        """Wait for one's turn.

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
        """Take note that AWS had too many calls."""
        with self._lock:
            self.rate = max(LEAST_RATE, self.rate * SLOWER)

    def succeeded(self) -> None:
        """Take note of a call that was answered."""
        if self.rate < self._most:
            with self._lock:
                self.rate = min(self._most, self.rate * FASTER)
