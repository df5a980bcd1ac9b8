"""Leaves out of a log the results that the job wrote to it, see `shunter._toolkit.logged_results`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from shunter._toolkit.logged_results import MARK, MOST_LINES, without_results
from shunter.schedulers.api import LogBlock, LogQuery, Scheduler
from shunter.schedulers.lines import last_lines

_MARK = MARK.decode()


def lines_without_results(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a log without results."""
    for line in lines:
        if _MARK not in line:
            yield line
        elif shown := without_results(line.encode("utf-8", "replace")):
            yield shown.decode()


def blocks_without_results(
    scheduler: Scheduler[Any], app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
) -> Iterator[LogBlock]:
    """Yield the lines of a query without results; the last lines are those before the results."""
    if query.last is None or query.should_tail:
        return _without(scheduler.log_blocks(app_id, replicas, query))
    more = replace(query, last=query.last + MOST_LINES)
    return last_lines(_without(scheduler.log_blocks(app_id, replicas, more)), query.last, replicas)


def _without(blocks: Iterable[LogBlock]) -> Iterator[LogBlock]:
    for block in blocks:
        data = without_results(block.data)
        if data:
            yield block if data is block.data else replace(block, data=data)
