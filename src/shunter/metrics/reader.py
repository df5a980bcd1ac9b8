"""Reading the metrics of a job on any scheduler: once, or repeatedly while it runs.

A `MetricReader` that follows a job has a thread that follows its log, as `shunter log -f` does; an update
reads what the thread has received.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from shunter._toolkit.log_end import without_prefix
from shunter._toolkit.usage_log import without_usage
from shunter.errors import StateStoreError, UnknownAppException
from shunter.metric_search import MetricSearch, lines_of, lines_with
from shunter.metrics.json_lines import LONGEST_PREFIX, find_objects
from shunter.metrics.result_files import ResultFiles
from shunter.metrics.series import LOG, MetricTable, Series, select
from shunter.metrics.stored_results import StoredResults
from shunter.metrics.undeclared import UndeclaredMetrics
from shunter.metrics.usage import PREFIX, UsageMetrics
from shunter.runner import Runner
from shunter.runner.records import JobRecord
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.responses import LogBlock, LogQuery, ReplicaUsage
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState, AppStatus, is_terminal
from shunter.specs.training import local_path, specification

#: A metric with this name is the step of the others.
STEP = "step"
#: How many seconds to wait for more of the log of a job that has ended.
_PATIENCE = 5.0
#: How many blocks of a followed log wait to be read.
_WAITING_BLOCKS = 16
#: Seconds that an update waits for the thread that fills them again, and for how many seconds it does so.
#: Without that, each update would read those few lines only.
_QUIET, _MOST_WAITING = 0.05, 1.0
#: Bytes that are read for each of the last lines of a log, at most.
_LINE_BYTES = 400
#: Bytes of logs in which metrics are looked for that nobody has named.
MOST_SEARCHED = 64 << 20


def read(
    runner: Runner,
    handle: str,
    names: Sequence[str] | None = None,
    since: float | None = None,
    definitions: Mapping[str, str] | None = None,
) -> dict[str, list[Series]]:
    """Return the metrics that a job has reported so far: by name the series of each replica that reports it.

    Args:
        names: only these metrics; None for all. They are found in the text of the log if nobody declared
            them. With None, a job without any other metrics gives what looks like metrics in the text.
        since: only values from this time on, in seconds since the epoch.
        definitions: names and regular expressions in addition to those of the job; an empty expression
            finds the metric by its name.

    Raises:
        UnknownAppException: there is no such job.
        BackendError: its log cannot be read.
    """
    with MetricReader(runner, handle, names, definitions, discovers=names is None) as reader:
        reader.update()
        return select(reader.by_name(), since=since)


class MetricReader:
    """Reads a job's metrics as they come. A context manager.

    Args:
        names: only these metrics; None for all.
        definitions: names and regular expressions in addition to those of the job; an empty expression
            finds the metric by its name.
        asked: names that are found in the text of the log if the job has no such metric; ``names`` are too.
        discovers: whether to look for metrics in the text of the log if the job has no others.
        files: directories with event files or databases of the job, in addition to its results.
        follow: whether `update` will be called again and again. Without it, the log is read from its
            beginning at each call.
        record: what the history has of the job, if that is known.

    Attributes:
        is_over: whether the job has ended and all of it has been read.
        status: the job's status at the last look.
        problems: what is not complete, and why, in words.
    """

    def __init__(
        self,
        runner: Runner,
        handle: str,
        names: Sequence[str] | None = None,
        definitions: Mapping[str, str] | None = None,
        *,
        asked: Sequence[str] = (),
        discovers: bool = False,
        files: Sequence[str] = (),
        follow: bool = False,
        record: JobRecord | None = None,
    ) -> None:
        self.handle = handle
        self._runner = runner
        self._names = names
        self._follow = follow
        self._folders = list(files)
        self._stored: StoredResults | None = None
        self._record = record or _record_of(runner, handle)
        self.definitions = {**_definitions_of(self._record), **(definitions or {})}
        self._search = MetricSearch(self.definitions.items())
        self._asked = [name for name in (*(names or ()), *asked) if name not in self.definitions]
        self._discovers = discovers and not self.definitions
        self._forget_values()
        self._blocks: queue.Queue[LogBlock | Exception | None] | None = None
        self._unread: Iterator[LogBlock] | None = None
        self._replicas: list[tuple[str, int]] = []
        self._problems: dict[str, None] = {}
        self.is_over = False
        self.status: AppStatus | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading. A thread that follows the log ends with the job or this process."""
        self._blocks = None
        if self._stored is not None:
            self._stored.close()
            self._stored = None

    def _forget_values(self) -> None:
        self._table = MetricTable(self._names)
        self._undeclared = UndeclaredMetrics(self._asked, discovers=self._discovers)
        self._searched_bytes, self._is_searching = 0, self._discovers
        self._steps: dict[tuple[str, int, str], float] = {}
        self._files: dict[str, ResultFiles] = {}
        self._usage = UsageMetrics()

    @property
    def is_reading(self) -> bool:
        """Whether the last update has stopped before the end of what is there."""
        return self._unread is not None

    @property
    def problems(self) -> list[str]:
        """Why metrics are not complete, in words."""
        own = list(self._problems)
        own += self._search.problems
        for files in self._files.values():
            own += files.problems
        own += self._stored.problems if self._stored is not None else []
        if self._table.is_full:
            own.append(f"only the first {MetricTable.MOST_SERIES} series are kept")
        return own

    def update(self, timeout: float = 0.0, most_seconds: float = math.inf) -> bool:
        """Read what is new; returns whether anything was.

        Args:
            timeout: how many seconds to wait for the next line where the log is followed by a thread.
            most_seconds: after how many seconds to stop; the next call goes on from there.

        Raises:
            UnknownAppException: there is no such job.
            BackendError: its log cannot be read.
        """
        if self.is_over:
            return False
        # get the state first: once it says that the job has ended, the log is complete
        self.status = self._runner.status(self.handle)
        if self.status is None and self._record is None:
            raise UnknownAppException(f"there is no job {self.handle}")
        ended = self.status is None or is_terminal(self.status.state) or self.status.state == AppState.UNKNOWN
        is_new = False
        blocks, self._unread = self._unread or self._new_blocks(ended, timeout), None
        deadline = time.monotonic() + most_seconds
        for block in blocks:
            is_new = self._read_block(block) or is_new
            if time.monotonic() >= deadline:
                self._unread = blocks
                break
        for files in self._result_files():
            is_new = files.add_to(self._table) or is_new
        is_new = self._usage.add_to(self._table, self._samples()) or is_new
        self.is_over = ended and self._blocks is None and self._unread is None
        return is_new

    def read_ends(self, replicas: Sequence[tuple[str, int]], lines: int) -> None:
        """Read only the last lines of some replicas' logs: quick, and the job's state is not asked for.

        Raises:
            BackendError: a log cannot be read.
        """
        query = LogQuery(timed=True, last=lines, most_bytes=lines * _LINE_BYTES)
        for block in self._runner.log_blocks(self.handle, replicas, query):
            self._read_block(block)

    def by_name(self) -> dict[str, list[Series]]:
        """Return the series of each metric, without values that restarts of the job have superseded."""
        restarts = max(0, self.status.num_restarts) if self.status is not None else 0
        found = {name: _of_one_source(several) for name, several in self._table.by_name().items()}
        found |= self._undeclared.by_name([name for name in found if not name.startswith(PREFIX)])
        return {name: [each.progress(restarts) for each in several] for name, several in found.items()}

    def _samples(self) -> Iterator[ReplicaUsage]:
        parsed = parse_app_handle(self.handle)
        return (
            self._runner.scheduler(parsed.scheduler_backend)
            .details(parsed.app_id)
            .usage(self._usage.last_time)
        )

    def _result_files(self) -> Iterator[ResultFiles]:
        """Yield the directories that may hold files with metrics."""
        results = self.status.results if self.status is not None else None
        folder = local_path(results or "")
        if results and results.startswith("s3://"):
            folder = self._copy_of(results)
        elif results and not folder:
            self._problems[f"metrics in files of {results} are not read: fetch them, and use --files"] = None
        for root in [*self._folders, *([folder] if folder else [])]:
            if root not in self._files:
                self._files[root] = ResultFiles(root, self._replicas)
            yield self._files[root]

    def _copy_of(self, uri: str) -> str:
        """Return a local directory with a copy of what is in S3 now."""
        if self._stored is None:
            cfg = self._record.cfg if self._record is not None else {}
            self._stored = StoredResults(uri, AwsSession(cfg.get("region"), cfg.get("profile")))
        has_ended = self.status is None or is_terminal(self.status.state)
        self._stored.refresh(at_once=has_ended)
        return self._stored.folder

    # ---- lines

    def _new_blocks(self, ended: bool, timeout: float) -> Iterator[LogBlock]:
        if not self._replicas:
            self._replicas = self._runner.replicas(self.handle)
        if self._blocks is None:
            self._forget_values()
        if self._blocks is None and (ended or not self._follow):
            query = LogQuery(timed=True)
            yield from self._runner.log_blocks(self.handle, self._replicas, query, with_usage=True)
            return
        yield from self._followed(ended, timeout)

    def _followed(self, ended: bool, timeout: float) -> Iterator[LogBlock]:
        if self._blocks is None:
            self._blocks = queue.Queue(_WAITING_BLOCKS)
            blocks = self._runner.log_blocks(
                self.handle, self._replicas, LogQuery(should_tail=True, timed=True), with_usage=True
            )
            threading.Thread(
                target=_pump, args=(blocks, self._blocks), name="metrics-log", daemon=True
            ).start()
        until = time.monotonic() + _MOST_WAITING
        while True:
            patience = _PATIENCE if ended else timeout
            timeout = _QUIET if time.monotonic() < until else 0.0
            try:
                item = self._blocks.get(timeout=patience) if patience else self._blocks.get_nowait()
            except queue.Empty:
                return
            if item is None:
                self._blocks = None
                return
            if isinstance(item, Exception):
                self._blocks = None
                raise item
            yield item

    def _read_block(self, block: LogBlock) -> bool:
        """Read the metrics of a block of lines; returns whether there were any."""
        is_new = self._usage.add_lines(self._table, block)
        data, place = without_usage(block.data), (block.role, block.replica)
        time_ns = getattr(block, "time_ns", 0) or 0  # plugins may not tell it
        moment = time_ns / 1e9 if time_ns else math.nan
        found: list[tuple[int, str, MetricTable, str, float, float | None]] = []
        self._limit_search(len(data))
        for at, line in self._lines_to_search(data):
            values = [(self._table, *pair) for pair in self._search.values(line)]
            values += self._undeclared.values(line)
            if values:
                rank, _ = without_prefix(line[:LONGEST_PREFIX])
                found += [(at, rank, *value, None) for value in values]
        for at, rank, at_step, numbers in find_objects(data.replace(b"\r", b"\n")):
            found += [(at, rank, self._table, name, value, at_step) for name, value in numbers.items()]
            self._undeclared.discovers = self._is_searching = False
        found.sort(key=lambda each: (each[0], each[3] != STEP))
        for _, rank, table, name, value, step in found:
            if name == STEP:
                self._steps[(*place, rank)] = value
                continue
            if step is None:
                step = self._steps.get((*place, rank))
            table.add(name, place, value, step, moment, rank=rank, source=LOG)
        return bool(found) or is_new

    def _lines_to_search(self, data: bytes) -> Iterator[tuple[int, str]]:
        declared = self._search.names
        if self._is_searching or declared is None:
            return lines_of(data)
        return lines_with([*declared, *self._undeclared.names], data)

    def _limit_search(self, size: int) -> None:
        """Look for more metrics that nobody has named in `MOST_SEARCHED` bytes only: it takes long."""
        self._searched_bytes += size
        if self._is_searching and self._searched_bytes > MOST_SEARCHED:
            self._is_searching = False
            self._undeclared.narrow()
            self._problems[
                f"metrics that nobody has declared were looked for in the first {MOST_SEARCHED >> 20} MiB of "
                "the log; those found there are read in all of it, and others if they are named"
            ] = None


def _of_one_source(several: Sequence[Series]) -> list[Series]:
    """Return one series for each process: a metric that a script both prints and saves counts once."""
    found: dict[tuple[str, int, str], Series] = {}
    for series in several:
        key = (series.role, series.replica, series.rank)
        other = found.get(key)
        if other is None or (not series.counts_values, series.count) > (
            not other.counts_values,
            other.count,
        ):
            found[key] = series
    return list(found.values())


def _pump(blocks: Iterator[LogBlock], target: queue.Queue[LogBlock | Exception | None]) -> None:
    try:
        for block in blocks:
            target.put(block)
    except Exception as error:
        target.put(error)
    target.put(None)


def _record_of(runner: Runner, handle: str) -> JobRecord | None:
    try:
        return runner.history.find(handle)
    except StateStoreError:
        return None


def _definitions_of(record: JobRecord | None) -> dict[str, str]:
    """Return a job's definitions: of ``--metric``, of a training script, of ``metric_definitions``."""
    if record is None:
        return {}
    found: dict[str, str] = {}
    for given in record.cfg.get("metric_definitions") or ():
        found.update(_pairs(given))
    for role in (record.app or {}).get("roles") or ():
        for given in specification(role.get("metadata") or {}).get("metrics") or ():
            found.update(_pairs(given))
    found.update(record.metrics or {})
    return found


def _pairs(given: Any) -> dict[str, str]:
    """Return the names and expressions of ``{"Name", "Regex"}``, ``{"Name"}`` or ``{name: regex}``."""
    if not isinstance(given, dict):
        return {}
    lower = {str(key).lower(): value for key, value in given.items()}
    if "name" in lower and lower.keys() <= {"name", "regex"}:
        return {str(lower["name"]): str(lower.get("regex") or "")}
    return {str(key): str(value or "") for key, value in given.items()}
