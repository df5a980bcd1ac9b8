"""Leaves out of a log what the toolkit wrote to it for shunter: results, and what the script uses.

See `shunter._toolkit.logged_results` and `shunter._toolkit.usage_log`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from shunter._toolkit import logged_results, usage_log
from shunter._toolkit.logged_results import without_results
from shunter._toolkit.usage_log import without_usage
from shunter.schedulers.api import LogBlock, LogQuery, Scheduler
from shunter.schedulers.lines import last_lines

_MARKS = (logged_results.MARK.decode(), usage_log.MARK.decode())
_MOST_LINES = logged_results.MOST_LINES + usage_log.MOST_LINES


def shown(data: bytes, *, with_usage: bool = False) -> bytes:
    """Return lines of a log without those that are for shunter, or only without results."""
    data = without_results(data)
    return data if with_usage else without_usage(data)


def shown_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a log that are not for shunter."""
    for line in lines:
        if not any(mark in line for mark in _MARKS):
            yield line
        elif rest := shown(line.encode("utf-8", "replace")):
            yield rest.decode()


def shown_blocks(
    scheduler: Scheduler[Any],
    app_id: str,
    replicas: Sequence[tuple[str, int]],
    query: LogQuery,
    *,
    with_usage: bool = False,
) -> Iterator[LogBlock]:
    """Yield the lines of a query that are not for shunter; the last lines are the last of those."""
    if query.last is None or query.should_tail:
        return _without(scheduler.log_blocks(app_id, replicas, query), with_usage)
    more = replace(query, last=query.last + _MOST_LINES)
    blocks = _without(scheduler.log_blocks(app_id, replicas, more), with_usage)
    return last_lines(blocks, query.last, replicas)


def _without(blocks: Iterable[LogBlock], with_usage: bool) -> Iterator[LogBlock]:
    for block in blocks:
        data = shown(block.data, with_usage=with_usage)
        if data:
            yield block if data is block.data else replace(block, data=data)
