"""The file with what the replicas of a job have used over time: written by executors, read by `metrics`.

It is a sequence of equal records, see `UsageRecord`. It stays below a size: when that is reached, every
second sample is left out, and samples are taken half as often.
"""

from __future__ import annotations

import os
import struct
from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence

from shunter.schedulers.responses import ReplicaUsage

_RECORD = struct.Struct("<dIfd7Q")
#: How large the file may become, in bytes.
LARGEST = 4 << 20
#: Seconds between two samples at first.
INTERVAL = 5.0
#: Samples may take no more than this share of a CPU: with very many replicas they are taken less often.
LARGEST_SHARE = 0.01


class UsageRecord(
    namedtuple(
        "UsageRecord",
        "time replica gpu_percent cpu_seconds memory read written received sent gpu_memory attempt",
    )
):
    """What a replica uses at one point in time.

    ``time`` is in seconds since the epoch, ``replica`` its place among all replicas of the job. Since its
    start it has used ``cpu_seconds``, ``read`` and ``written`` bytes of storage, ``received`` and ``sent``
    bytes of network; the last two are those of its network namespace. ``memory`` and ``gpu_memory`` are bytes
    now, ``gpu_percent`` how busy its GPUs are on average, nan without any. ``attempt`` counts its restarts.
    """

    __slots__ = ()
    time: float
    replica: int
    gpu_percent: float
    cpu_seconds: float
    memory: int
    read: int
    written: int
    received: int
    sent: int
    gpu_memory: int
    attempt: int


class UsageFile:
    """Writes a file of usage records.

    Args:
        path: where.
        interval: seconds between two samples at first.
        largest: how large it may become.
    """

    def __init__(self, path: str, interval: float = INTERVAL, largest: int = LARGEST) -> None:
        self._path = path
        #: Seconds between two samples.
        self.interval = interval
        self._largest = largest

    def pause_after(self, cpu_seconds: float) -> float:
        """Return in how many seconds to take the next sample, after one that took so much of a CPU."""
        return max(self.interval, cpu_seconds / LARGEST_SHARE)

    def append(self, records: Iterable[UsageRecord]) -> None:
        """Append the records of one sample. On a full disk they are left out."""
        data = b"".join(_RECORD.pack(*record) for record in records)
        try:
            with open(self._path, "ab", buffering=0, opener=_private) as file:
                end = file.tell()
                if end + len(data) > self._largest and end:
                    self._thin()
                    self.interval *= 2
                    with open(self._path, "ab", buffering=0) as thinned:
                        thinned.write(data)
                    return
                if file.write(data) < len(data):
                    file.truncate(end)
        except OSError:
            pass

    def _thin(self) -> None:
        """Leave out every second sample."""
        records = read_usage(self._path)[0]
        times = sorted({record.time for record in records})
        kept = frozenset(times[::2])
        partial = self._path + ".new"
        data = b"".join(_RECORD.pack(*record) for record in records if record.time in kept)
        with open(partial, "wb", buffering=0, opener=_private) as file:
            file.write(data)
        os.replace(partial, self._path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def read_usage(path: str, after: float = 0.0) -> tuple[list[UsageRecord], float]:
    """Return the records after a time, and the time of the last one; none if there is no file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return [], after
    whole = data[: len(data) - len(data) % _RECORD.size]
    records = [UsageRecord(*fields) for fields in _RECORD.iter_unpack(whole) if fields[0] > after]
    return records, records[-1].time if records else after


def replica_usage(path: str, replicas: Sequence[tuple[str, int]], after: float) -> Iterator[ReplicaUsage]:
    """Yield the records of a file after a time as schedulers return them.

    Args:
        path: the file.
        replicas: all replicas of the job, in order.
        after: seconds since the epoch.
    """
    for record in read_usage(path, after)[0]:
        if record.replica >= len(replicas):
            continue
        role, k = replicas[record.replica]
        levels = {"memory_bytes": float(record.memory)}
        if record.gpu_percent == record.gpu_percent:
            levels |= {"gpu_percent": record.gpu_percent, "gpu_memory_bytes": float(record.gpu_memory)}
        totals = {
            "cpu": record.cpu_seconds,
            "disk_read": float(record.read),
            "disk_written": float(record.written),
            "network_received": float(record.received),
            "network_sent": float(record.sent),
        }
        yield ReplicaUsage(role, k, record.time, record.attempt, levels, totals)
