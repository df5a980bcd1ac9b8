"""Show the points of a sweep: the values and state of each, and the best by a metric."""

from __future__ import annotations

import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from shunter.cli.console import print_result, table, warn
from shunter.cli.metric_selection import rank
from shunter.cli.parser import Parser, add_handle_argument, add_json_option
from shunter.cli.shown_status import status_of
from shunter.errors import ConfigError, UsageError
from shunter.metrics import MetricReader
from shunter.runner import Runner, get_runner
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState, ReplicaStatus, is_terminal
from shunter.specs.sweep_points import index_of, points_of
from shunter.terminal import clean, format_duration


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
        rows = _point_rows(runner, handle)
        if metric:
            values = _best_values(runner, handle, metric, order)
            for row in rows:
                row["metric"] = values.get(row["point"])
            places = list(values)
            rows.sort(key=lambda row: places.index(row["point"]) if row["point"] in values else len(values))
    print_result(args.json, rows, _lines(rows, metric))


def _point_rows(runner: Runner, handle: str) -> list[dict[str, Any]]:
    """Return the points of a sweep with the states of their replicas, as JSON values.

    Raises:
        ConfigError: the job is not a sweep.
    """
    status = status_of(runner, handle)
    parsed = parse_app_handle(handle)
    app = runner.describe(handle)
    role = next((role for role in (app.roles if app else []) if points_of(role.metadata)), None)
    if role is None:
        raise ConfigError(f"{handle} is not a sweep, so it has no points", hint="`shunter sweep` starts one.")
    details = runner.scheduler(parsed.scheduler_backend).details(parsed.app_id)
    rows = []
    for index, point in enumerate(points_of(role.metadata)):
        replicas = [r for r in status.replicas() if r.role == role.name or r.role.startswith(f"{index}.")]
        replicas = [r for r in replicas if index_of(r.role, r.id) == index]
        # the replica that shows the state of the point: one that has failed, else one that has not ended
        replicas.sort(key=lambda r: (r.state is not AppState.FAILED, is_terminal(r.state)))
        shown = replicas[0] if replicas else ReplicaStatus(index, status.state, role.name)
        rows.append(
            {
                "point": index,
                "replica": f"{shown.role}/{shown.id}",
                "values": point["values"],
                "state": shown.state.name,
                "exit_code": shown.exit_code,
                "reason": shown.reason,
                "directory": details.directory_of(role.name, index),
                "seconds": _seconds(replicas),
            }
        )
    return rows


def _seconds(replicas: Sequence[ReplicaStatus]) -> float | None:
    """Return how long a point has run; None if it has not, or that is not known."""
    starts = [replica.started_at for replica in replicas if replica.started_at is not None]
    ends = [replica.ended_at for replica in replicas if replica.ended_at is not None]
    if not all(is_terminal(replica.state) for replica in replicas):
        ends = [time.time()]
    return max(ends) - min(starts) if starts and ends else None


def _best_values(runner: Runner, handle: str, metric: str, order: str) -> dict[int, float]:
    """Return the best value of a metric of each point that has reported it, the best point first.

    Raises:
        ConfigError: no point has reported the metric.
    """
    with MetricReader(runner, handle, [metric]) as reader:
        reader.update()
        for problem in reader.problems:
            warn(problem)
        values: dict[int, float] = {}
        for series in sorted(reader.by_name().get(metric, []), key=lambda series: rank(series, order)):
            if math.isfinite(rank(series, order)):
                best = series.least if order == "min" else series.greatest
                values.setdefault(index_of(series.role, series.replica), best)
    if not values:
        raise ConfigError(
            f"no point of {handle} has reported the metric {metric!r}",
            hint="It is found by its name in lines such as `loss=0.31` or `epoch 1 loss 0.31`; for others, "
            "use `sweep --metric NAME=REGEX`. `shunter metrics` shows which metrics there are.",
        )
    return values


def _lines(rows: Sequence[dict[str, Any]], metric: str) -> Iterator[str]:
    names = list(rows[0]["values"])
    lines = []
    for row in rows:
        best = "-" if row.get("metric") is None else f"{row['metric']:g}"
        duration = "-" if row["seconds"] is None else format_duration(row["seconds"])
        values = [row["values"].get(name, "") for name in names]
        lines.append(
            [row["replica"], row["state"], duration, *([best] if metric else []), *values, row["reason"]]
        )
    headers = ["REPLICA", "STATE", "TIME", *([metric] if metric else []), *names, "REASON"]
    yield table(list(map(clean, headers)), lines, sys.stdout)
    replica, directory = rows[0]["replica"], rows[0]["directory"]
    if directory:
        yield f"\nEach point has a working directory of its own; that of {replica} is {directory}\n"
