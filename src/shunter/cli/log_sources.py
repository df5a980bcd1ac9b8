"""What `shunter log` reads: the lines of one job or of several, of all processes or of one rank."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shunter.cli.console import show_error, warn
from shunter.cli.log_rank import RankFilter
from shunter.errors import EXIT_BACKEND, EXIT_OK, ShunterError, UsageError
from shunter.runner import Runner
from shunter.schedulers.lines import blocks_until_ended
from shunter.schedulers.responses import LogBlock, LogQuery
from shunter.specs.handles import parse_app_handle

#: How many blocks may wait to be written when several jobs are followed.
_WAITING_BLOCKS = 256


@dataclass
class LogSource:
    """The log of a job: the chosen replicas, and the filter for one rank, if there is one."""

    handle: str
    replicas: list[tuple[str, int]]
    rank: RankFilter | None = None

    def shown_role(self, role: str) -> str:
        """Return the name of a role where several jobs are shown."""
        return f"{parse_app_handle(self.handle).app_id}/{role}"


class LogSources:
    """Reads the logs of jobs, or of one process (``rank``).

    One job is read as it is; lines of several begin with ``ID/ROLE/REPLICA``.

    Attributes:
        code: with several jobs, the exit code for the first one whose log could not be read.

    Raises:
        UsageError: there is no such rank, or a scheduler does not know the times that the query asks for.
    """

    def __init__(
        self, runner: Runner, jobs: Sequence[LogSource], query: LogQuery, rank: int | None = None
    ) -> None:
        self._runner = runner
        self._query = query
        self._jobs = jobs
        self.code = EXIT_OK
        for job in jobs:
            if query.timed:
                self._check_times(parse_app_handle(job.handle).scheduler_backend)
            if rank is not None:
                job.rank = RankFilter(rank, job.replicas, runner.describe(job.handle))
                job.replicas = job.rank.replicas

    def _check_times(self, scheduler: str) -> None:
        capabilities = getattr(self._runner.scheduler(scheduler), "capabilities", None)
        if capabilities is not None and not capabilities.since_until:
            raise UsageError(f"{scheduler} does not record when lines were written: leave out --timestamps")

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
                except UsageError:  # it is about the words of the command, not about the job
                    raise
                except (ShunterError, NotImplementedError) as error:
                    self._show(job, error)

    def warn_of_unmarked(self) -> None:
        """Print how many lines do not say which rank wrote them, and were left out."""
        for job in self._jobs:
            if job.rank is not None and job.rank.unmarked:
                warn(
                    f"{job.handle}: {job.rank.unmarked} lines do not say which process wrote them; they are "
                    f"not shown as rank {job.rank.number}'s"
                )

    def _of(self, job: LogSource) -> Iterator[LogBlock]:
        blocks = self._runner.log_blocks(job.handle, job.replicas, self._query)
        yield from blocks if job.rank is None else job.rank.select(blocks)

    def _named(self, job: LogSource) -> Iterator[LogBlock]:
        for block in self._of(job):
            yield LogBlock(job.shown_role(block.role), block.replica, block.data, block.time_ns)

    def _as_they_come(self) -> Iterator[LogBlock]:
        waiting: queue.Queue[LogBlock | BaseException | None] = queue.Queue(_WAITING_BLOCKS)

        def pump(job: LogSource, blocks: Iterator[LogBlock]) -> None:
            try:
                for block in blocks:
                    waiting.put(block)
            except UsageError as error:
                waiting.put(error)
            except (ShunterError, NotImplementedError) as error:
                self._show(job, error)
            except BaseException as error:
                waiting.put(error)
            waiting.put(None)

        for job in self._jobs:
            threading.Thread(target=pump, args=(job, self._named(job)), name="log", daemon=True).start()
        yield from blocks_until_ended(waiting, len(self._jobs))

    def _show(self, job: LogSource, error: ShunterError | NotImplementedError) -> None:
        warn(f"the log of {job.handle} cannot be read")
        if isinstance(error, ShunterError):
            show_error(error)
        self.code = self.code or getattr(error, "exit_code", EXIT_BACKEND)
