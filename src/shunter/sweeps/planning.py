"""Sweeps: a component with several values of some arguments becomes one job, a replica for each point.

The scheduler runs the replicas independently (`Capabilities.arrays`): as an array where the backend has them.
Where it cannot, or where points differ in more than arguments, each is a job: `sweeps.point_jobs`.
"""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shunter.components.component import Component
from shunter.errors import ConfigError, ShunterError, UsageError
from shunter.runner.api import Runner
from shunter.schedulers.api import Scheduler
from shunter.specs.app import AppDef, RetryPolicy, Role
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import as_mapping
from shunter.specs.serialize import to_json
from shunter.specs.submission import Submission
from shunter.specs.substitution import macros
from shunter.specs.sweep_points import MOST_BYTES, label_of, points_of
from shunter.specs.sweep_points import Point as Point
from shunter.specs.training import METADATA_KEY as TRAIN_KEY
from shunter.specs.training import SWEEP_KEY
from shunter.specs.workspace import Workspace
from shunter.sweeps.point_jobs import PointJobsPlan
from shunter.system.processes import usable_cpus

MOST_POINTS = 10_000
MOST_PROBLEMS = 5
_RANGE = re.compile(r"(-?\d{1,15})\.\.(-?\d{1,15})(?:\.\.(\d{1,15}))?")
_ASSIGNMENT = re.compile(r"[+~]{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_OPENING, _CLOSING = "([{", ")]}"


# ---- the points


def grid(axes: Mapping[str, Iterable[Any]], **fixed: Any) -> list[Point]:
    """Return the points of a grid, for `run_sweep`; the last axis varies fastest.

    Args:
        axes: values by parameter of the component.
        fixed: parameters with one value for all points.
    """
    lists = {name: list(values) for name, values in axes.items()}
    _check_number(lists)
    chosen = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    return [Point({name: str(value) for name, value in each.items()}, {**fixed, **each}) for each in chosen]


def points_from_words(
    component: Component, words: Sequence[str], sample: int | None, seed: int
) -> list[Point]:
    """Return the points that a command line describes.

    Values of options (``--lr 1e-3,1e-4``, ``--lr=1e-3,1e-4``) and of assignments (``lr=1e-3,1e-4``) are
    lists, see `values_of`. Those of parameters that are lists or dicts themselves are left alone.

    Raises:
        UsageError: nothing varies, an option's values are given twice, or there are too many points.
    """
    axes: dict[int, tuple[str, str, list[str]]] = {}
    for index, name, before, value in _values(component, words):
        found = values_of(value)
        if found != [value]:
            axes[index] = (name, before, found)
    names = [name for name, _, values in axes.values() if len(values) > 1]
    if not names:
        raise UsageError(
            "nothing varies: no option has several values",
            hint="Write them with commas, or a range: --lr 1e-3,1e-4 --seed 0..9",
        )
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"the values of {name} are given {names.count(name)} times",
                hint=f"Give all of them at once: --{name} A,B,C",
            )
    total = _check_number({index: values for index, (_, _, values) in axes.items()}, sample)
    chosen: Iterable[int] = range(total)
    if sample is not None and sample < total:
        generator, numbers = random.Random(seed), set[int]()
        while len(numbers) < sample:  # `sample` takes no range of more than 2^63 numbers
            numbers.add(generator.randrange(total))
        chosen = sorted(numbers)
    return [_point(words, axes, number) for number in chosen]


def _point(words: Sequence[str], axes: Mapping[int, tuple[str, str, list[str]]], number: int) -> Point:
    """Return a point of the grid by its number, in which the last axis varies fastest."""
    own, values = list(words), {}
    for index, (name, before, choices) in reversed(list(axes.items())):
        number, position = divmod(number, len(choices))
        own[index] = before + choices[position]
        if len(choices) > 1:
            values[name] = choices[position]
    return Point(dict(reversed(list(values.items()))), own)


def values_of(text: str) -> list[str]:
    """Return the values in a text such as ``1,2`` or ``0..9``.

    Commas separate them, outside of quotes and brackets; quotes around a value are removed. ``0..9`` are all
    whole numbers from 0 to 9, ``0..9..3`` every third; ``@FILE`` is the lines of a file.
    """
    values: list[str] = []
    for item in _split(text):
        found = _RANGE.fullmatch(item)
        if found:
            first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
            if step < 1 or abs(last - first) // step >= MOST_POINTS:
                raise UsageError(f"{item}: a range has from 1 to {MOST_POINTS:,} numbers")
            way = 1 if last >= first else -1
            values += map(str, range(first, last + way, way * step))
        elif len(item) > 1 and item[0] == "@" and os.path.isfile(item[1:]):
            values += _lines_of(item[1:])
        elif len(item) > 1 and item[0] == item[-1] and item[0] in "'\"":
            values.append(item[1:-1])
        else:
            values.append(item)
    return values


def _lines_of(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the values in {path} cannot be read: {error}") from None
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise UsageError(f"there are no values in {path}", hint="Write one value per line.")
    return found


def _split(text: str) -> list[str]:
    items, depth, quote, start = [], 0, "", 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and (position == start or depth):
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth = max(depth - 1, 0)
        elif char == "," and not depth:
            items.append(text[start:position])
            start = position + 1
    if quote or depth:  # not meant as quotes or brackets
        return text.split(",") if quote and not depth else [text]
    return [*items, text[start:]]


def _values(component: Component, words: Sequence[str]) -> Iterable[tuple[int, str, str, str]]:
    """Yield index, name, what precedes it in the word, and text of every value that may be a list."""
    options = None if component.preset else component.options
    index = 0
    while index < len(words):
        word, at = words[index], index
        index += 1
        if word == "--" and options is not None:
            options = None  # the rest is the script's
            continue
        matched = None if options is None else options.match(word)
        if matched is not None or word.startswith("--"):
            parameter, attached = (None, None) if matched is None else matched[:2]
            name, equals, value = word.partition("=")
            before = f"{name}="
            if not equals:
                is_alone = parameter is not None and (parameter.is_flag or attached is not None)
                if is_alone or index == len(words) or words[index].startswith("--"):
                    continue
                at, before, value = index, "", words[index]
                index += 1
            if parameter is None or not parameter.is_repeatable:
                yield at, name.lstrip("-"), before, value
            continue
        if options is not None and options.varargs is not None:
            options = None  # the first word that is not an option begins the rest
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment:
            yield at, assignment[1], word[: assignment.start(2)], assignment[2]


def _check_number(axes: Mapping[Any, Sequence[Any]], sample: int | None = None) -> int:
    total = 1
    for name, values in axes.items():
        if not values:
            raise UsageError(f"{name} has no values")
        total *= len(values)
    if min(total, sample or total) > MOST_POINTS:
        raise UsageError(
            f"the sweep has {total:,} points, and at most {MOST_POINTS:,} are possible",
            hint="Run some of them: --sample N.",
        )
    return total


# ---- one job of all points


@dataclass
class SweepPlan:
    """A sweep that has been checked and not been submitted.

    Attributes:
        info: the request: of the one job, or of the first point where each point is a job.
        parallel: how many points run at a time; None if that is the backend's affair.
        point_jobs: the jobs of the points, in order; None if one job runs them all.
    """

    info: AppDryRunInfo[Any]
    parallel: int | None
    point_jobs: PointJobsPlan | None = None

    def submit(self, runner: Runner) -> str:
        """Submit the sweep; returns its handle.

        Raises:
            StateStoreError: the sweep cannot be recorded; nothing was sent.
            BackendError: the scheduler refused.
        """
        if self.point_jobs is not None:
            return self.point_jobs.submit(runner, self.info)
        return runner.schedule(self.info)


def plan_sweep(
    runner: Runner, submission: Submission, points: Sequence[Point], parallel: int | None = None
) -> SweepPlan:
    """Check all points of a sweep and make the request of its job. Touches nothing.

    Args:
        runner: makes the jobs and the requests.
        submission: what to run, with a component; its arguments come from the points.
        points: as `grid` makes them.
        parallel: how many points run at a time; None for as many as there is room for.

    Raises:
        ConfigError: a point is wrong.
    """
    backend = runner.scheduler(submission.scheduler or runner.default_scheduler())
    submission = replace(submission, scheduler=backend.backend)
    own = [replace(submission, arguments=point.args) for point in points]
    apps = _made(points, [partial(runner.app_of, each) for each in own])
    # if the backend cannot limit how many tasks of an array run at a time, we submit a job for each point
    has_limit = parallel is None or "max_running" in backend.run_opts()
    if not (backend.capabilities.arrays and has_limit) or _difference(points, apps):
        parallel = parallel or jobs_at_a_time(backend, apps[0], submission.options)
        jobs = PointJobsPlan(submission, points, apps, parallel)
        return SweepPlan(jobs.check(runner), parallel, jobs)
    options = array_options(backend, submission.options, parallel)
    info = runner.plan(replace(own[0], app=one_job(points, apps), options=options))
    return SweepPlan(info, getattr(info.request, "max_running", None))


def run_sweep(
    runner: Runner,
    component: str,
    points: Sequence[Point],
    scheduler: str | None = None,
    cfg: Mapping[str, Any] | None = None,
    workspace: Workspace | str | None = None,
    parallel: int | None = None,
) -> str:
    """Submit a sweep: one job, in which each replica runs the component with the arguments of its point.

    Where that is not possible each point is a job, and the handle stands for all of them.

    Args:
        runner: submits it.
        component, scheduler, cfg, workspace: see `Submission`.
        points: as `grid` makes them.
        parallel: how many points run at a time; None for as many as there is room for.

    Raises:
        ConfigError: a point is wrong, or the scheduler refuses such a job; nothing was submitted.
        BackendError: the scheduler refused.
    """
    submission = Submission(
        component=component, scheduler=scheduler or "", options=cfg or {}, workspace=workspace
    )
    return plan_sweep(runner, submission, points, parallel).submit(runner)


def jobs_at_a_time(backend: Scheduler[Any], app: AppDef, options: Any) -> int | None:
    """Return how many jobs like this one this machine's CPUs suffice for; None on other machines.

    Jobs that queue for the machine's CPUs by the option ``slots`` are not limited either.
    """
    if not backend.capabilities.is_local or as_mapping(options).get("slots"):
        return None
    cpus = sum(role.num_replicas * max(role.resource.cpu, 1) for role in app.roles)
    return max(usable_cpus() // cpus, 1)


def array_options(backend: Scheduler[Any], cfg: Any, parallel: int | None) -> dict[str, Any]:
    """Return the options with which a scheduler runs replicas independently."""
    options, known = dict(as_mapping(cfg)), backend.run_opts()
    if "array" in known:
        options["array"] = True
    return options if parallel is None else {**options, "max_running": parallel}


def _difference(points: Sequence[Point], apps: Sequence[AppDef]) -> str:
    """Return why points cannot be the replicas of one job, in words; "" if they can."""
    first = apps[0]
    replicas = sum(role.num_replicas for role in first.roles)
    if replicas != 1:
        return f"a point has {replicas} replicas"
    expected = _without_arguments(first)
    for point, app in zip(points, apps, strict=True):
        found = _without_arguments(app)
        different = [name for name in expected if found.get(name) != expected[name]]
        if different:
            return f"{label_of(vars(point))} has a different {different[0]} than {label_of(vars(points[0]))}"
    return ""


def one_job(points: Sequence[Point], apps: Sequence[AppDef]) -> AppDef:
    """Return one job with a replica for each point, of points whose jobs differ only in arguments.

    Raises:
        ConfigError: their commands are too long.
    """
    first = apps[0]
    role = first.roles[0]
    role.num_replicas = len(points)
    if len(points) > 1:
        role.retry_policy = RetryPolicy.REPLICA
    role.metadata[SWEEP_KEY] = {
        "points": [
            {"values": point.values, "args": _arguments(app.roles[0])}
            for point, app in zip(points, apps, strict=True)
        ]
    }
    size = sum(
        len(word) + 3 for point in points_of(role.metadata) for word in [role.entrypoint, *point["args"]]
    )
    if size > MOST_BYTES:
        raise ConfigError(
            f"the commands of {len(points):,} points have {size:,} characters, and a program can be given "
            f"{MOST_BYTES:,}",
            hint="Make several sweeps, or put what is the same for all points into a file.",
        )
    _separate(role)
    return first


def _separate(role: Role) -> None:
    """Give each replica under the toolkit separate results, so that none overwrites another's."""
    train = role.metadata.get(TRAIN_KEY)
    if train:
        train["name"] = f"{train.get('name') or macros.app_id}-{macros.replica_id}"
        uri = (train.get("checkpoints") or {}).get("uri")
        if uri:
            # with the job's id: the points of another sweep, or of those that failed, have other numbers
            place = f"{uri.rstrip('/')}/{macros.app_id}/{macros.replica_id}"
            train["checkpoints"] = {**train["checkpoints"], "uri": place}


def _made(points: Sequence[Point], makers: Sequence[Callable[[], AppDef]]) -> list[AppDef]:
    apps, problems = [], []
    for point, make in zip(points, makers, strict=True):
        try:
            apps.append(make())
        except ShunterError as error:
            if error.exit_code == 0:  # --help
                raise
            problems.append((label_of(vars(point)), error))
            if len(problems) == len(points) or len(problems) > MOST_PROBLEMS:
                break
    if not problems:
        return apps
    if not apps and len({error.message for _, error in problems}) == 1:  # the points are not at fault
        raise problems[0][1]
    lines = "".join(f"\n  - {label}: {error.message}" for label, error in problems[:MOST_PROBLEMS])
    more = "\n  ..." if len(problems) > MOST_PROBLEMS else ""
    raise ConfigError(
        f"points of the sweep are wrong, so nothing was submitted:{lines}{more}", hint=problems[0][1].hint
    )


def _arguments(role: Role) -> list[str]:
    train = role.metadata.get(TRAIN_KEY)
    return list(train.get("arguments", [])) if train else list(role.args)


def _without_arguments(app: AppDef) -> dict[str, Any]:
    role = to_json(app)["roles"][0]
    train = role["metadata"].get(TRAIN_KEY)
    if train:
        role["metadata"] = {
            **role["metadata"],
            TRAIN_KEY: {key: value for key, value in train.items() if key != "arguments"},
        }
    return {"name of the job": app.name, **{key: value for key, value in role.items() if key != "args"}}
