"""What `shunter log` reads: the lines of one job or of several, of all processes or of one rank."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from shunter.cli.console import show_error, warn
from shunter.errors import EXIT_BACKEND, EXIT_OK, ShunterError, UsageError
from shunter.runner import Runner
from shunter.schedulers.lines import TimedLine, blocks_of, blocks_until_ended, iter_lines
from shunter.schedulers.responses import LogBlock, LogQuery
from shunter.specs.app import AppDef, Role
from shunter.specs.handles import parse_app_handle
from shunter.specs.training import METADATA_KEY

#: How many blocks may wait to be written when several jobs are followed.
_WAITING_BLOCKS = 256
_NPROC = re.compile(r"--nproc[-_]per[-_]node[=\s]+(\S+)")
# Launchers that start several processes, whose number `_NPROC` does not find.
_LAUNCHERS = re.compile(r"(?:^|[\s/])(?:mpirun|mpiexec|accelerate|deepspeed)(?:\s|$)")
# ``[rank3]:`` (PyTorch) and ``[1,3]<stdout>:`` (Open MPI) say which process of the job wrote a line, ``[3]:``
# and ``[default3]:`` (torchrun) which one of its node.
_MARK = re.compile(rb"\[(?:rank(?P<rank>\d+)|\d+,(?P<mpi>\d+)|[A-Za-z_.-]*(?P<local>\d+))\](?:<\w+>)?:\s?")


@dataclass
class LogSource:
    """The log of a job.

    Args:
        handle: the job.
        replicas: the chosen replicas.
        rank: selects the lines of one process; None for all.
        code: exit code of the error with which the reading ended; 0 without one.
    """

    handle: str
    replicas: list[tuple[str, int]]
    rank: RankFilter | None = None
    code: int = EXIT_OK

    def blocks(self, runner: Runner, query: LogQuery) -> Iterator[LogBlock]:
        """Yield the lines.

        Raises:
            UsageError: the scheduler does not know the times that the query asks for.
        """
        name = parse_app_handle(self.handle).scheduler_backend
        capabilities = getattr(runner.scheduler(name), "capabilities", None)
        if query.timed and capabilities is not None and not capabilities.since_until:
            raise UsageError(f"{name} does not record when lines were written: leave out --timestamps")
        blocks = runner.log_blocks(self.handle, self.replicas, query)
        yield from blocks if self.rank is None else self.rank.select(blocks)
        if self.rank is not None and self.rank.unmarked:
            warn(
                f"{self.handle}: {self.rank.unmarked} lines do not say which process wrote them; they are "
                f"not shown as rank {self.rank.number}'s"
            )

    def named_blocks(self, runner: Runner, query: LogQuery) -> Iterator[LogBlock]:
        """Yield the lines with the handle before the role; an error is shown, so that other jobs follow."""
        try:
            for block in self.blocks(runner, query):
                yield replace(block, role=f"{self.handle}/{block.role}")
        except UsageError:  # it is about the words of the command, not about the job
            raise
        except (ShunterError, NotImplementedError) as error:
            warn(f"the log of {self.handle} cannot be read")
            if isinstance(error, ShunterError):
                show_error(error)
            self.code = getattr(error, "exit_code", EXIT_BACKEND)


def log_blocks(runner: Runner, jobs: Sequence[LogSource], query: LogQuery) -> Iterator[LogBlock]:
    """Yield the lines of one job; of several one after the other, or, if they are followed, as they come."""
    if len(jobs) == 1:
        return jobs[0].blocks(runner, query)
    logs = [job.named_blocks(runner, query) for job in jobs]
    if not query.should_tail:
        return chain.from_iterable(logs)
    waiting: queue.Queue[LogBlock | BaseException | None] = queue.Queue(_WAITING_BLOCKS)

    def pump(blocks: Iterator[LogBlock]) -> None:
        outcome: BaseException | None = None
        try:
            for block in blocks:
                waiting.put(block)
        except BaseException as error:
            outcome = error
        waiting.put(outcome)

    for blocks in logs:
        threading.Thread(target=pump, args=(blocks,), name="log", daemon=True).start()
    return blocks_until_ended(waiting, len(logs))


class RankFilter:
    """Finds the lines of one process among those of a job.

    Ranks are counted across the chosen replicas in the job's order, and across the processes of each replica:
    as many as ``--nproc_per_node`` says, or one if no launcher of several processes is recognised.

    Args:
        number: the process's rank.
        replicas: the replicas among which it is.
        app: the job's definition; None if it is not known: each replica is one process then.

    Attributes:
        replicas: those that may have its lines.
        unmarked: how many lines were left out because they do not say which process wrote them.

    Raises:
        UsageError: there is no such rank.
    """

    def __init__(self, number: int, replicas: Sequence[tuple[str, int]], app: AppDef | None) -> None:
        self.replicas = list(replicas)
        self.number = number
        self.unmarked = 0
        self._rank_in_replica: int | None = None
        self._needs_marks = True
        processes = {role.name: _processes_of(role) for role in (app.roles if app is not None else [])}
        first = 0
        counts = [processes.get(name, 1) for name, _ in replicas]
        if None in counts:
            return  # the replicas' first ranks are unknown: only marks identify lines
        for replica, count in zip(replicas, counts, strict=True):
            end = first + (count or 1)
            if number < end:
                self._needs_marks = count != 1
                self._rank_in_replica = number - first
                self.replicas = [replica]
                return
            first = end
        raise UsageError(f"there is no rank {number}", hint=f"The highest is {first - 1}.")

    def select(self, blocks: Iterable[LogBlock]) -> Iterator[LogBlock]:
        """Yield the lines of the process."""
        for block in blocks:
            if not self._needs_marks:
                yield block
                continue
            lines = [line for line in iter_lines(block.data) if self._is_of_rank(line)]
            if block.time_ns:
                lines = [TimedLine.at(block.time_ns, line) for line in lines]
            yield from blocks_of((block.role, block.replica), lines)

    def _is_of_rank(self, line: bytes) -> bool:
        """Tell by the marks at its beginning whether the process wrote a line."""
        rank: bytes | None = None
        local: bytes | None = None
        at = 0
        while mark := _MARK.match(line, at):
            rank, local = mark["rank"] or mark["mpi"] or rank, mark["local"] or local
            at = mark.end()
        if rank is not None:
            return rank == b"%d" % self.number
        if local is not None and self._rank_in_replica is not None:
            return local == b"%d" % self._rank_in_replica
        self.unmarked += 1
        return False


def _processes_of(role: Role) -> int | None:
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
