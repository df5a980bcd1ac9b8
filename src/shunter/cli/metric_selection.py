"""The metrics of the jobs that `metrics` and `plot` are given: their options, and the reading."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator, Sequence

from shunter.cli.console import warn
from shunter.cli.job_names import split_target
from shunter.cli.parser import Parser, parse_time
from shunter.metric_search import parse_definitions
from shunter.metrics.reader import MetricReader
from shunter.metrics.series import Series, select
from shunter.runner import Runner
from shunter.runner.jobsearch import is_pattern

NO_METRICS = (
    'Metrics are read from lines such as `epoch 1: loss=0.31` or {"step": 10, "loss": 0.31}. `--metric loss` '
    "looks for one by its name; for other lines: --metric 'loss=REGEX with (the value) in parentheses'"
)


def add_metric_options(parser: Parser, more_help: str) -> None:
    """Add the jobs, with this help, and the options that say where to look for metrics."""
    parser.add_argument(
        "targets", nargs="*", metavar="HANDLE[/ROLE[/0,1]]", help=more_help, completer="job_completer"
    )
    parser.add_repeated(
        "--metric",
        metavar="NAME[=REGEX]",
        help="also read this metric from the log: a name is enough, such as loss; for unusual lines add a "
        "regular expression with the value in parentheses",
    )
    parser.add_repeated(
        "--files",
        metavar="DIR",
        help="also read event files, Trackio databases and CSV files of metrics in this "
        "directory, such as ./runs",
    )
    parser.add_argument("--since", metavar="TIME", help="only values since then: 10m, 2h, an ISO time")


class JobMetrics:
    """The metrics of one job, read with the parsed options of `add_metric_options`.

    Attributes:
        handle: the job.
        label: what it is called in tables and legends.
        replicas: the replicas that are named; empty for all.
    """

    def __init__(
        self, runner: Runner, target: str, args: Namespace, names: Sequence[str], *, follow: bool
    ) -> None:
        job, self.replicas = split_target(target)
        self.handle = runner.resolve_handle(job)
        self.label = self.handle.rpartition("/")[2]
        self._since = parse_time(args.since).timestamp() if args.since else None
        self._problems: set[str] = set()
        self._reader = MetricReader(
            runner,
            self.handle,
            definitions=parse_definitions(args.metric),
            asked=[name for name in names if not is_pattern(name)],
            discovers=True,
            files=args.files,
            follow=follow,
        )
        self.close = self._reader.close

    @property
    def is_over(self) -> bool:
        """Whether no more will come."""
        return self._reader.is_over

    def update(self) -> None:
        """Read what is new, and warn once of each reason why it is incomplete."""
        self._reader.update()
        for problem in self._reader.problems:
            if problem not in self._problems:
                self._problems.add(problem)
                warn(f"{self.label}: {problem}")

    def by_name(self, patterns: Sequence[str] = ()) -> dict[str, list[Series]]:
        """Return the series of each metric, by replica, in order; with patterns, of those that match."""
        return select(self._reader.by_name(), patterns, self.replicas, self._since)


@contextlib.contextmanager
def job_metrics(
    runner: Runner, args: Namespace, names: Sequence[str], *, follow: bool = False
) -> Iterator[list[JobMetrics]]:
    """Yield the metrics of the jobs in ``args.targets``, by default the latest.

    Args:
        names: names of metrics to look for in the text of the log, if a job has no others.
        follow: whether `JobMetrics.update` will be called again and again.
    """
    with contextlib.ExitStack() as stack:
        jobs = []
        for target in args.targets or ["-"]:
            jobs.append(JobMetrics(runner, target, args, names, follow=follow))
            stack.callback(jobs[-1].close)
        yield jobs
