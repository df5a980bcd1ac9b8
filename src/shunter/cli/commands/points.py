"""Show the points of a sweep: the state, last metrics and values of each, and the best by a metric."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shunter.cli.console import print_result, table, warn
from shunter.cli.parser import Parser, add_handle_argument, add_json_option
from shunter.cli.shown_status import status_of
from shunter.errors import ConfigError, UsageError
from shunter.metrics import MetricReader
from shunter.metrics.series import best_by_point
from shunter.metrics.usage import PREFIX
from shunter.runner import Runner, get_runner
from shunter.specs.sweep_points import index_of
from shunter.sweeps.point_rows import point_rows
from shunter.terminal import clean, format_duration

#: Metrics whose last values are shown, unless one is named.
MOST_METRICS = 4


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    parser.add_argument(
        "--best",
        metavar="min:METRIC",
        help="sort by the lowest (min:loss) or highest (max:accuracy) of all values that each point has "
        "reported, which need not be its last",
    )
    add_json_option(parser)


def run(args: Namespace) -> None:
    order, _, metric = (args.best or "").partition(":")
    if args.best and (order not in ("min", "max") or not metric):
        raise UsageError(
            f"--best: {args.best!r} is not an order and a metric", hint="Write min:METRIC, or max:METRIC."
        )
    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        rows = point_rows(runner, handle, status_of(runner, handle))
        if metric:
            values = _best_values(runner, handle, metric, order)
            for row in rows:
                row["metric"] = values.get(row["point"])
            places = list(values)
            rows.sort(key=lambda row: places.index(row["point"]) if row["point"] in values else len(values))
            columns = {metric: values}
        else:
            columns = _last_values(runner, handle)
    print_result(args.json, rows, _lines(rows, columns))


def _last_values(runner: Runner, handle: str) -> dict[str, dict[int, float]]:
    """Return the last values of the first metrics of a sweep: by name, by index of the point."""
    with MetricReader(runner, handle, discovers=True) as reader:
        reader.update()
        metrics = [(name, some) for name, some in reader.by_name().items() if not name.startswith(PREFIX)]
    return {
        name: {index_of(series.role, series.replica): series.last for series in several}
        for name, several in metrics[:MOST_METRICS]
    }


def _best_values(runner: Runner, handle: str, metric: str, order: str) -> dict[int, float]:
    """Return the best value of a metric of each point that has reported it, the best point first.

    Raises:
        ConfigError: no point has reported the metric.
    """
    with MetricReader(runner, handle, [metric]) as reader:
        reader.update()
        for problem in reader.problems:
            warn(problem)
        values = best_by_point(reader.by_name().get(metric, []), order)
    if not values:
        raise ConfigError(
            f"no point of {handle} has reported the metric {metric!r}",
            hint="It is found by its name in lines such as `loss=0.31` or `epoch 1 loss 0.31`; for others, "
            "use `sweep --metric NAME=REGEX`. `shunter metrics` shows which metrics there are.",
        )
    return values


def _lines(rows: Sequence[dict[str, Any]], columns: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    names = list(rows[0]["values"])
    lines = []
    for row in rows:
        reported = [values.get(row["point"]) for values in columns.values()]
        shown = ["-" if value is None else f"{value:g}" for value in reported]
        duration = "-" if row["seconds"] is None else format_duration(row["seconds"])
        values = [row["values"].get(name, "") for name in names]
        lines.append([row["replica"], row["state"], duration, *shown, *values, row["reason"]])
    headers = ["REPLICA", "STATE", "TIME", *columns, *names, "REASON"]
    yield table(list(map(clean, headers)), lines, sys.stdout)
    replica, directory = rows[0]["replica"], rows[0]["directory"]
    if directory:
        yield f"\nEach point has its own working directory; that of {replica} is {directory}\n"
