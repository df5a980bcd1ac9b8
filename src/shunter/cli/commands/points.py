"""Show the points of a sweep: the values and state of each, and the best by a metric."""

from __future__ import annotations

import math
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from shunter.cli.console import out, print_json, table, warn
from shunter.cli.jobstatus import status_of
from shunter.cli.parser import add_handle_argument, add_json_option
from shunter.errors import EXIT_OK, ConfigError, UsageError
from shunter.metrics import MetricReader
from shunter.runner import Runner, get_runner
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState, AppStatus, is_terminal
from shunter.specs.sweep_points import index_of, points_of
from shunter.terminal import clean, format_duration


def add_arguments(parser: ArgumentParser) -> None:
    add_handle_argument(parser)
    parser.add_argument(
        "--best",
        metavar="min:METRIC",
        help="sort by the lowest (min:loss) or highest (max:accuracy) of all values that each point has "
        "reported, which need not be its last",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        rows = point_rows(runner, handle, status_of(runner, handle))
        metric = sort_by_metric(runner, handle, rows, args.best) if args.best else ""
    if args.json:
        print_json(rows)
        return EXIT_OK
    names = list(rows[0]["values"])
    if metric:
        for row in rows:
            row["values"] = {metric: "-" if row["metric"] is None else f"{row['metric']:g}", **row["values"]}
        names.insert(0, metric)
    lines = [
        [
            row["replica"],
            row["state"],
            "-" if row["seconds"] is None else format_duration(row["seconds"]),
            *(row["values"].get(name, "") for name in names),
            row["reason"],
        ]
        for row in rows
    ]
    out(table(("REPLICA", "STATE", "TIME", *map(clean, names), "REASON"), lines, sys.stdout))
    if directory := rows[0]["directory"]:
        out(f"\nEach point has a working directory of its own; that of {rows[0]['replica']} is {directory}\n")
    return EXIT_OK


def sort_by_metric(runner: Runner, handle: str, rows: list[dict[str, Any]], best: str) -> str:
    """Add the best value of a metric to each point, and sort them, the best first; returns the metric's name.

    Raises:
        UsageError: the order cannot be read.
        ConfigError: no point has reported the metric.
    """
    order, _, metric = best.partition(":")
    if order not in ("min", "max") or not metric:
        raise UsageError(
            f"--best: {best!r} is not an order and a metric", hint="Write min:METRIC, or max:METRIC."
        )
    with MetricReader(runner, handle, [metric]) as reader:
        reader.update()
        found = reader.by_name().get(metric, [])
        for problem in reader.problems:
            warn(problem)
    sign = 1 if order == "min" else -1
    values: dict[int, float] = {}
    for series in found:
        value = series.least if order == "min" else series.greatest
        place = index_of(series.role, series.replica)
        if math.isfinite(value) and sign * value < sign * values.get(place, sign * math.inf):
            values[place] = value
    if not values:
        raise ConfigError(
            f"no point of {handle} has reported the metric {metric!r}",
            hint="It is found by its name in lines such as `loss=0.31` or `epoch 1 loss 0.31`; for others, "
            "use `sweep --metric NAME=REGEX`. `shunter metrics` shows which metrics there are.",
        )
    for row in rows:
        row["metric"] = values.get(row["point"])
    rows.sort(key=lambda row: math.inf if row["metric"] is None else sign * row["metric"])
    return metric


def point_rows(runner: Runner, handle: str, status: AppStatus) -> list[dict[str, Any]]:
    """Return the points of a sweep with the states of their replicas, as JSON values.

    Raises:
        ConfigError: the job is not a sweep.
    """
    parsed = parse_app_handle(handle)
    scheduler = runner.scheduler(parsed.scheduler_backend)
    app = runner.describe(handle)
    role = next((role for role in (app.roles if app else []) if points_of(role.metadata)), None)
    if role is None:
        raise ConfigError(f"{handle} is not a sweep, so it has no points", hint="`shunter sweep` starts one.")
    details = scheduler.details(parsed.app_id)
    rows = []
    for index, point in enumerate(points_of(role.metadata)):
        own = [
            each
            for each in status.replicas()
            if (each.role, each.id) == (role.name, index) or each.role.startswith(f"{index}.")
        ]
        own.sort(key=lambda each: (each.state is not AppState.FAILED, is_terminal(each.state)))
        worst = next(iter(own), None)
        starts = [each.started_at for each in own if each.started_at is not None]
        open_ones = [each for each in own if not is_terminal(each.state)]
        ends = [time.time()] if open_ones else [each.ended_at for each in own if each.ended_at is not None]
        rows.append(
            {
                "point": index,
                "replica": f"{role.name}/{index}" if worst is None else f"{worst.role}/{worst.id}",
                "values": point["values"],
                "state": status.state.name if worst is None else worst.state.name,
                "exit_code": None if worst is None else worst.exit_code,
                "reason": "" if worst is None else worst.reason,
                "directory": details.directory_of(role.name, index),
                "seconds": max(ends) - min(starts) if starts and ends else None,
            }
        )
    return rows
