"""The end of a log as it grows, as server-sent events. A reader that is too far behind skips lines.

Where a scheduler has ranges, each look reads what is new and keeps a position, nothing else. Where it has
none, a thread follows the log with a runner of its own, and waits while its reader is slow.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import threading

import htpy as h

from trainyard.errors import TrainyardError, UnreachableError, described
from trainyard.redaction import redact_text
from trainyard.runner import get_runner
from trainyard.schedulers.responses import LogBlock, LogQuery, LogRange, Stream
from trainyard.ui.html_parts import size
from trainyard.ui.job_page import chunk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from trainyard.runner import Runner
    from trainyard.schedulers.responses import LogPart
    from trainyard.ui.job_page import LogView
    from trainyard.ui.runner_pool import RunnerPool

CHUNK = 64 << 10
#: A reader that is more bytes behind continues at the end.
MOST_BEHIND = 512 << 10
READ_SECONDS, ASK_SECONDS, RETRY_SECONDS = 0.3, 2.0, 3.0
#: After this many reads without news, a comment shows whether the browser is still connected.
QUIET_READS = 40
MOST_FOLLOWERS, QUEUED_BLOCKS, LAST_LINES = 32, 64, 1000
_ENDED = b"event: ended\ndata: the job has ended\n\n"

_followers = threading.BoundedSemaphore(MOST_FOLLOWERS)


async def tail_of(pool: RunnerPool, lane: str, view: LogView, start: str) -> AsyncIterator[bytes]:
    """Yield events: the lines behind a position, and finally that the job has ended."""
    yield b": following\n\n"
    read = functools.partial(_read_part, view=view, start=start, count=1)
    try:
        first = await _answer(pool, lane, read)
    except (TrainyardError, OSError, ValueError, NotImplementedError) as error:
        yield _event(_note(f"The log cannot be followed: {redact_text(described(error))}"), "")
        yield _ENDED
        return
    stream = _by_ranges(pool, lane, view, start) if first is not None else _by_thread(pool, view, start)
    async for event in stream:
        yield event


async def _answer(pool: RunnerPool, lane: str, read: Callable[[Runner], LogPart | None]) -> LogPart | None:
    """Read, and try again until the scheduler answers."""
    while True:
        try:
            return await pool.ask(lane, read)
        except UnreachableError:
            await pool.pause(RETRY_SECONDS)
            if pool.is_closing():
                raise


def _read_part(
    runner: Runner, view: LogView, start: str, count: int, *, is_complete: bool = False
) -> LogPart | None:
    wanted = LogRange(count, start=start, streams=Stream(view.stream) if view.stream else None)
    wanted.is_complete = is_complete
    return runner.log_part(view.handle, view.role, view.replica, wanted)


async def _by_ranges(pool: RunnerPool, lane: str, view: LogView, start: str) -> AsyncIterator[bytes]:
    position, over, quiet, asked = start, False, 0, 0.0
    clock = asyncio.get_running_loop().time
    while not pool.is_closing():
        try:
            read = functools.partial(_read_part, view=view, start=position, count=CHUNK, is_complete=over)
            part = await pool.ask(lane, read)
            if part is None:
                return
            skipped = part.size - part.before - len(part.data)
            if skipped > MOST_BEHIND:
                reached = part.before
                part = await pool.ask(lane, functools.partial(_read_part, view=view, start="", count=CHUNK))
                if part is None:
                    return
                yield _event(
                    _note(f"… {size(part.before - reached)} left out; “Beginning” and “Earlier” show them")
                )
            if part.data:
                yield _event(str(chunk(part.data, part)), part.end)
                position, quiet = part.end, 0
                if len(part.data) >= CHUNK:
                    continue
            elif over:
                yield _ENDED
                return
            elif clock() - asked >= ASK_SECONDS:
                asked = clock()
                status = await pool.ask(lane, lambda runner: runner.status(view.handle))
                over = status is None or status.is_terminal()
                if over:
                    continue
        except (TrainyardError, OSError):  # it may answer again; the page says what is wrong
            await pool.pause(RETRY_SECONDS)
        quiet += 1
        if quiet % QUIET_READS == 0:
            yield b": still here\n\n"
        await pool.pause(READ_SECONDS)


class _ThreadedTail:
    """Follows a log in a thread, no faster than its reader."""

    def __init__(self, view: LogView, last: int) -> None:
        self._view = view
        self._last = last
        self._blocks: queue.Queue[LogBlock | str | None] = queue.Queue(QUEUED_BLOCKS)
        self._gone = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.news = asyncio.Event()
        threading.Thread(target=self._follow, daemon=True, name="ui-follow").start()

    def pop_all(self) -> list[LogBlock | str | None]:
        """Return all waiting items; None marks the end, a text an error."""
        self.news.clear()
        taken: list[LogBlock | str | None] = []
        while not self._blocks.empty():
            taken.append(self._blocks.get_nowait())
        return taken

    def stop(self) -> None:
        """Let the thread end with the next line."""
        self._gone.set()

    def _follow(self) -> None:
        view = self._view
        query = LogQuery(
            should_tail=True, last=self._last, streams=Stream(view.stream) if view.stream else None
        )
        try:
            with get_runner() as runner:
                for block in runner.log_blocks(view.handle, [(view.role, view.replica)], query):
                    if not self._put(block):
                        return
            self._put(None)
        except (TrainyardError, OSError, ValueError, NotImplementedError) as error:
            self._put(redact_text(described(error)))
        finally:
            _followers.release()

    def _put(self, item: LogBlock | str | None) -> bool:
        while not self._gone.is_set():
            try:
                self._blocks.put(item, timeout=1.0)
            except queue.Full:
                continue
            try:
                self._loop.call_soon_threadsafe(self.news.set)
            except RuntimeError:  # the server has ended
                return False
            return True
        return False


async def _by_thread(pool: RunnerPool, view: LogView, start: str) -> AsyncIterator[bytes]:
    if not _followers.acquire(blocking=False):
        yield _event(_note(f"{MOST_FOLLOWERS} logs are followed already."), "")
        yield _ENDED
        return
    if start:
        yield _event(_note("… connected again; lines that were written meanwhile may be missing"), "")
    follower = _ThreadedTail(view, 0 if start else LAST_LINES)
    try:
        while not pool.is_closing():
            for item in follower.pop_all():
                if item is None:
                    yield _ENDED
                    return
                if isinstance(item, str):
                    yield _event(_note(f"The log cannot be followed: {item}"), "")
                    yield _ENDED
                    return
                for begin in range(0, len(item.data), MOST_BEHIND):
                    yield _event(str(chunk(item.data[begin : begin + MOST_BEHIND])), "again")
            try:
                async with asyncio.timeout(READ_SECONDS * QUIET_READS):
                    await follower.news.wait()
            except TimeoutError:
                yield b": still here\n\n"
    finally:
        follower.stop()


def _note(text: str) -> str:
    return str(h.p(".note")[text])


def _event(html: str, position: str | None = None) -> bytes:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return (f"id: {position}\n" if position else "").encode() + lines.encode("utf-8", "replace") + b"\n"
