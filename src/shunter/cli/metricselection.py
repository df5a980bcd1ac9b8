"""Which metrics of which jobs `metrics` and `plot` show: the options and the reading that both share."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from shunter.cli.replicaselection import split_target
from shunter.cli.units import parse_time
from shunter.errors import ShunterError
from shunter.metric_search import parse_definitions
from shunter.metrics.reader import MetricReader
from shunter.metrics.series import Series
from shunter.runner import Runner
from shunter.specs.sweep_points import label_of, points_of

_WILD = re.compile(r"[*?\[]")
NO_METRICS = (
    'Metrics are read from lines such as `epoch 1: loss=0.31` or {"step": 10, "loss": 0.31}. `--metric loss` '
    "looks for one by its name; for other lines: --metric 'loss=REGEX with (the value) in parentheses'"
)


def add_selection_options(parser: ArgumentParser) -> None:
    """Add the options that say where to look for metrics."""
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME[=REGEX]",
        help="also read this metric from the log: a name is enough, such as loss; for unusual lines add a "
        "regular expression with the value in parentheses",
    )
    parser.add_argument(
        "--files",
        action="append",
        default=[],
        metavar="DIR",
        help="also read TensorBoard event files and Trackio databases in this directory, such as ./runs",
    )
    parser.add_argument("--since", metavar="TIME", help="only values since then: 10m, 2h, an ISO time")


class JobMetrics:
    """The metrics of one job that are asked for.

    Attributes:
        handle: the job.
        label: what it is called in tables and legends.
        printed: how many values of each series have been printed.
    """

    def __init__(
        self,
        runner: Runner,
        target: str,
        definitions: Mapping[str, str],
        files: Sequence[str],
        names: Sequence[str],
        since: float | None,
        follow: bool,
        filters: bool,
    ) -> None:
        job, self._wanted = split_target(target)
        self.handle = runner.resolve_handle(job)
        self.label = self.handle.rpartition("/")[2]
        self._runner = runner
        self._patterns = names if filters else ()
        self._since = since
        self._reader = MetricReader(
            runner,
            self.handle,
            definitions=definitions,
            asked=[name for name in names if not _WILD.search(name)],
            discovers=True,
            files=files,
            follow=follow,
        )
        self._said: set[str] = set()
        self.printed: dict[tuple[str, str, int, str, str], int] = {}

    def close(self) -> None:
        """End the reader."""
        self._reader.close()

    @property
    def names_replicas(self) -> bool:
        """Whether some of its replicas are asked for by name."""
        return bool(self._wanted)

    def points(self) -> list[str]:
        """Return a label for each point of a sweep; empty if the job is not a sweep."""
        app = self._runner.describe(self.handle)
        found = (points_of(role.metadata) for role in (app.roles if app is not None else []))
        return [label_of(point) for point in next(filter(None, found), [])]

    @property
    def is_over(self) -> bool:
        """Whether no more will come."""
        return self._reader.is_over

    def update(self) -> bool:
        """Read what is new; returns whether anything was."""
        return self._reader.update()

    def new_problems(self) -> list[str]:
        """Return the reasons why metrics are incomplete, each only once."""
        new = [problem for problem in self._reader.problems if problem not in self._said]
        self._said.update(new)
        return [f"{self.label}: {problem}" for problem in new]

    def by_name(self) -> dict[str, list[Series]]:
        """Return the series that are asked for."""
        found = {}
        for name, several in self._reader.by_name().items():
            if self._patterns and not any(fnmatchcase(name, pattern) for pattern in self._patterns):
                continue
            chosen = [each for each in several if self._is_wanted(each)]
            if self._since is not None:
                chosen = [later for each in chosen if (later := each.since(self._since))]
            if chosen:
                found[name] = chosen
        return found

    def _is_wanted(self, series: Series) -> bool:
        return not self._wanted or any(
            series.role == role and (ids is None or series.replica in ids) for role, ids in self._wanted
        )


def job_metrics(
    runner: Runner,
    targets: Sequence[str],
    args: Namespace,
    names: Sequence[str] = (),
    *,
    follow: bool = False,
    filters: bool = True,
) -> list[JobMetrics]:
    """Return the metrics of the jobs that are named.

    Args:
        names: names or patterns of the metrics that are asked for; none for all.
        filters: whether others are left out.
    """
    definitions = parse_definitions(args.metric)
    since = None
    if args.since:
        since = parse_time(args.since).timestamp()
    jobs: list[JobMetrics] = []
    try:
        for target in targets:
            job = JobMetrics(runner, target, definitions, args.files, names, since, follow, filters)
            jobs.append(job)
    except ShunterError:
        for job in jobs:
            job.close()
        raise
    return jobs
