"""Sweeps: a component with several values of some arguments becomes one job, a replica for each point.

The scheduler runs the replicas independently (`Capabilities.arrays`): as an array where the backend has them.
Where it cannot, or where points differ in more than arguments, each is a job: `sweeps.point_jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shunter.errors import ConfigError, ShunterError
from shunter.runner.api import Runner
from shunter.schedulers.api import Scheduler
from shunter.specs.app import AppDef, RetryPolicy, Role, macros
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import as_mapping
from shunter.specs.serialize import to_json
from shunter.specs.submission import Submission
from shunter.specs.sweep_points import MOST_BYTES, Point, label_of, points_of
from shunter.specs.training import METADATA_KEY as TRAIN_KEY
from shunter.specs.training import SWEEP_KEY
from shunter.specs.workspace import Workspace
from shunter.sweeps.point_jobs import PointJobsPlan
from shunter.system.processes import fitting

MOST_PROBLEMS = 5


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
    return fitting(cpus)


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
    separate_results(role)
    return first


def separate_results(role: Role) -> None:
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
