"""Calls to runners from a server: a scheduler that does not answer blocks neither the page nor the others.

Each scheduler has a separate lane. A call gets exclusive use of a runner, in a thread that does not keep the
server alive; the caller waits for a few seconds and then continues without the answer.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from shunter.errors import ShunterError, UnreachableError, described
from shunter.redaction import redact_text
from shunter.runner import Runner, get_runner
from shunter.runner.jobsearch import JobFilter
from shunter.runner.records import SETTLED_STATES
from shunter.specs.status import AppState

T = TypeVar("T")

#: The lane of calls that ask no scheduler.
HISTORY = ""
MOST_CALLS = 4
#: Seconds that a page waits for a scheduler, and for the history.
PATIENCE, HISTORY_PATIENCE = 4.0, 30.0
#: Seconds between two requests for the states of a scheduler's jobs; more where answers take long.
REFRESH_SECONDS, REST_SHARE = 2.0, 20

OPEN_STATES = frozenset(AppState.__members__) - frozenset(SETTLED_STATES) | {"UNREACHABLE"}


class NoAnswerError(UnreachableError):
    """A scheduler has not answered in time; its answer may still come."""


class Lane:
    """The calls to one scheduler, and the runners that wait for the next."""

    def __init__(self) -> None:
        self.idle: list[Runner] = []
        self.places = asyncio.Semaphore(MOST_CALLS)


class RunnerPool:
    """Calls functions with runners, each in a thread."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
        self._closing = asyncio.Event()

    def is_closing(self) -> bool:
        """Tell whether the server has been asked to end."""
        return self._closing.is_set()

    def end_streams(self) -> None:
        """End all streams."""
        self._closing.set()

    async def pause(self, seconds: float) -> None:
        """Wait, but not when the server has been asked to end."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    async def ask(self, lane: str, call: Callable[[Runner], T], seconds: float | None = None) -> T:
        """Call a function with a runner, and return its result.

        Args:
            lane: the scheduler that it asks, or `HISTORY`.
            call: the function.
            seconds: how long to wait for it.

        Raises:
            NoAnswerError: it has not returned in time. It goes on.
        """
        patience = (PATIENCE if lane else HISTORY_PATIENCE) if seconds is None else seconds
        here = self._lanes.setdefault(lane, Lane())
        try:
            async with asyncio.timeout(patience):
                await here.places.acquire()
                return await asyncio.shield(self._start(here, call))
        except TimeoutError:
            raise NoAnswerError(
                f"{lane or 'the history'} has not answered for {patience:.0f} seconds"
            ) from None

    def _start(self, lane: Lane, call: Callable[[Runner], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # nobody may wait any more

        def finish(runner: Runner | None, result: T | None, error: BaseException | None) -> None:
            lane.places.release()
            if runner is not None:
                lane.idle.append(runner)
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def work(runner: Runner | None) -> None:
            result, error = None, None
            try:
                runner = runner or get_runner()
                result = call(runner)
            except BaseException as problem:
                error = RuntimeError(str(problem)) if isinstance(problem, StopIteration) else problem
            try:
                loop.call_soon_threadsafe(finish, runner, result, error)
            except RuntimeError:  # the server has ended
                return

        runner = lane.idle.pop() if lane.idle else None
        threading.Thread(target=work, args=(runner,), daemon=True, name="ui-call").start()
        return future

    def close(self) -> None:
        """Close the runners that nobody uses."""
        for lane in self._lanes.values():
            while lane.idle:
                lane.idle.pop().close()


class Freshness:
    """Brings the recorded states of open jobs up to date, scheduler by scheduler.

    Attributes:
        problems: by scheduler, why its jobs cannot be seen now.
    """

    def __init__(self, pool: RunnerPool) -> None:
        self._pool = pool
        self.problems: dict[str, str] = {}
        self._next: dict[str, float] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def refresh(self, schedulers: Iterable[str], patience: float) -> None:
        """Ask schedulers for the states of their open jobs; return when they have answered, or earlier."""
        now = time.monotonic()
        for name in schedulers:
            if name not in self._running and now >= self._next.get(name, now):
                task = asyncio.create_task(self._ask(name))
                self._running[name] = task
                task.add_done_callback(functools.partial(self._finished, name, now))
        if self._running:
            await asyncio.wait(self._running.values(), timeout=patience)

    def _finished(self, name: str, begin: float, task: asyncio.Task[None]) -> None:
        self._running.pop(name, None)
        now = time.monotonic()
        self._next[name] = now + max(REFRESH_SECONDS, REST_SHARE * (now - begin))

    async def _ask(self, name: str) -> None:
        wanted = JobFilter(states=set(OPEN_STATES), scheduler=name)
        try:
            records, _ = await self._pool.ask(name, lambda runner: runner.search(wanted))
        except NoAnswerError as error:
            self.problems[name] = error.message
            return
        except (ShunterError, OSError, ImportError) as error:
            self.problems[name] = redact_text(described(error))
            return
        reasons = [record.msg for record in records if record.state is AppState.UNREACHABLE]
        if reasons:
            self.problems[name] = reasons[0]
        else:
            self.problems.pop(name, None)
