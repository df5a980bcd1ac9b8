r"""Any part of a replica's log: found by the index, and read without the rest.

A position is ``OUT.ERR.INDEX``: offsets in stdout and stderr, both at the beginning of a line, and the offset
of a record of the index that is not behind them. The bytes between two positions are the same for every
reader, so adjacent parts neither lose nor repeat a line. A position need not be trusted: a wrong one
yields other bytes of the same log, and nothing else.

Where each attempt has separate files (`AttemptRanges`), the number of the attempt and a colon stand before
it, and no part holds lines of two attempts. The last line of an attempt may lack its end.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

from shunter.schedulers.responses import LogPart, LogRange, Stream
from shunter.schedulers.supervisor.log_index import LOG_NAMES, Record
from shunter.schedulers.supervisor.log_reader import (
    MAX_LINE,
    GrowingFile,
    IndexFile,
    OutputFile,
    ReplicaLog,
)

Offsets = tuple[int, int]

_POSITION = re.compile(r"(\d{1,18})\.(\d{1,18})\.(\d{1,18})", re.ASCII)
#: How much of a long line is read at a time.
BLOCK = 64 << 10
_BEGIN = "0.0.0"


class RecordIndex(Protocol):
    """An index that can be read from any of its records on."""

    def records(self, offset: int = 0) -> Iterator[tuple[int, Record]]:
        """Yield the records from an offset on, each with its own."""

    def close(self) -> None:
        """Close it."""


class NoIndex(RecordIndex):
    """Stands for the index of a log of one stream, which needs none."""

    def records(self, offset: int = 0) -> Iterator[tuple[int, Record]]:
        """Yield nothing."""
        return iter(())

    def close(self) -> None:
        """Do nothing."""


class NoFile(OutputFile):
    """Stands for the stream that a log does not have."""

    def size(self) -> int:
        """Return 0."""
        return 0

    def read(self, count: int, offset: int) -> bytes:
        """Return nothing."""
        return b""

    def close(self) -> None:
        """Do nothing."""


class ClippedIndex:
    """The records of an index from a given one on, up to given offsets, which the last record reaches."""

    def __init__(self, index: RecordIndex, first: int, start: Offsets, end: Offsets) -> None:
        self._index = index
        self._first = first
        self._start = start
        self._end = end
        #: Offset of the record that was given out last.
        self.reached = first

    def new_records(self) -> Iterator[Record]:
        """Yield the records; they are given out once."""
        last = self._start
        for offset, record in self._index.records(self._first):
            ends = _least(record.ends, self._end)
            if all(end <= done for end, done in zip(ends, last, strict=True)):
                continue
            self.reached = offset
            last = _most(ends, last)
            yield record if ends == record.ends else Record(record.time_ns, last)
            if last == self._end:
                return
        yield Record(time.time_ns(), self._end)  # what is not in the index yet

    def close(self) -> None:
        """Leave the file open: it is the reader's."""


def read_part(log_dir: str, index_path: str, wanted: LogRange) -> LogPart:
    """Return a part of the log of a replica that has ``stdout.log`` and ``stderr.log`` in ``log_dir``."""
    stdout, stderr = (GrowingFile(os.path.join(log_dir, name)) for name in LOG_NAMES)
    ranges = LogRanges((stdout, stderr), IndexFile(index_path), wanted.streams)
    try:
        return ranges.read(wanted)
    finally:
        ranges.close()


class AttemptRanges:
    """Parts of a log of which each attempt has separate files.

    Args:
        attempts: the logs of the attempts, by their numbers, the first one first.
    """

    def __init__(self, attempts: Mapping[int, LogRanges]) -> None:
        self._numbers = list(attempts)
        self._logs = list(attempts.values())
        sizes = [log.size for log in self._logs]
        self._before = [sum(sizes[:i]) for i in range(len(sizes))]
        self._size = sum(sizes)

    def read(self, wanted: LogRange) -> LogPart:
        """Return the requested part; an empty one where there is no attempt yet."""
        if not self._logs:
            return LogPart(b"", "", "", 0, 0)
        try:
            if wanted.start:
                return self._forward(*self._parsed(wanted.start), wanted)
            if wanted.at is not None:
                which = max(i for i, before in enumerate(self._before) if before <= max(wanted.at, 0))
                near = LogRange(wanted.count, at=wanted.at - self._before[which])
                part = self._part(which, near, wanted)
                return part if part.data else self._forward(which, part.end.partition(":")[2], wanted)
            which, end = self._parsed(wanted.end) if wanted.end else (len(self._logs) - 1, "")
            while True:
                part = self._part(which, LogRange(wanted.count, end=end), wanted)
                if part.data or which == 0:
                    return part
                which, end = which - 1, ""
        finally:
            for log in self._logs:
                log.close()

    def _forward(self, which: int, start: str, wanted: LogRange) -> LogPart:
        while True:
            part = self._part(which, LogRange(wanted.count, start=start), wanted)
            if part.data or which == len(self._logs) - 1:
                return part
            which, start = which + 1, _BEGIN

    def _part(self, which: int, here: LogRange, wanted: LogRange) -> LogPart:
        here.is_complete = wanted.is_complete or which < len(self._logs) - 1
        part = self._logs[which].read(here)
        number = self._numbers[which]
        start, end = f"{number}:{part.start}", f"{number}:{part.end}"
        return LogPart(part.data, start, end, self._before[which] + part.before, self._size)

    def _parsed(self, text: str) -> tuple[int, str]:
        number, _, place = text.partition(":")
        wanted = int(number) if number.isdecimal() and len(number) < 10 else self._numbers[-1]
        later = [i for i, known in enumerate(self._numbers) if known >= wanted]
        return (later[0] if later else len(self._logs) - 1), place or _BEGIN


class LogRanges:
    """Parts of the log of one replica, or of one of its attempts.

    Args:
        files: its stdout and its stderr.
        index: tells when they grew.
        streams: which stream is wanted; None for both.
    """

    def __init__(
        self, files: tuple[OutputFile, OutputFile], index: RecordIndex, streams: Stream | None
    ) -> None:
        self._files = files
        self._index = index
        self._stream = Stream.COMBINED if streams is None else Stream(streams)
        self._which = {Stream.STDOUT: (0,), Stream.STDERR: (1,), Stream.COMBINED: (0, 1)}[self._stream]
        out, err = (file.size() if i in self._which else 0 for i, file in enumerate(files))
        self._sizes = (out, err)

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return sum(self._sizes)

    def close(self) -> None:
        """Close its files."""
        for file in (*self._files, self._index):
            file.close()

    def read(self, wanted: LogRange) -> LogPart:
        """Return what is wanted."""
        if wanted.start:
            start, first = self._parsed(wanted.start)
            return self._forward(start, first, wanted)
        if wanted.at is not None:
            start, first = self._near(min(max(wanted.at, 0), sum(self._sizes)), self._sizes)
            return self._forward(start, first, wanted)
        end = self._parsed(wanted.end)[0] if wanted.end else self._sizes
        start, first = self._near(max(sum(end) - wanted.count, 0), end)
        return self._between(start, first, end, wanted.is_complete or bool(wanted.end))

    def _parsed(self, text: str) -> tuple[Offsets, int]:
        match = _POSITION.fullmatch(text)
        if match is None:
            return self._sizes, 0
        out, err, first = (int(number) for number in match.groups())
        return _least((out, err), self._sizes), first

    def _forward(self, start: Offsets, first: int, wanted: LogRange) -> LogPart:
        index = ClippedIndex(self._index, first, start, self._sizes)
        log = self._log(index, start)
        log.chunk = max(wanted.count, 1)
        pieces, size, is_all = [], 0, True
        for part in log.parts():
            pieces.append(part.data)
            size += len(part.data)
            if size >= wanted.count:
                is_all = False
                break
        end = log.place()
        if is_all and wanted.is_complete:
            pieces, end = [*pieces, *(part.data for part in log.rest())], self._sizes
        return self._part(pieces, start, first, end, index.reached)

    def _between(self, start: Offsets, first: int, end: Offsets, to_the_end: bool) -> LogPart:
        index = ClippedIndex(self._index, first, start, end)
        log = self._log(index, start)
        pieces = [part.data for part in log.parts()]
        reached = log.place()
        if to_the_end and reached != end:
            pieces.append(self._unfinished(reached, end))
            reached = end
        return self._part(pieces, start, first, reached, index.reached)

    def _unfinished(self, start: Offsets, end: Offsets) -> bytes:
        return b"".join(
            file.read(end[i] - start[i], start[i]) for i, file in enumerate(self._files) if end[i] > start[i]
        )

    def _log(self, index: ClippedIndex, start: Offsets) -> ReplicaLog:
        log = ReplicaLog(self._files, index, self._stream)
        log.start_at(start)
        return log

    def _part(self, pieces: list[bytes], start: Offsets, first: int, end: Offsets, reached: int) -> LogPart:
        return LogPart(
            b"".join(pieces), _position(start, first), _position(end, reached), sum(start), sum(self._sizes)
        )

    def _near(self, target: int, end: Offsets) -> tuple[Offsets, int]:
        """Return offsets of beginnings of lines, with about ``target`` bytes of the log before them.

        Also return the offset of the index record that they lie in.
        """
        before, record_offset, ends = (0, 0), 0, end
        for offset, record in self._index.records():
            record_offset = offset
            ends = _least(self._of_stream(record.ends), end)
            if sum(ends) > target:
                break
            before, ends = _most(before, ends), end
        grown = [max(last - earlier, 0) for earlier, last in zip(before, ends, strict=True)]
        gap, growth = max(target - sum(before), 0), sum(grown)
        out, err = (
            earlier + (gap * more // growth if growth else 0)
            for earlier, more in zip(before, grown, strict=True)
        )
        found = self._aligned(0, out, end[0]), self._aligned(1, err, end[1])
        if found == end and target < sum(end):  # a line that is longer than what is asked for
            found = self._start_of_last(0, end[0]), self._start_of_last(1, end[1])
            record_offset = 0
        return found, record_offset

    def _of_stream(self, ends: Offsets) -> Offsets:
        return ends[0] if 0 in self._which else 0, ends[1] if 1 in self._which else 0

    def _start_of_last(self, which: int, end: int) -> int:
        """Return where the last line before an offset begins; a very long one is cut."""
        place = end - 1  # not the end of that line itself
        while place > max(end - MAX_LINE, 0):
            start = max(place - BLOCK, 0)
            found = self._files[which].read(place - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            place = start
        return max(place, 0)

    def _aligned(self, which: int, offset: int, end: int) -> int:
        """Return where the first line begins at or behind an offset; ``end`` if none does."""
        offset = min(offset, end)
        if offset <= 0:
            return 0
        place = offset - 1
        while place < end:
            data = self._files[which].read(min(BLOCK, end - place), place)
            if not data:
                break
            found = data.find(b"\n")
            if found >= 0:
                return min(place + found + 1, end)
            place += len(data)
        return end


def _position(offsets: Offsets, record: int) -> str:
    return f"{offsets[0]}.{offsets[1]}.{record}"


def _least(one: Offsets, other: Offsets) -> Offsets:
    return min(one[0], other[0]), min(one[1], other[1])


def _most(one: Offsets, other: Offsets) -> Offsets:
    return max(one[0], other[0]), max(one[1], other[1])
