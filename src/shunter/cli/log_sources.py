"""What `shunter log` reads: the lines of one job or of several, of all processes or of one rank."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

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

    def shown_role(self, role: str) -> str:
        """Return the name of a role where several jobs are shown."""
        return f"{parse_app_handle(self.handle).app_id}/{role}"

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
        """Yield the lines with the job's id in the role; an error is shown, so that other jobs follow."""
        try:
            for block in self.blocks(runner, query):
                yield LogBlock(self.shown_role(block.role), block.replica, block.data, block.time_ns)
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
    return _as_they_come(logs) if query.should_tail else chain.from_iterable(logs)


def _as_they_come(logs: Sequence[Iterator[LogBlock]]) -> Iterator[LogBlock]:
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
