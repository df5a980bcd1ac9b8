"""Metrics in files that a job leaves among its results: event files, Trackio's databases, CSV files.

They are found by name below a directory of this machine. The position in each file is kept, so that the next
read costs only what is new.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from shunter.metrics.event_files import DamagedFile, read_scalars
from shunter.metrics.json_lines import STEPS
from shunter.metrics.series import CSV, TENSORBOARD, TRACKIO, MetricTable

_EVENTS = ".tfevents."
_DATABASES = (".db",)
#: As Lightning, Ultralytics and others call them. Other CSV files are data.
_TABLES = frozenset({"metrics.csv", "results.csv", "progress.csv", "history.csv", "log.csv"})
LARGEST_TABLE = 64 << 20
#: Directories of results that are in every path, and so do not belong to a metric's name.
_USUAL = frozenset(
    {"output", "tensorboard", "trackio", "ml", "opt", "data", "logs", "runs", "lightning_logs"}
)
#: Directories that Lightning and SummaryWriter make for each run, unless they are given a name.
_UNNAMED_RUN = re.compile(r"version_\d+|[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_.+")
#: How many entries of a directory are read.
MOST_ENTRIES = 20_000
DEEPEST = 8
_ROWS = 5_000
#: Longer rows of a database are not read: metrics of one step are shorter.
_LONGEST_ROW = 1 << 20

Place = tuple[str, int]


def has_metrics(path: str) -> bool:
    """Tell whether a file of this name may hold metrics."""
    name = os.path.basename(path)
    return _EVENTS in name or name.endswith(_DATABASES) or name in _TABLES


class ResultFiles:
    """The files with metrics below a directory.

    Args:
        root: the directory. It need not exist.
        replicas: the job's replicas: one is recognised by ``ROLE-K`` in the path; otherwise it is the first.
    """

    def __init__(self, root: str, replicas: Iterable[Place]) -> None:
        self.root = root
        self._replicas = list(replicas)
        self._by_folder = {f"{role}-{k}": (role, k) for role, k in self._replicas}
        self._position: dict[str, Any] = {}
        self._damaged: set[str] = set()
        self._odd: dict[str, str] = {}  # the first row of a database that cannot be read
        self._problems: list[str] = []

    @property
    def problems(self) -> list[str]:
        """Why metrics are not complete, in words."""
        return [*self._problems, *self._odd.values()]

    def add_to(self, table: MetricTable) -> bool:
        """Add what is new to a table; returns whether anything was."""
        is_new = False
        for path in sorted(self._paths()):
            if path in self._damaged:
                continue
            if _EVENTS in os.path.basename(path):
                is_new = self._add_events(path, table) or is_new
            elif os.path.basename(path) in _TABLES:
                is_new = self._add_table(path, table) or is_new
            else:
                is_new = self._add_rows(path, table) or is_new
        return is_new

    def _paths(self) -> Iterator[str]:
        seen = 0
        pending = [(self.root, 0)]
        while pending:
            folder, depth = pending.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError:  # removed, or never made
                continue
            for entry in entries:
                seen += 1
                if seen > MOST_ENTRIES:
                    self._problem(
                        f"{self.root} holds more than {MOST_ENTRIES} files: only some were looked at"
                    )
                    return
                if entry.is_dir(follow_symlinks=False):
                    if depth < DEEPEST:
                        pending.append((entry.path, depth + 1))
                elif not has_metrics(entry.name):
                    continue
                elif entry.is_file() and not self._leads_out(entry):
                    yield entry.path

    def _leads_out(self, entry: os.DirEntry[str]) -> bool:
        """Tell whether an entry links to a file elsewhere; these are not read, as a job can link to any."""
        if not entry.is_symlink():
            return False
        root = os.path.realpath(self.root)
        return os.path.commonpath([root, os.path.realpath(entry.path)]) != root

    def _place_of(self, path: str) -> tuple[Place, str]:
        """Return the replica that wrote a file, and the run that its folders name, if any."""
        words = os.path.relpath(os.path.dirname(path), self.root).split(os.sep)
        place = self._replicas[0] if self._replicas else ("", 0)
        rest = []
        for word in words:
            if word in self._by_folder:
                place = self._by_folder[word]
            elif word not in _USUAL and word != os.curdir and not _UNNAMED_RUN.fullmatch(word):
                rest.append(word)
        return place, "/".join(rest)

    def _problem(self, text: str) -> None:
        if text not in self._problems:
            self._problems.append(text)

    def _add_events(self, path: str, table: MetricTable) -> bool:
        place, run = self._place_of(path)
        start: int = self._position.get(path, 0)
        offset = start
        try:
            if os.path.getsize(path) == start:
                return False
            for offset, scalars in read_scalars(path, start):
                self._position[path] = offset
                for scalar in scalars:
                    name = f"{run}/{scalar.tag}" if run else scalar.tag
                    table.add(name, place, scalar.value, float(scalar.step), scalar.time, source=TENSORBOARD)
        except DamagedFile as error:
            self._damaged.add(path)
            self._problem(f"{error}: what follows is not read")
        except OSError as error:
            self._problem(f"{path} cannot be read: {error.strerror or error}")
        return offset > start

    def _add_table(self, path: str, table: MetricTable) -> bool:
        """Add the rows of a CSV file with a column for the step, such as Lightning's ``metrics.csv``.

        It is read from its beginning when it has changed: for a new column Lightning writes it again.
        """
        place, run = self._place_of(path)
        known, signature = self._position.get(path, (0, None))
        count = known
        try:
            state = os.stat(path)
            if (state.st_size, state.st_mtime_ns) == signature or state.st_size > LARGEST_TABLE:
                return False
            with open(path, encoding="utf-8", errors="replace", newline="") as file:
                text = file.read()
            whole = text[: text.rfind("\n") + 1]  # the last row may be only partly written
            rows = csv.reader(whole.splitlines())
            names = [name.strip() for name in next(rows, [])]
            step_name = next((name for name in STEPS if name in names), None)
            if step_name is None:
                return False
            for number, row in enumerate(rows):
                count = max(count, number + 1)
                values = {name: _cell(text) for name, text in zip(names, row, strict=False)}
                step = values.pop(step_name)
                for name, value in values.items() if number >= known else ():
                    if value is not None:
                        full = f"{run}/{name}" if run else name
                        table.add(full, place, value, step, source=CSV)
        except (OSError, csv.Error) as error:
            self._problem(f"{path} cannot be read: {error}")
            return False
        self._position[path] = (count, (state.st_size, state.st_mtime_ns))
        return bool(count > known)

    def _add_rows(self, path: str, table: MetricTable) -> bool:
        """Add the rows of a Trackio database.

        Its table ``metrics`` (Trackio 0.43) has an ``id`` that rises, ``timestamp`` as ISO text,
        ``run_name``, ``step`` and, as a JSON object, ``metrics``.
        """
        place, _ = self._place_of(path)
        last, first_run = self._position.get(path, (0, None))
        start = last
        try:
            connection = sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=ro", uri=True, timeout=1.0)
            try:
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_ROW)
                if not _is_trackio(connection):
                    self._damaged.add(path)  # another program's database
                    return False
                query = (
                    "SELECT id, timestamp, run_name, step, metrics FROM metrics"
                    " WHERE id > ? ORDER BY id LIMIT ?"
                )
                connection.text_factory = lambda data: data.decode("utf-8", "replace")
                before = None
                while last != before:
                    before = last
                    for number, stamp, run, step, text in connection.execute(query, (last, _ROWS)):
                        last = int(number)
                        first_run = run if first_run is None else first_run
                        prefix = "" if run == first_run else f"{run}/"
                        try:
                            found = _numbers(text)
                            for name, value in found.items():
                                moment = _seconds(stamp)
                                table.add(prefix + name, place, value, float(step), moment, source=TRACKIO)
                        except (ValueError, TypeError, OverflowError, RecursionError) as error:
                            self._odd.setdefault(path, f"row {number} of {path} is left out: {error}")
            finally:
                connection.close()
        except (sqlite3.Error, ValueError, TypeError) as error:
            self._problem(f"{path} cannot be read: {error}")
        self._position[path] = (last, first_run)
        return bool(last > start)


def _cell(text: str) -> float | None:
    """Return the number in a cell; None if it holds something else."""
    try:
        return float(text)
    except ValueError:
        return None


def _is_trackio(connection: Any) -> bool:
    """Tell whether there is Trackio's table. A view does not count: querying it could take forever."""
    definition = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'metrics'"
    found = connection.execute(definition).fetchone()
    if found is None or not re.match(r"CREATE\s+TABLE\b", str(found[0]), re.IGNORECASE):
        return False
    columns = {row[1] for row in connection.execute("PRAGMA table_info(metrics)")}
    return {"id", "timestamp", "run_name", "step", "metrics"} <= columns


def _numbers(text: str | bytes) -> dict[str, float]:
    """Return the numbers of a row's JSON object.

    Raises:
        ValueError, TypeError, OverflowError, RecursionError: it is not JSON that can be read.
    """
    value = json.loads(text)
    items = value.items() if isinstance(value, dict) else ()
    return {
        str(name): float(number)
        for name, number in items
        if isinstance(number, (int, float)) and not isinstance(number, bool)
    }


def _seconds(stamp: str) -> float:
    try:
        moment = datetime.fromisoformat(re.sub(r"Z$", "+00:00", str(stamp)))
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
