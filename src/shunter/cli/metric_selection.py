"""The metrics of the jobs that `metrics` and `plot` are given: their options, and the reading."""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing

from shunter.cli.console import warn
from shunter.cli.job_names import split_target
from shunter.cli.parser import complete_with
from shunter.cli.units import parse_time
from shunter.metric_search import parse_definitions
from shunter.metrics.reader import MetricReader
from shunter.metrics.series import Series, select
from shunter.runner import Runner
from shunter.runner.jobsearch import is_pattern

NO_METRICS = (
    'Metrics are read from lines such as `epoch 1: loss=0.31` or {"step": 10, "loss": 0.31}. `--metric loss` '
    "looks for one by its name; for other lines: --metric 'loss=REGEX with (the value) in parentheses'"
)


def add_metric_options(parser: ArgumentParser, more_help: str) -> None:
    """Add the jobs, with this help, and the options that say where to look for metrics."""
    targets = parser.add_argument("targets", nargs="*", metavar="HANDLE[/ROLE[/0,1]]", help=more_help)
    complete_with(targets, "job_completer")
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
    """The metrics of one job.

    Args:
        target: the job, optionally with a role and replicas.
        args: the parsed options of `add_metric_options`.
        names: names of metrics to look for in the text of the log, if the job has no others.
        patterns: return only metrics whose names match one of these; all if there are none.
        follow: whether `update` will be called again and again.

    Attributes:
        handle: the job.
        label: what it is called in tables and legends.
        replicas: the replicas that are named; empty for all.
    """

    def __init__(
        self,
        runner: Runner,
        target: str,
        args: Namespace,
        names: Sequence[str] = (),
        patterns: Sequence[str] = (),
        follow: bool = False,
    ) -> None:
        job, self.replicas = split_target(target)
        self.handle = runner.resolve_handle(job)
        self.label = self.handle.rpartition("/")[2]
        self._patterns = patterns
        self._since = parse_time(args.since).timestamp() if args.since else None
        self._problems: set[str] = set()
        self._reader = MetricReader(
            runner,
            self.handle,
            definitions=parse_definitions(args.metric),
            asked=[name for name in (*names, *patterns) if not is_pattern(name)],
            discovers=True,
            files=args.files,
            follow=follow,
        )

    def close(self) -> None:
        """End the reading."""
        self._reader.close()

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

    def by_name(self) -> dict[str, list[Series]]:
        """Return the series of each metric, by replica, in order."""
        return select(self._reader.by_name(), self._patterns, self.replicas, self._since)

    def series(self) -> Iterator[Series]:
        """Yield the series of all metrics."""
        for several in self.by_name().values():
            yield from several


@contextlib.contextmanager
def job_metrics(
    runner: Runner,
    args: Namespace,
    *,
    names: Sequence[str] = (),
    patterns: Sequence[str] = (),
    follow: bool = False,
) -> Iterator[list[JobMetrics]]:
    """Yield the metrics of the jobs in ``args.targets``, by default the latest; see `JobMetrics`."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(closing(JobMetrics(runner, target, args, names, patterns, follow)))
            for target in args.targets or ["-"]
        ]
