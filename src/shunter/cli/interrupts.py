"""Ctrl-C and SIGTERM: which message and exit code a command ends with, and what happens to the job."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from shunter.errors import EXIT_INTERRUPTED

#: How long to wait for the request that stops a job, in seconds, before the command ends.
LONGEST_REQUEST = 10.0


class Interrupted(KeyboardInterrupt):
    """The user has interrupted a command, whose last words are ``message``."""

    def __init__(self, message: str = "interrupted", exit_code: int = EXIT_INTERRUPTED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


@contextlib.contextmanager
def interrupt_message(message: str) -> Iterator[None]:
    """Make a command end with this message when the user presses Ctrl-C in the block."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"\n{message}") from None  # the terminal shows ^C on the line before


class Detached(Interrupted):
    """A signal ended the watching. The job keeps running, unless it was asked to stop."""

    def __init__(self, signum: int, *, asked_to_stop: bool = False) -> None:
        super().__init__(exit_code=128 + signum)
        self.asked_to_stop = asked_to_stop


class Interrupts:
    """Handles Ctrl-C and SIGTERM while a job is watched. A context manager.

    With ``stop`` the first Ctrl-C calls it, in a thread, and a second one ends the watching. Otherwise the
    first Ctrl-C ends the watching; SIGTERM always does.

    Attributes:
        stopping: whether the job has been asked to stop.
    """

    def __init__(self, stop: Callable[[], None] | None) -> None:
        self._stop = stop
        self._previous: list[tuple[int, Any]] = []
        self._request: threading.Thread | None = None
        self.stopping = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            handlers = {signal.SIGINT: self._interrupted, signal.SIGTERM: self._terminated}
            self._previous = [(number, signal.signal(number, handlers[number])) for number in handlers]
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)
        if self._request is not None:
            # a quick second Ctrl-C must not abort the request; a third one does
            self._request.join(LONGEST_REQUEST)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._stop is None or self.stopping:
            raise Detached(number, asked_to_stop=self.stopping)
        if self._request is not None:
            return  # another call of this handler is starting the request
        self._request = threading.Thread(target=self._stop, name="cancel", daemon=True)
        self._request.start()
        # from now on another Ctrl-C ends the watching
        self.stopping = True
        with contextlib.suppress(OSError):
            # os.write: the handler may have interrupted a write to stderr
            os.write(2, b"\nstopping the job; press Ctrl-C again to stop watching\n")

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        raise Detached(number, asked_to_stop=self.stopping)
