"""The end of a log as it grows, as server-sent events. A reader that is too far behind skips lines.

Each read takes what is new and keeps a position, nothing else, so that a slow reader costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import htpy as h

from shunter.errors import ShunterError, UnreachableError, described
from shunter.redaction import redact_text
from shunter.schedulers.responses import LogRange
from shunter.ui.html_parts import size
from shunter.ui.job_page import LogView, chunk
from shunter.ui.log_parts import FoundPart, LogParts
from shunter.ui.runner_pool import RunnerPool

CHUNK = 64 << 10
#: A reader that is further behind than this many bytes continues at the end.
MOST_BEHIND = 512 << 10
#: Seconds between two reads: at first, and after a long time without news.
READ_SECONDS, LONGEST_PAUSE = 0.3, 1.5
ASK_SECONDS, RETRY_SECONDS = 2.0, 3.0
#: Reads without news after which a comment shows whether the browser is still there.
QUIET_READS = 10
#: Logs that are followed at the same time.
MOST_FOLLOWED = 64
_ENDED = b"event: ended\ndata: the job has ended\n\n"


class LogTails:
    """Follows logs, as many at a time as one person looks at."""

    def __init__(self, pool: RunnerPool, parts: LogParts) -> None:
        self._pool = pool
        self._parts = parts
        self._followed = 0

    async def follow(self, view: LogView, start: str) -> AsyncIterator[bytes]:
        """Yield events: the lines behind a position, and finally that the job has ended."""
        yield b": following\n\n"
        if self._followed >= MOST_FOLLOWED:
            yield _event(_note(f"{MOST_FOLLOWED} logs are followed already. Close some pages."))
            yield _ENDED
            return
        self._followed += 1
        try:
            async for event in self._events(view, start):
                yield event
        except (ShunterError, OSError, ValueError, NotImplementedError) as error:
            yield _event(_note(f"The log cannot be followed: {redact_text(described(error))}"))
            yield _ENDED
        finally:
            self._followed -= 1

    async def _first(self, view: LogView, start: str) -> FoundPart:
        """Read, and try again until the scheduler answers."""
        while True:
            try:
                return await self._parts.read(view, LogRange(1, start=start), over=False, waits=False)
            except UnreachableError:
                await self._pool.pause(RETRY_SECONDS)
                if self._pool.is_closing():
                    raise

    async def _events(self, view: LogView, start: str) -> AsyncIterator[bytes]:
        pool, lane = self._pool, view.handle.partition("://")[0]
        await self._first(view, start)
        position, over, quiet, asked = start, False, 0, 0.0
        clock = asyncio.get_running_loop().time
        while not pool.is_closing():
            try:
                wanted = LogRange(CHUNK, start=position, at=None if position else 0)
                found = await self._parts.read(view, wanted, over=over, waits=False)
                part = found.part
                assert part is not None
                skipped = part.size - part.before - len(part.data)
                if skipped > MOST_BEHIND:
                    reached = part.before
                    found = await self._parts.read(view, LogRange(CHUNK), over=over, waits=False)
                    part = found.part
                    assert part is not None
                    left_out = size(part.before - reached)
                    yield _event(_note(f"… {left_out} left out; “Beginning” and “Earlier” show them"))
                if part.data:
                    yield _event(str(chunk(part.data, part)), part.end)
                    position, quiet = part.end, 0
                    if len(part.data) >= CHUNK:
                        continue
                elif found.copy is not None:
                    if found.copy.problem:
                        raise BrokenLogError(found.copy.problem)
                    over = found.is_over
                elif not over and clock() - asked >= ASK_SECONDS:
                    asked = clock()
                    status = await pool.ask(lane, lambda runner: runner.status(view.handle))
                    over = status is None or status.is_terminal()
                    if over:
                        continue
                if over and not part.data:
                    yield _ENDED
                    return
            except BrokenLogError:
                raise
            except (ShunterError, OSError):  # it may answer again; the page says what is wrong
                await pool.pause(RETRY_SECONDS)
            quiet += 1
            if quiet % QUIET_READS == 0:
                yield b": still here\n\n"
            await pool.pause(min(READ_SECONDS * 1.1**quiet, LONGEST_PAUSE))


class BrokenLogError(ShunterError):
    """A log can no longer be followed."""


def _note(text: str) -> str:
    return str(h.p(".note")[text])


def _event(html: str, position: str | None = None) -> bytes:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return (f"id: {position}\n" if position else "").encode() + lines.encode("utf-8", "replace") + b"\n"
