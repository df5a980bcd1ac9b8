"""`log --rank`: the lines of one process among those of a job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from shunter.errors import UsageError
from shunter.schedulers.lines import TimedLine, blocks_of, iter_lines
from shunter.schedulers.responses import LogBlock
from shunter.specs.app import AppDef, Role
from shunter.specs.training import METADATA_KEY

_NPROC = re.compile(r"--nproc[-_]per[-_]node[=\s]+(\S+)")
# Launchers that start several processes, whose number `_NPROC` does not find.
_LAUNCHERS = re.compile(r"(?:^|[\s/])(?:mpirun|mpiexec|accelerate|deepspeed)(?:\s|$)")
# ``[rank3]:`` (PyTorch) and ``[1,3]<stdout>:`` (Open MPI) say which process of the job wrote a line, ``[3]:``
# and ``[default3]:`` (torchrun) which one of its node.
_MARK = re.compile(rb"\[(?:rank(?P<rank>\d+)|\d+,(?P<mpi>\d+)|[A-Za-z_.-]*(?P<local>\d+))\](?:<\w+>)?:\s?")


class RankFilter:
    """Finds the lines of one process among those of a job.

    Ranks are counted across the chosen replicas in the job's order, and across the processes of each replica:
    as many as ``--nproc_per_node`` says, or one if no launcher of several processes is recognised.

    Args:
        rank: the process's rank.
        replicas: the replicas among which it is.
        app: the job's definition; None if it is not known: each replica is one process then.

    Attributes:
        number: the rank.
        replicas: those that may have its lines.
        unmarked: how many lines were left out because they do not say which process wrote them.

    Raises:
        UsageError: there is no such rank.
    """

    def __init__(self, rank: int, replicas: Sequence[tuple[str, int]], app: AppDef | None) -> None:
        self.replicas = list(replicas)
        self.number = rank
        self.unmarked = 0
        self._rank_in_replica: int | None = None
        self._needs_marks = True
        roles = {} if app is None else {role.name: role for role in app.roles}
        first = 0
        counts = {name: processes_of(roles[name]) if name in roles else 1 for name, _ in replicas}
        if None in counts.values():
            return  # the replicas' first ranks are unknown: only marks identify lines
        for name, k in replicas:
            count = counts[name] or 1
            if rank < first + count:
                self._needs_marks = count > 1
                self._rank_in_replica = rank - first
                self.replicas = [(name, k)]
                return
            first += count
        raise UsageError(f"there is no rank {rank}", hint=f"The highest is {first - 1}.")

    def select(self, blocks: Iterable[LogBlock]) -> Iterator[LogBlock]:
        """Yield the lines of the process."""
        if not self._needs_marks:
            yield from blocks
            return
        for block in blocks:
            lines = [line for line in iter_lines(block.data) if self._is_of_rank(line)]
            if block.time_ns:
                lines = [TimedLine.at(block.time_ns, line) for line in lines]
            yield from blocks_of((block.role, block.replica), lines)

    def _is_of_rank(self, line: bytes) -> bool:
        rank, local = mark_of(line)
        if rank is not None:
            return rank == self.number
        if local is not None and self._rank_in_replica is not None:
            return local == self._rank_in_replica
        self.unmarked += 1
        return False


def mark_of(line: bytes) -> tuple[int | None, int | None]:
    """Return which process a line names as its writer: the rank in the job, and in its node."""
    rank: int | None = None
    local: int | None = None
    at = 0
    while mark := _MARK.match(line, at):
        if number := mark["rank"] or mark["mpi"]:
            rank = int(number[:9])
        else:
            local = int(mark["local"][:9])
        at = mark.end()
    return rank, local


def processes_of(role: Role) -> int | None:
    """Return how many processes a replica of a role has; None if it has several, of unknown number."""
    document = (role.metadata or {}).get(METADATA_KEY)
    distribution = document.get("distribution") if isinstance(document, dict) else None
    if isinstance(distribution, dict):
        count = distribution.get("processes_per_host")
        return count if isinstance(count, int) and count > 0 else None
    words = " ".join([role.entrypoint, *role.args])
    option = _NPROC.search(words)
    if option is not None:
        return int(option[1]) if option[1].isdecimal() and int(option[1]) else None
    return None if _LAUNCHERS.search(words) else 1
