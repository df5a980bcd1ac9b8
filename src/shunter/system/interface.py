"""The argument and return types of `linux` and `portable`, which have the same functions."""

from __future__ import annotations

from typing import NamedTuple, Protocol

# Masks of what happens to a watched file or in a watched directory: those of inotify.
MODIFIED = 0x2
MOVED_TO = 0x80
CREATED = 0x100


class ProcessFacts(NamedTuple):
    """What the system tells about a process that has not ended.

    ``start`` distinguishes it from another process with the same pid; it is 0 if the system does not tell.
    ``status`` is "stopped" (by a signal), "ending" (its files are not closed yet) or "".
    """

    pid: int
    parent: int
    group: int
    session: int
    start: int
    status: str


class ProcessPlace(NamedTuple):
    """Where a process runs: directory, environment, and the kinds of its namespaces that we do not share."""

    pid: int
    cwd: str
    environ: dict[bytes, bytes]
    namespaces: list[str]


class ProcessUsage(NamedTuple):
    """What a process and its descendants use.

    ``cpu_seconds`` counts those that have ended too. ``memory`` is resident, in bytes, shared pages counted
    for each process. ``read`` and ``written`` are bytes from and to storage, of the processes that live.
    """

    cpu_seconds: float
    memory: int
    read: int
    written: int


class FileEvents(Protocol):
    """A queue of events in watched files and directories."""

    def fileno(self) -> int:
        """Return the file descriptor to poll for input."""

    def add(self, path: str, mask: int = MODIFIED) -> int | None:
        """Watch a path. Returns the watch's number, or None if the path cannot be watched."""

    def read(self) -> FileChanges:
        """Return the changes since the last call."""

    def read_names(self) -> list[tuple[int, str]]:
        """Return the changes in watched directories since the last call: watch and name of the entry.

        The watch is -1 if the queue has lost changes.
        """

    def close(self) -> None:
        """Close the queue."""


class FileChanges(NamedTuple):
    """The numbers of the watches whose files have changed, and whether the queue has lost some."""

    watches: set[int]
    overflow: bool
