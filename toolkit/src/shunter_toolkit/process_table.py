"""The processes of this machine or container, as Linux shows them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import kernel


class Process(NamedTuple):
    """What is known of a process.

    Args:
        parent: the pid of its parent.
        terminal: the device number of its terminal; 0 without one.
        cpu_seconds: of all its threads, and of its children that have ended.
        memory: resident bytes.
    """

    parent: int
    terminal: int
    cpu_seconds: float
    memory: int


def processes() -> dict[int, Process]:
    """Return all processes that can be seen, by pid; zombies too."""
    found = {}
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for name in os.listdir(kernel.PROC):
        if name.isdigit():
            try:
                with open(f"{kernel.PROC}/{name}/stat", encoding="ascii", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            cpu_seconds = sum(map(int, fields[11:15])) / ticks
            found[int(name)] = Process(int(fields[1]), int(fields[4]), cpu_seconds, int(fields[21]) * page)
    return found


def with_descendants(roots: Iterable[int], table: Mapping[int, Process]) -> set[int]:
    """Return the pids of processes and of all processes below them."""
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    family: set[int] = set()
    pending = list(roots)
    while pending:
        pid = pending.pop()
        if pid not in family:
            family.add(pid)
            pending += children.get(pid, ())
    return family


def environment_of(pid: int) -> list[bytes]:
    """Return the ``NAME=value`` that a process was started with; none if it is another user's, or gone."""
    try:
        with open(f"{kernel.PROC}/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
