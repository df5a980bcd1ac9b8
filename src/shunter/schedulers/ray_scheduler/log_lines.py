"""The lines of a job's log on Ray, as its actors make them; `shipped/replica_actor.py` has the format."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

from shunter.schedulers.lines import LineFilter, TimedLine, blocks_of
from shunter.schedulers.responses import LogBlock, LogQuery, Stream

STATE_MARK = "shunter-state "
_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6})Z (?P<role>\S+)/(?P<index>\d+) "
    r"(?P<stream>out|err)(?P<coded>64)?(?P<mark>[|<>:]) (?P<text>[^\n]*)\n?"
)
_ENDS = {"|": b"\n", "<": b"\r", ">": b"\r\n", ":": b""}
_STREAMS = {Stream.STDOUT: ("out",), Stream.STDERR: ("err",), Stream.COMBINED: ("out", "err")}


class ReplicaLine(NamedTuple):
    """A line of a replica, or a part of one.

    Attributes:
        role: the replica's role.
        replica: its index.
        stream: ``out`` or ``err``.
        time_ns: when it was written, since the epoch.
        data: the text with its line end.
        is_whole: whether it has one.
    """

    role: str
    replica: int
    stream: str
    time_ns: float
    data: bytes
    is_whole: bool


def parse(line: str) -> ReplicaLine | None:
    """Read a line of the log; None for one that no replica wrote."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    text = found["text"].encode("utf-8", "surrogateescape")
    if found["coded"]:
        try:
            text = base64.b64decode(text, validate=True)
        except binascii.Error:
            return None
    moment = datetime.strptime(found["time"], "%Y-%m-%dT%H:%M:%S.%f").replace(tzinfo=UTC)
    return ReplicaLine(
        found["role"],
        int(found["index"]),
        found["stream"],
        moment.timestamp() * 1e9,
        text + _ENDS[found["mark"]],
        found["mark"] != ":",
    )


def state_in(text: str) -> dict[str, Any] | None:
    """Return the last state document in a text of the log; None without one."""
    start = text.rfind(STATE_MARK)
    if start < 0:
        return None
    try:
        found = json.loads(text[start + len(STATE_MARK) :].partition("\n")[0])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class ReplicaLines:
    """Picks out of a log, piece by piece, the lines that a query asks for.

    Args:
        replicas: the replicas that are wanted.
        query: which of their lines.
        foreign: the replica to which lines without our prefix belong; None leaves them out.
    """

    def __init__(
        self, replicas: Iterable[tuple[str, int]], query: LogQuery, foreign: tuple[str, int] | None = None
    ) -> None:
        self._wanted = frozenset(replicas)
        self._streams = _STREAMS[Stream(query.streams) if query.streams is not None else Stream.COMBINED]
        self._filter = LineFilter(query)
        self._is_timed = query.timed
        self._foreign = foreign
        self._rest = ""
        self._parts: dict[tuple[str, int, str], list[ReplicaLine]] = {}

    def feed(self, text: str) -> Iterator[LogBlock]:
        """Yield the blocks that are complete with this piece of the log."""
        if self._rest:
            text = self._rest + text
        end = text.rfind("\n") + 1
        self._rest = text[end:]
        yield from self._blocks(text[:end])

    def finish(self) -> Iterator[LogBlock]:
        """Yield what is left at the end of the log."""
        if self._rest:
            yield from self._blocks(f"{self._rest}\n")
            self._rest = ""
        for (role, index, _), parts in self._parts.items():
            yield from blocks_of((role, index), [self._selected(parts)])
        self._parts.clear()

    def _blocks(self, text: str) -> Iterator[LogBlock]:
        for key, lines in groupby(self._lines(text), key=lambda each: each[0]):
            yield from blocks_of(key, (data for _, data in lines))

    def _lines(self, text: str) -> Iterator[tuple[tuple[str, int], bytes]]:
        for raw in text.split("\n")[:-1]:
            line = parse(raw)
            if line is None:
                if self._foreign in self._wanted and self._foreign is not None:
                    yield self._foreign, self._filter.select(f"{raw}\n".encode("utf-8", "surrogateescape"))
                continue
            key = (line.role, line.replica)
            if key not in self._wanted or line.stream not in self._streams:
                continue
            parts = self._parts.setdefault((*key, line.stream), [])
            parts.append(line)
            if line.is_whole:
                data = self._selected(parts)
                parts.clear()
                if data:
                    yield key, data

    def _selected(self, parts: list[ReplicaLine]) -> bytes:
        """Return a line, put together, if the query asks for it. Its time is that of its first part."""
        if not parts:
            return b""
        time_ns = parts[0].time_ns
        found = self._filter.select_at(time_ns, b"".join(part.data for part in parts))
        return TimedLine.at(time_ns, found) if self._is_timed else found
