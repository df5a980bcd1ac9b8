"""What `shunter log` reads: the lines of one job or of several, of all processes or of one rank."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
    """The log of a job, and which of its replicas are wanted."""

    handle: str
    replicas: list[tuple[str, int]]

    def shown_role(self, role: str) -> str:
        """Return the name of a role where several jobs are shown."""
        return f"{parse_app_handle(self.handle).app_id}/{role}"


class LogSources:
    """Reads the logs of jobs, or of one process (``rank``).

    One job is read as it is; lines of several begin with ``ID/ROLE/REPLICA``.

    Attributes:
        code: with several jobs, the exit code for the first one whose log could not be read.
        untimed: schedulers whose logs had no times, although times were requested.
    """

    def __init__(
        self, runner: Runner, jobs: Sequence[LogSource], query: LogQuery, rank: int | None = None
    ) -> None:
        self._runner = runner
        self._query = query
        self._jobs = list(jobs)
        self._filters: dict[str, RankFilter] = {}
        self.code = EXIT_OK
        self.untimed: set[str] = set()
        if query.timed:
            for name in dict.fromkeys(job.handle.partition("://")[0] for job in jobs):
                declared = getattr(runner.scheduler(name), "capabilities", None)
                if declared is not None and not declared.since_until:
                    raise UsageError(
                        f"{name} does not record when lines were written: leave out --timestamps"
                    )
        if rank is not None:
            for job in self._jobs:
                made = RankFilter(rank, job.replicas, runner.describe(job.handle))
                self._filters[job.handle] = made
                job.replicas = made.replicas

    def blocks(self) -> Iterator[LogBlock]:
        """Yield the lines: of several jobs one after the other, or, if they are followed, as they come."""
        if len(self._jobs) == 1:
            yield from self._of(self._jobs[0])
        elif self._query.should_tail:
            yield from self._as_they_come()
        else:
            for job in self._jobs:
                try:
                    yield from self._named(job)
                except (ShunterError, NotImplementedError) as error:
                    self._show(job, error)

    def notes(self) -> Iterator[str]:
        """Yield notes about lines that were left out."""
        for name in sorted(self.untimed):
            yield f"{name} does not report when lines were written: their time is shown as -"
        for handle, made in self._filters.items():
            yield from (f"{handle}: {text}" for text in made.notes())

    def _of(self, job: LogSource) -> Iterator[LogBlock]:
        blocks: Iterable[LogBlock] = self._runner.log_blocks(job.handle, job.replicas, self._query)
        if self._query.timed:
            blocks = self._watched(job.handle.partition("://")[0], blocks)
        made = self._filters.get(job.handle)
        yield from blocks if made is None else made.select(blocks)

    def _named(self, job: LogSource) -> Iterator[LogBlock]:
        for block in self._of(job):
            yield LogBlock(job.shown_role(block.role), block.replica, block.data, block.time_ns)

    def _watched(self, scheduler: str, blocks: Iterable[LogBlock]) -> Iterator[LogBlock]:
        is_timed = is_read = False
        for block in blocks:
            is_timed, is_read = is_timed or bool(block.time_ns), True
            yield block
        if is_read and not is_timed:
            self.untimed.add(scheduler)

    def _as_they_come(self) -> Iterator[LogBlock]:
        waiting: queue.Queue[LogBlock | BaseException | None] = queue.Queue(_WAITING_BLOCKS)

        def pump(job: LogSource, blocks: Iterator[LogBlock]) -> None:
            try:
                for block in blocks:
                    waiting.put(block)
            except (ShunterError, NotImplementedError) as error:
                self._show(job, error)
            except BaseException as error:
                waiting.put(error)
            waiting.put(None)

        for job in self._jobs:
            threading.Thread(target=pump, args=(job, self._named(job)), name="log", daemon=True).start()
        yield from blocks_until_ended(waiting, len(self._jobs))

    def _show(self, job: LogSource, error: ShunterError | NotImplementedError) -> None:
        if isinstance(error, UsageError):  # it is about the words of the command, not about the job
            raise error
        warn(f"the log of {job.handle} cannot be read")
        if isinstance(error, ShunterError):
            show_error(error)
        self.code = self.code or getattr(error, "exit_code", EXIT_BACKEND)


class RankFilter:
    """Finds the lines of one process among those of a job.

    Ranks are counted across the chosen replicas in the job's order, and across the processes of each replica:
    as many as ``--nproc_per_node`` says, or one if no launcher of several processes is recognised.

    Args:
        rank: the process's rank.
        replicas: the replicas among which it is.
        app: the job's definition; None if it is not known: each replica is one process then.

    Attributes:
        replicas: those that may have its lines.

    Raises:
        UsageError: there is no such rank.
    """

    def __init__(self, rank: int, replicas: Sequence[tuple[str, int]], app: AppDef | None) -> None:
        self._rank = rank
        self._local: int | None = None
        self._has_marks = False
        self._unmarked = 0
        roles = {} if app is None else {role.name: role for role in app.roles}
        counts = {name: processes_of(roles[name]) if name in roles else 1 for name, _ in replicas}
        if any(count is None for count in counts.values()):
            self._has_marks = True  # the replicas' first ranks are unknown: only marks identify lines
            self.replicas = list(replicas)
            return
        first = 0
        for name, k in replicas:
            count = counts[name] or 1
            if rank < first + count:
                self._has_marks = count > 1
                self._local = rank - first
                self.replicas = [(name, k)]
                return
            first += count
        raise UsageError(f"there is no rank {rank}", hint=f"The highest is {first - 1}.")

    def select(self, blocks: Iterable[LogBlock]) -> Iterator[LogBlock]:
        """Yield the lines of the process."""
        if not self._has_marks:
            yield from blocks
            return
        for block in blocks:
            lines = [line for line in iter_lines(block.data) if self._is_wanted(line)]
            if block.time_ns:
                lines = [TimedLine.at(block.time_ns, line) for line in lines]
            yield from blocks_of((block.role, block.replica), lines)

    def notes(self) -> Iterator[str]:
        """Yield notes about lines that were left out."""
        if self._unmarked:
            yield (
                f"{self._unmarked} lines do not say which process wrote them; they are not shown as rank "
                f"{self._rank}'s"
            )

    def _is_wanted(self, line: bytes) -> bool:
        rank, local = mark_of(line)
        if rank is not None:
            return rank == self._rank
        if local is not None and self._local is not None:
            return local == self._local
        self._unmarked += 1
        return False


def mark_of(line: bytes) -> tuple[int | None, int | None]:
    """Return which process a line names as its writer: the rank in the job, and in its node."""
    rank: int | None = None
    local: int | None = None
    at = 0
    while found := _MARK.match(line, at):
        if number := found["rank"] or found["mpi"]:
            rank = int(number[:9])
        else:
            local = int(found["local"][:9])
        at = found.end()
    return rank, local


def processes_of(role: Role) -> int | None:
    """Return how many processes a replica of a role has; None if it has several, of unknown number."""
    document = (role.metadata or {}).get(METADATA_KEY)
    distribution = document.get("distribution") if isinstance(document, dict) else None
    if isinstance(distribution, dict):
        count = distribution.get("processes_per_host")
        return count if isinstance(count, int) and count > 0 else None
    words = " ".join([role.entrypoint, *role.args])
    found = _NPROC.search(words)
    if found is not None:
        return int(found[1]) if found[1].isdecimal() and int(found[1]) else None
    return None if _LAUNCHERS.search(words) else 1
