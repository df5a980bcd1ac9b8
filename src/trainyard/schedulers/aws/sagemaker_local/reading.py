"""Reading the logs of jobs as schedulers do: many hosts, all attempts, once or following."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator

from trainyard.schedulers.aws.sagemaker_local.logs import Log, log_path
from trainyard.schedulers.base import LogBlock, LogQuery
from trainyard.schedulers.lines import compile_regex, iter_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.schedulers.aws.sagemaker_local.training_job import TrainingJob

    Key = tuple[str, int]
    State = dict[str, Any]

POLL_SECONDS = 0.1


class HostLog:
    """The logs of a host's attempts, one after the other, as they grow.

    Args:
        job: the job's directory.
        host: the host's name.
    """

    def __init__(self, job: TrainingJob, host: str) -> None:
        self._job = job
        self._host = host
        self._at = 0
        self._place = 0

    def parts(self, state: State, is_over: bool) -> Iterator[tuple[int, bytes]]:
        """Yield what is new: whole lines with the time, in milliseconds, by which they were written."""
        host = next(host for host in state["hosts"] if host["name"] == self._host)
        streams = host["streams"]
        while self._at < len(streams):
            is_last = self._at == len(streams) - 1
            log = Log(log_path(self._job, streams[self._at]))
            for place, time_ms, data in log.pieces(self._place, is_over or not is_last):
                self._place = place + len(data)
                yield time_ms, data
            if is_last:
                return
            self._at, self._place = self._at + 1, 0


class Selection:
    """Which lines are asked for."""

    def __init__(self, query: LogQuery) -> None:
        self._pattern = compile_regex(query.regex) if query.regex is not None else None
        self._since = query.since.timestamp() * 1000 if query.since else None
        self._until = query.until.timestamp() * 1000 if query.until else None

    def filter(self, time_ms: int, data: bytes) -> bytes:
        """Return those of some lines that are asked for."""
        if self._since is not None and time_ms < self._since:
            return b""
        if self._until is not None and time_ms >= self._until:
            return b""
        pattern = self._pattern
        if pattern is None:
            return data
        return b"".join(
            line
            for line in iter_lines(data)
            if pattern.search(line.decode("utf-8", "replace").rstrip("\r\n"))
        )

    @property
    def is_past(self) -> bool:
        """Whether no more lines can come that are asked for."""
        return self._until is not None and time.time() * 1000 >= self._until


def read(
    hosts: dict[Key, HostLog],
    query: LogQuery,
    look: Callable[[], tuple[State, bool]],
) -> Iterator[LogBlock]:
    """Yield the lines of hosts, in order of time.

    Args:
        hosts: the hosts' logs by role and replica.
        query: which lines.
        look: gives the job's state, and whether it has ended.
    """
    selection = Selection(query)
    first = True
    while True:
        state, over = look()
        blocks = _new_blocks(hosts, selection, state, over)
        if first and query.last is not None:
            blocks = _last(blocks, query.last)
        yield from blocks
        first = False
        if over or not query.should_tail or selection.is_past:
            return
        time.sleep(POLL_SECONDS)


def _new_blocks(
    hosts: dict[Key, HostLog], selection: Selection, state: State, over: bool
) -> Iterator[LogBlock]:
    def keyed(key: Key, log: HostLog) -> Iterator[tuple[int, Key, bytes]]:
        return ((time_ms, key, data) for time_ms, data in log.parts(state, over))

    sources = [keyed(key, log) for key, log in hosts.items()]
    for time_ms, (role, replica), data in heapq.merge(*sources, key=lambda item: item[0]):
        wanted = selection.filter(time_ms, data)
        if wanted:
            yield LogBlock(role, replica, wanted)


def _last(blocks: Iterator[LogBlock], count: int) -> Iterator[LogBlock]:
    tails: dict[Key, deque[bytes]] = {}
    for block in blocks:
        key = (block.role, block.replica)
        tails.setdefault(key, deque(maxlen=count)).extend(iter_lines(block.data))
    for (role, replica), lines in tails.items():
        if lines:
            yield LogBlock(role, replica, b"".join(lines))
