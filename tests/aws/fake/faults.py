"""Faults on demand: what a request to the fake gets instead of its answer, or what is done to the answer."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.aws.fake.wire import ACCOUNT, ApiError

#: Kinds that end a request with an error of the service.
ERRORS: dict[str, dict[str, tuple[str, str, int]]] = {
    "throttle": {
        "batch": ("TooManyRequestsException", "Too Many Requests", 429),
        "": ("ThrottlingException", "Rate exceeded", 400),
    },
    "server_error": {
        "batch": ("ServerException", "Internal server error", 500),
        "logs": ("ServiceUnavailableException", "The service cannot complete the request.", 503),
        "": ("InternalFailure", "Internal failure", 500),
    },
    "expired_token": {
        "": ("ExpiredTokenException", "The security token included in the request is expired", 403),
    },
    "bad_key": {
        "": ("UnrecognizedClientException", "The security token included in the request is invalid.", 403),
    },
    "invalid_page_token": {
        "": ("InvalidParameterException", "The specified nextToken is invalid.", 400),
    },
}
#: Kinds that break the connection: before the request is carried out, after it, or within the answer.
BREAKS = ("drop", "lose_answer", "truncate")
#: Kinds that give an answer which is old, or holds nothing though there is more.
PAGES = ("repeat", "empty_page")
KINDS = (*ERRORS, "denied", *BREAKS, *PAGES)


@dataclass
class Fault:
    """What goes wrong with some requests.

    Args:
        operation: only with this one, as ``GetLogEvents``; empty for all.
        kind: one of `KINDS`.
        times: how many requests; None for all.
        skip: requests that are answered before the fault.
        when: only with requests whose parameters satisfy this.
    """

    operation: str
    kind: str
    times: int | None = 1
    skip: int = 0
    when: Callable[[dict[str, Any]], bool] = field(default=lambda params: True)


class Faults:
    """The faults that wait to happen."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._random: tuple[random.Random, float, tuple[str, ...], tuple[str, ...]] | None = None
        self.happened: list[tuple[str, str]] = []

    def add(self, operation: str, kind: str, times: int | None = 1, skip: int = 0, **more: Any) -> Fault:
        """Arrange for a fault; see `Fault`."""
        assert kind in KINDS, kind
        fault = Fault(operation, kind, times, skip, **more)
        with self._lock:
            self._faults.append(fault)
        return fault

    def at_random(
        self, seed: int, share: float, kinds: tuple[str, ...], operations: tuple[str, ...] = ()
    ) -> None:
        """Let a share of all requests (of these operations) go wrong."""
        self._random = (random.Random(seed), share, kinds, operations)

    def clear(self) -> None:
        """Let nothing go wrong any more."""
        with self._lock:
            self._faults.clear()
            self._random = None

    def next(self, operation: str, params: dict[str, Any]) -> str:
        """Return the kind of the fault that this request meets; empty if none."""
        with self._lock:
            kind = self._choose(operation, params)
            if kind:
                self.happened.append((operation, kind))
            return kind

    def _choose(self, operation: str, params: dict[str, Any]) -> str:
        for fault in self._faults:
            if fault.operation not in ("", operation) or not fault.when(params):
                continue
            if fault.skip:
                fault.skip -= 1
            elif fault.times is None or fault.times > 0:
                fault.times = None if fault.times is None else fault.times - 1
                return fault.kind
        if self._random is not None:
            source, share, kinds, operations = self._random
            if (not operations or operation in operations) and source.random() < share:
                return source.choice(kinds)
        return ""


def error_of(kind: str, service: str, operation: str, user: str) -> ApiError | None:
    """Return the error that a kind of fault stands for, as this service words it."""
    if kind == "denied":
        prefix = {"logs": "logs", "batch": "batch"}.get(service, service)
        resource = f"arn:aws:{prefix}:*:{ACCOUNT}:*"
        return ApiError(
            "AccessDeniedException" if service != "iam" else "AccessDenied",
            f"User: {user} is not authorized to perform: {prefix}:{operation} on resource: {resource} "
            "because no identity-based policy allows the action",
            403 if service != "logs" else 400,
        )
    if kind not in ERRORS:
        return None
    worded = ERRORS[kind]
    return ApiError(*worded.get(service, worded[""]))
