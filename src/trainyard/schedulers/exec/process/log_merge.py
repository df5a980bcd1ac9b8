r"""Putting a replica's stdout and stderr back together in the order in which they were written.

The index gives, for every few milliseconds, how much each file grew and the sequence of writes. Lines are
laid along the writes. Where a program writes each line with the same number of writes (one, or two as
unbuffered Python's ``print`` does) that is exact: line i of a stream stands where its write stands, and
lines whose write has not been seen yet are held back until it has. (A flood that begins before that rhythm
has been seen once is placed by a guess at it, for a few milliseconds.) Where a program writes blocks of many
lines, only blocks that fell into the same few milliseconds are shared out, in proportion. The same
holds for what was written while the kernel's queue overflowed (8,192 writes before the supervisor got a
share of a cpu).

Lines are never torn: a line stands where its end was written. What ends a line is ``\n``, or ``\r`` of a
progress bar. Nothing is lost or doubled whatever the index says, since it only steers the order.
"""

from __future__ import annotations

from collections import deque

from trainyard.schedulers.exec.process.log_index import Record
from trainyard.schedulers.lines import iter_lines

#: More lines than this without their writes are not merely late: the rhythm is another.
MAX_LATE = 20_000
MAX_WRITES_PER_LINE = 4
FEW_LINES = 8
MAX_LINE = 16 << 20


class StreamLines:
    """The lines of one stream that wait to be placed, and how they relate to its writes.

    Attributes:
        held: whole lines without a place yet.
        partial: the beginning of a line.
        writes, lines, placed: counts since the two files and the writes were last known to be level.
        rhythm: writes per line while that was constant; 0 when it was not.
    """

    def __init__(self) -> None:
        self.held: deque[bytes] = deque()
        self.partial = b""
        self.writes = self.lines = self.placed = 0
        self.rhythm = 1

    def cut(self, data: bytes) -> bytes:
        """Return the whole lines of what was kept and this, and keep the rest."""
        data = self.partial + data if self.partial else data
        end = _end_of_lines(data)
        if not end and len(data) > MAX_LINE:
            end = len(data)
        self.partial = data[end:]
        return data[:end]

    def take(self, whole: bytes) -> None:
        """Hold whole lines until they are placed."""
        before = len(self.held)
        self.held.extend(iter_lines(whole))
        self.lines += len(self.held) - before

    def writes_per_line(self, *, settled: bool) -> int:
        """Return the constant number of writes per line, or 0 if there is none."""
        if not self.lines:
            return self.rhythm or 1
        if settled:  # the counts belong together, but for a write that was just under way
            candidates = [self.rhythm, *range(1, MAX_WRITES_PER_LINE + 1)]
            fitting = (n for n in candidates if n and self.lines - self.writes // n in (0, 1))
            self.rhythm = next(fitting, 0)
            return self.rhythm
        if self.rhythm and -1 <= self.lines - self.writes // self.rhythm <= MAX_LATE:
            return self.rhythm
        # Lines may be ahead of their writes, but not behind them.
        guess = -(-self.writes // (self.lines + 1)) or 1
        late = self.lines - self.writes // guess
        return guess if guess <= MAX_WRITES_PER_LINE and late <= max(FEW_LINES, self.lines // 2) else 0

    def level(self) -> None:
        """Begin to count anew, from a moment at which every line has its writes."""
        self.writes = self.writes - self.rhythm * self.lines if self.rhythm else 0
        self.lines = self.placed = 0

    def lose_count(self) -> None:
        """Begin to count anew, because some writes were not counted."""
        self.writes = self.lines = self.placed = 0


class Merger:
    """Merges the two streams of one replica, as their files and their index grow."""

    def __init__(self) -> None:
        self._streams = (StreamLines(), StreamLines())

    def add(self, record: Record, data: tuple[bytes, bytes]) -> bytes:
        """Return the lines that have their place now that this record and this data are known."""
        if self._is_single(record, data):
            return self._pass_through(record, data)
        for stream, grown in zip(self._streams, data, strict=True):
            if grown:
                stream.take(stream.cut(grown))
        order = record.order or record.streams * record.writes
        placed = self._place(order, settled=record.settled)
        if not record.counted:
            return b"".join(placed) + self._place_everything()
        if record.settled:
            placed += self._place_held(record.streams)
            for stream in self._streams:
                stream.level()
        return b"".join(placed)

    def rest(self) -> bytes:
        """Return what is left when nothing more will come."""
        placed = self._place_everything()
        partial = b"".join(stream.partial for stream in self._streams)
        for stream in self._streams:
            stream.partial = b""
        return placed + partial

    def _is_single(self, record: Record, data: tuple[bytes, bytes]) -> bool:
        """Tell whether one stream alone is concerned, so that nothing has to be put in order."""
        if any(stream.held for stream in self._streams):
            return False
        grown = bytes(i for i, part in enumerate(data) if part)
        return len(grown) == 1 and record.streams in (b"", grown)

    def _pass_through(self, record: Record, data: tuple[bytes, bytes]) -> bytes:
        which = 0 if data[0] else 1
        stream = self._streams[which]
        whole = stream.cut(data[which])
        lines = _count_lines(whole)
        stream.lines += lines
        stream.placed += lines
        stream.writes += record.writes
        if not record.counted:
            stream.lose_count()
        elif record.settled:
            stream.writes_per_line(settled=True)
            stream.level()
        return whole

    def _place(self, order: bytes, *, settled: bool) -> list[bytes]:
        """Lay the held lines of both streams along the sequence of writes."""
        totals = [order.count(0), order.count(1)]
        for stream, total in zip(self._streams, totals, strict=True):
            stream.writes += total
        ratios = [stream.writes_per_line(settled=settled) for stream in self._streams]
        begin = [stream.writes - total for stream, total in zip(self._streams, totals, strict=True)]
        held = [len(stream.held) for stream in self._streams]
        done = [0, 0]
        taken = [0, 0]
        result: list[bytes] = []
        for which in order:
            stream = self._streams[which]
            done[which] += 1
            if ratios[which]:
                wanted = (begin[which] + done[which]) // ratios[which] - stream.placed
            else:
                wanted = done[which] * held[which] // totals[which] - taken[which]
            for _ in range(min(wanted, len(stream.held))):
                result.append(stream.held.popleft())
                stream.placed += 1
                taken[which] += 1
        return result

    def _place_held(self, order: bytes) -> list[bytes]:
        """Place all that is held, in the order in which the streams were first written to."""
        result: list[bytes] = []
        for which in dict.fromkeys(order + b"\0\1"):
            stream = self._streams[which]
            stream.placed += len(stream.held)
            result += stream.held
            stream.held.clear()
        return result

    def _place_everything(self) -> bytes:
        """Place all that is held, knowing nothing of the order: both streams evenly mixed."""
        out, err = (stream.held for stream in self._streams)
        placed = []
        for i, line in enumerate(out):
            placed += [err.popleft() for _ in range(len(err) // (len(out) - i + 1))]
            placed.append(line)
        placed += err
        for stream in self._streams:
            stream.held.clear()
            stream.lose_count()
        return b"".join(placed)


def _end_of_lines(data: bytes) -> int:
    r"""Return where the last whole line ends. A ``\r`` at the very end may yet become ``\r\n``."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(len(data) - 1, 0))) + 1


def _count_lines(data: bytes) -> int:
    lines = data.count(b"\n")
    if b"\r" in data:
        lines += data.count(b"\r") - data.count(b"\r\n")
    return lines
