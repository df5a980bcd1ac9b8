"""The logs of training jobs as CloudWatch's streams: one for each attempt of each host.

A stream is called what CloudWatch calls it: ``algo-1-1700000000000``, the host and the milliseconds at which
its attempt began. It is a part of the host's log; the supervisor's index tells when its lines were written.
"""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Iterator
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

from shunter.schedulers.lines import start_of_last_lines
from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor.log_index import LOG_NAMES
from shunter.schedulers.supervisor.log_reader import IndexFile
from shunter.schedulers.supervisor.log_recorder import BUCKET_NS
from shunter.schedulers.supervisor.recovery import current_state

BLOCK = 256 << 10
#: CloudWatch cuts longer events: 256 KiB less what it counts for itself.
LONGEST_EVENT = (256 << 10) - 26


class LogLine(NamedTuple):
    """A line: where it begins and ends in its stream, its time in milliseconds, and its bytes."""

    start: int
    end: int
    time_ms: int
    data: bytes


class JobStream:
    """A log stream. Places in it are bytes from its beginning.

    Args:
        job: the job.
        host: name of the host.
        path: the host's log.
        index_path: the index of that.
        began: when the attempt began, in seconds since the epoch.
        first: where the attempt begins in the log.
        last: where the next attempt begins in the log; None for the last one.
        is_over: whether nothing more will be written to it.

    Attributes:
        name: such as ``JOB/algo-1-1700000000000``.
    """

    def __init__(
        self,
        job: TrainingJob,
        host: str,
        path: str,
        index_path: str,
        began: float,
        first: int,
        last: int | None,
        is_over: bool,
    ) -> None:
        self.job = job
        self.created_ms = int(began * 1000)
        self.name = f"{job.name}/{host}-{self.created_ms}"
        self.is_over = is_over or last is not None
        self._path = path
        self._index_path = index_path
        self._first, self._last = first, last

    @property
    def size(self) -> int:
        """How many bytes it has."""
        end = self._last
        if end is None:
            end = os.path.getsize(self._path) if os.path.exists(self._path) else 0
        return max(0, end - self._first)

    def read(self, count: int, place: int) -> bytes:
        """Return at most this many bytes, from a place on."""
        wanted = max(0, min(count, self.size - place))
        if not wanted:
            return b""
        with open(self._path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), wanted, self._first + place)

    def _times(self) -> tuple[list[int], list[int]]:
        """Return how it has grown: sizes, and the times by which they had been reached. Both only grow.

        The last record of the index may still be replaced, and then its lines have a later time.
        """
        index = IndexFile(self._index_path)
        try:
            records = [record for _, record in index.records()]
        finally:
            index.close()
        final = time.time_ns() - BUCKET_NS
        if records and not self.is_over and records[-1].time_ns > final:
            records.pop()
        size = self.size
        records = [record for record in records if record.ends[0] > self._first]
        sizes = [min(record.ends[0] - self._first, size) for record in records]
        # times never decrease, even if the clock is set back: readers bisect
        times = list(accumulate((record.time_ns // 1_000_000 for record in records), max))
        count = bisect.bisect_left(sizes, size) + 1  # the records after that are of later attempts
        return sizes[:count], times[:count]

    def span(self) -> tuple[int, int] | None:
        """Return the times of its first and its last line; None if it is empty."""
        times = self._times()[1]
        return (times[0], times[-1]) if times else None

    def events(self, start: int) -> Iterator[LogLine]:
        """Yield the lines from a place on, long ones in parts.

        If the log is still growing, only lines whose time is known, so that their times never change.
        """
        sizes, times = self._times()
        known = sizes[-1] if sizes else 0
        for place, data in self._lines(start):
            if place >= known and not self.is_over:
                return
            index = min(bisect.bisect_right(sizes, place), len(sizes) - 1)
            moment = times[index] if times else self.created_ms
            yield LogLine(place, place + len(data), moment, data)

    def _lines(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield lines and parts of long ones, with their places; never more than a block is held."""
        held, place = b"", start
        while data := self.read(BLOCK, place):
            place += len(data)
            *lines, held = (held + data).split(b"\n")  # only at line feeds: a progress bar is one line
            for line in lines:
                while len(line) > LONGEST_EVENT:
                    part, line = _cut(line)
                    yield start, part
                    start += len(part)
                yield start, line + b"\n"
                start += len(line) + 1
            while len(held) > LONGEST_EVENT:
                part, held = _cut(held)
                yield start, part
                start += len(part)
        if held and self.is_over:
            yield start, held

    def boundary(self, time_ms: int) -> int:
        """Return the place up to which everything was written before a time.

        In a log that still grows it is at most the last place whose time is known.
        """
        sizes, times = self._times()
        index = bisect.bisect_left(times, time_ms)
        if index == len(times) and self.is_over:
            return self.size
        return sizes[index - 1] if index else 0

    def start(self, since: int) -> int:
        """Return where the line begins that was being written at a time; 0 for no time."""
        return self.line_start(self.boundary(since)) if since else 0

    def line_start(self, place: int) -> int:
        """Return where the line begins that a place is within, or at the end of."""
        return self.start_of_last(1, place) if place else 0

    def start_of_last(self, count: int, end: int) -> int:
        """Return where the last ``count`` lines before ``end`` begin."""
        return start_of_last_lines(self.read, count, end)


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Cut the longest possible event off a line, between two characters of UTF-8."""
    end = LONGEST_EVENT
    for back in range(1, 4):
        if line[end] & 0xC0 != 0x80:
            break
        if line[LONGEST_EVENT - back] & 0xC0 != 0x80:
            end = LONGEST_EVENT - back
            break
    return line[:end], line[end:]


def streams_of(job: TrainingJob) -> list[JobStream]:
    """Return the streams of a job, in the order of their names."""
    state, document = current_state(job), job.read_request()
    if state is None or document is None:  # deleted just now
        return []
    log_dirs = job.log_dirs()
    streams = []
    for role in state["roles"]:
        for replica in role["replicas"]:
            key = (role["role"], replica["id"])
            starts = _attempts(replica)
            ends: list[int | None] = [start for _, start in starts[1:]]
            for (began, first), last in zip_longest(starts, ends):
                streams.append(
                    JobStream(
                        job,
                        document["hostnames"][f"{key[0]}/{key[1]}"],
                        os.path.join(log_dirs[key], LOG_NAMES[0]),
                        job.index_path(*key),
                        began,
                        first,
                        last,
                        state["status"] in TERMINAL,
                    )
                )
    return sorted(streams, key=lambda stream: stream.name)


def _attempts(replica: dict[str, Any]) -> list[tuple[float, int]]:
    """Return when the attempts of a host began, and where in its log."""
    attempts = [*replica.get("earlier", ()), replica]
    return [
        (attempt["started_at"], attempt.get("log_starts", [0])[0])
        for attempt in attempts
        if attempt["started_at"] is not None
    ]
