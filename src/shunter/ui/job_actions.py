"""What pages do to jobs: cancel, repeat or delete those that were selected, or all that match a filter."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import sys
from collections import OrderedDict

from shunter.errors import ShunterError, UsageError, described
from shunter.redaction import redact_text
from shunter.runner import Runner
from shunter.runner.jobsearch import REFUSED_STATE, JobFilter
from shunter.runner.records import SETTLED_STATES
from shunter.specs.status import AppState
from shunter.ui.runner_pool import HISTORY, OPEN_STATES, RunnerPool

#: A job, what went wrong, and the job that was made.
Result = tuple[str, str, str]

ACTIONS = {"cancel": "Cancel", "rerun": "Rerun", "delete": "Delete"}
#: States of the jobs that an action on all is for: those that have ended need not be stopped.
_FOR_STATES = {"cancel": OPEN_STATES, "delete": frozenset(SETTLED_STATES)}
#: Seconds that ending some jobs may take.
PATIENCE = 60.0
#: Jobs that are repeated at once: each takes a process.
MOST_RERUNS = 200
#: Jobs that are asked for at a time, read from the history at a time; results and runs that are kept.
AT_A_TIME, READ_AT_A_TIME, MOST_RESULTS, MOST_RUNS = 50, 500, 200, 20


class ActionRun:
    """An action on many jobs that goes on while pages show how far it is.

    Attributes:
        done, failed: how many jobs have been handled, and for how many of those the action failed.
        results: the first results of jobs that failed, and of jobs from which a new one was created.
        is_over: whether it has ended.
    """

    def __init__(self, action: str, handles: list[str]) -> None:
        self.id = secrets.token_hex(8)
        self.action = action
        self.handles = handles
        self.done = self.failed = 0
        self.results: list[Result] = []
        self.is_over = False

    def add(self, results: list[Result]) -> None:
        """Record the results for some jobs."""
        self.done += len(results)
        self.failed += sum(1 for _, wrong, _ in results if wrong)
        kept = [result for result in results if result[1] or result[2]]
        self.results += kept[: MOST_RESULTS - len(self.results)]


class JobActions:
    """Acts on jobs; each action is one of `ACTIONS`."""

    def __init__(self, pool: RunnerPool) -> None:
        self._pool = pool
        self._runs: OrderedDict[str, ActionRun] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def act(self, action: str, handles: list[str], arguments: str = "") -> list[Result]:
        """Act on some jobs, wait for the results, and return them.

        Args:
            arguments: of a rerun, what replaces arguments of the same name, or is added; as a shell has it.

        Raises:
            UsageError: the arguments cannot be read.
        """
        if action != "rerun":
            return await self._cancel_or_delete(action, handles)
        try:
            words = shlex.split(arguments)
        except ValueError as error:
            raise UsageError(f"cannot read the arguments {arguments[:200]!r}: {error}") from None
        return await self._rerun(handles, ["--", *words] if words else [])

    async def matching(self, action: str, wanted: JobFilter, until: int | None) -> tuple[int, int]:
        """Return how many of the matching jobs an action applies to, and the number of the newest of them.

        ``until`` is the number of the newest job that counts; None for all.
        """
        handles, newest = await self._handles(action, wanted, until)
        return len(handles), newest

    async def start(self, action: str, wanted: JobFilter, until: int) -> ActionRun:
        """Begin to act on all jobs that match and are not newer than one.

        Raises:
            UsageError: there are none, or too many.
        """
        handles, _ = await self._handles(action, wanted, until)
        if not handles:
            raise UsageError("no job matches now")
        if action == "rerun" and len(handles) > MOST_RERUNS:
            raise UsageError(
                f"at most {MOST_RERUNS} jobs can be rerun at once, not {len(handles)}",
                hint="Choose fewer by states, scheduler or a pattern.",
            )
        run = ActionRun(action, handles)
        self._runs[run.id] = run
        while len(self._runs) > MOST_RUNS:
            self._runs.popitem(last=False)
        task = asyncio.create_task(self._run(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    def run_of(self, id_: str) -> ActionRun | None:
        """Return an action that was started; None if it is no longer known."""
        return self._runs.get(id_)

    async def _run(self, run: ActionRun) -> None:
        try:
            for begin in range(0, len(run.handles), AT_A_TIME):
                if self._pool.is_closing():
                    return
                some = run.handles[begin : begin + AT_A_TIME]
                for part in [[handle] for handle in some] if run.action == "rerun" else [some]:
                    run.add(await self.act(run.action, part))
        finally:
            run.is_over = True

    async def _handles(self, action: str, wanted: JobFilter, until: int | None) -> tuple[list[str], int]:
        states = _FOR_STATES.get(action, frozenset(AppState.__members__))
        chosen = (set(wanted.states) if wanted.states is not None else set(states)) & states
        wanted.states = chosen - {REFUSED_STATE}
        wanted.refused = False

        def read(runner: Runner) -> tuple[list[str], int]:
            handles: list[str] = []
            newest = offset = 0
            while records := runner.history.select(wanted, READ_AT_A_TIME, offset=offset):
                offset += len(records)
                for record in records:
                    if record.handle and (until is None or record.seq <= until):
                        handles.append(record.handle)
                        newest = max(newest, record.seq)
            return handles, newest

        return await self._pool.ask(HISTORY, read)

    async def _cancel_or_delete(self, action: str, handles: list[str]) -> list[Result]:
        groups: dict[str, list[str]] = {}
        for handle in handles:
            groups.setdefault(handle.partition("://")[0], []).append(handle)

        async def end(lane: str, some: list[str]) -> list[Result]:
            try:
                found = await self._pool.ask(
                    lane,
                    lambda runner: (
                        runner.cancel_many(some) if action == "cancel" else runner.delete_many(some)
                    ),
                    PATIENCE,
                )
            except (ShunterError, NotImplementedError, OSError) as error:
                return [(handle, redact_text(described(error)), "") for handle in some]
            return [
                (handle, redact_text(error.message) if error else "", "") for handle, error in found.items()
            ]

        groups_of_results = await asyncio.gather(*(end(lane, some) for lane, some in groups.items()))
        return [result for results in groups_of_results for result in results]

    async def _rerun(self, handles: list[str], changes: list[str]) -> list[Result]:
        """Repeat jobs, each by a process, since it has to be in the directory of the job."""
        results = []
        for handle in handles:
            code, out, problem_text = await run_shunter("rerun", "--detach", handle, *changes)
            made = out.strip().splitlines()
            if code == 0 and made:
                results.append((handle, "", made[-1]))
            else:
                results.append((handle, problem_text.strip() or "no answer", ""))
        return results


async def run_shunter(*words: str) -> tuple[int, str, str]:
    """Run a command of shunter; returns its exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "shunter", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, problems = await process.communicate()
    return process.returncode or 0, out.decode("utf-8", "replace"), problems.decode("utf-8", "replace")
