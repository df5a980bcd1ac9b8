r"""Any part of a replica's log: found by the index, and read without the rest.

A position is ``OUT.ERR.INDEX``: offsets in stdout and stderr, both at the beginning of a line, and the offset
of a record of the index that is not behind them. The bytes between two positions are the same for every
reader, so adjacent parts neither lose nor repeat a line. A position may come from anywhere: a wrong one gives
other bytes of the same log, and no others.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from trainyard.schedulers.exec.process.log_index import HEADER, MIXED, Record
from trainyard.schedulers.exec.process.log_reader import MAX_LINE, GrowingFile, ReplicaLog
from trainyard.schedulers.responses import LogPart, LogRange, Stream

Offsets = tuple[int, int]

_POSITION = re.compile(r"(\d{1,18})\.(\d{1,18})\.(\d{1,18})", re.ASCII)
#: How much of the index, and of a long line, is read at a time.
BLOCK = 64 << 10
_FILES = ("stdout.log", "stderr.log")


class IndexFile:
    """Reads an index from any record on, block by block."""

    def __init__(self, path: str) -> None:
        self._file = GrowingFile(path)

    def records(self, offset: int = 0) -> Iterator[tuple[int, Record]]:
        """Yield the records from an offset on, each with its own."""
        start, data = offset, b""
        while True:
            position = 0
            while position + HEADER.size <= len(data):
                time_ns, out_end, err_end, flags, writes = HEADER.unpack_from(data, position)
                body = position + HEADER.size
                end = body + (writes if flags & MIXED else 0)
                if end > len(data):
                    break
                yield start + position, Record(time_ns, (out_end, err_end), flags, writes, data[body:end])
                position = end
            start, rest = start + position, data[position:]
            more = self._file.read(max(BLOCK, len(rest)), start + len(rest))
            if not more:
                return
            data = rest + more

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ClippedIndex:
    """The records of an index from one of them on, none beyond some offsets; the last one reaches them."""

    def __init__(self, index: IndexFile, first: int, start: Offsets, end: Offsets) -> None:
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
        yield Record(time.time_ns(), self._end)  # what has not got into the index yet

    def close(self) -> None:
        """Leave the file open: it is the reader's."""


def read_part(log_dir: str, index_path: str, wanted: LogRange) -> LogPart:
    """Return a part of the log of a replica that has ``stdout.log`` and ``stderr.log`` in ``log_dir``."""
    files = (GrowingFile(os.path.join(log_dir, _FILES[0])), GrowingFile(os.path.join(log_dir, _FILES[1])))
    index = IndexFile(index_path)
    try:
        return _Ranges(files, index, Stream(wanted.streams or Stream.COMBINED)).read(wanted)
    finally:
        for file in (*files, index):
            file.close()


class _Ranges:
    def __init__(self, files: tuple[GrowingFile, GrowingFile], index: IndexFile, stream: Stream) -> None:
        self._files = files
        self._index = index
        self._stream = stream
        self._which = {Stream.STDOUT: (0,), Stream.STDERR: (1,), Stream.COMBINED: (0, 1)}[stream]
        out, err = (file.size() if i in self._which else 0 for i, file in enumerate(files))
        self._sizes = (out, err)

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
        held, end = log.settle()
        if is_all and wanted.is_complete:
            held, end = held + b"".join(part.data for part in log.rest()), self._sizes
        return self._part([*pieces, held], start, first, end, index.reached)

    def _between(self, start: Offsets, first: int, end: Offsets, to_the_end: bool) -> LogPart:
        index = ClippedIndex(self._index, first, start, end)
        log = self._log(index, start)
        pieces = [part.data for part in log.parts()]
        held, reached = log.settle()
        if to_the_end and reached != end:
            pieces, held = [*pieces, held], self._unfinished(reached, end)
            reached = end
        return self._part([*pieces, held], start, first, reached, index.reached)

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
        """Return offsets at the beginnings of lines, about ``target`` bytes of the log before them.

        Also the offset of the record of the index that they lie in.
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
