"""Sweeps whose points are separate jobs, not replicas of one: listed, watched and ended together.

Their handles are ``sweep://SESSION/ID``; `PointJobs` answers for them by asking the schedulers of the points.
A directory of the state directory holds the points to submit; the history holds those that were submitted,
with an intent before each submission. So the submitting process may be killed at any time, and another one
continues without losing or repeating a point (`submit_points`). A lock lets one process submit at a time.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from shunter.backoff import polling
from shunter.errors import BackendError, ConfigError, ShunterError, UnknownAppException, described
from shunter.paths import make_private_dir, remove_tree, state_dir
from shunter.redaction import Redactor, missing_secrets_error, redact_text, restore
from shunter.runner.api import Runner
from shunter.runner.observation import reconcile, recorded_status
from shunter.runner.records import INTENT, REFUSED, SUBMITTED, JobRecord
from shunter.runner.rerun import with_code_of
from shunter.runner.submit import intent_of, jsonable, working_in
from shunter.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, not_ended
from shunter.schedulers.ids import make_unique
from shunter.schedulers.lines import check_replicas
from shunter.schedulers.registry import SWEEPS
from shunter.schedulers.responses import Leftover
from shunter.schedulers.supervisor.directories import remove_leftovers, size_of
from shunter.schedulers.supervisor.documents import read_json, write_json
from shunter.specs.app import AppDef, Role
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import make_app_handle, parse_app_handle
from shunter.specs.options import as_mapping
from shunter.specs.serialize import from_json
from shunter.specs.status import NONE, AppState, AppStatus, ReplicaStatus, RoleStatus, is_terminal
from shunter.specs.submission import Submission
from shunter.specs.sweep_points import Point, nothing_failed
from shunter.specs.training import SWEEP_KEY
from shunter.system.locks import is_locked
from shunter.workspace.shipment import Shipment

_OVER = (AppState.UNKNOWN, AppState.UNSUBMITTED)


# ---- submitting


@dataclass
class PointJobsPlan:
    """A sweep whose points are jobs, before its submission.

    Attributes:
        submission: what all points have in common.
        points: the points.
        apps: the job of each.
        parallel: how many run at a time; None for all.
    """

    submission: Submission
    points: Sequence[Point]
    apps: Sequence[AppDef]
    parallel: int | None

    def check(self, runner: Runner) -> AppDryRunInfo[Any]:
        """Check all points by making their requests; returns the first."""
        infos = (
            runner.plan(replace(self.submission, app=app, arguments=point.args))
            for point, app in zip(self.points, self.apps, strict=True)
        )
        first = next(infos)
        for _ in infos:
            pass
        return first

    def submit(self, runner: Runner, first: AppDryRunInfo[Any]) -> str:
        """Save the sweep, submit its first points, and return its handle.

        Where only some may run at a time, a process in the background submits the others.

        Args:
            runner: submits the points.
            first: the request of the first point.
        """
        with working_in(self.submission.directory, self.submission.rerun_of or ""):
            return self._submit(runner, first)

    def _submit(self, runner: Runner, first: AppDryRunInfo[Any]) -> str:
        backend = runner.scheduler(self.submission.scheduler)
        app_id = make_unique(self.apps[0].name)
        folder = _folder(app_id)
        make_private_dir(folder)
        write_json(os.path.join(folder, "sweep.json"), self._to_json(backend))
        handle = make_app_handle(SWEEPS, runner.name(), app_id)
        intent = replace(
            intent_of(backend, first), handle=handle, scheduler=SWEEPS, session=runner.name(), app_id=app_id
        )
        key = runner.history.add_intent(intent)
        runner.history.submitted(key, handle, app_id)
        workspace = self.submission.workspace
        try:
            left = submit_points(runner, app_id, wait=False, workspace=workspace)
        except BaseException as error:
            if isinstance(error, Exception) and not submitted_points(runner, app_id):
                msg = redact_text(described(error))
                runner.history.amend(key, phase=REFUSED, state=AppState.UNSUBMITTED.name, msg=msg)
                remove_tree(folder)
                raise
            if isinstance(error, ShunterError):
                hint = f"{error.hint}\n`shunter sweep --resume {handle}` submits what is missing."
                error.hint = hint.lstrip()
            raise
        if left:
            _feed_in_background(handle)
        return handle

    def _to_json(self, backend: Scheduler[Any]) -> dict[str, Any]:
        """Return what is stored of the sweep, without secrets."""
        submission, redactor = self.submission, Redactor()
        workspace = submission.workspace
        plan = {
            "component": submission.component,
            "scheduler": submission.scheduler,
            "parallel": self.parallel,
            "parent_run_id": submission.parent_run_id,
            "after": submission.after,
            "metrics": submission.metrics and dict(submission.metrics),
            "points": [
                {"values": point.values, "args": point.args, "app": app}
                for point, app in zip(self.points, self.apps, strict=True)
            ],
        }
        return {
            **redactor.json(jsonable(plan)),
            "cfg": redactor.options(jsonable(dict(as_mapping(submission.options))), backend.run_opts()),
            "workspace": None if workspace is None else str(workspace) or None,
            "cwd": os.getcwd(),
        }


def _feed_in_background(handle: str) -> None:
    folder = _folder(parse_app_handle(handle).app_id)
    with open(os.path.join(folder, "submitting.log"), "ab") as log:
        subprocess.run(  # through a shell, so that it is not a child of this process
            [
                "sh",
                "-c",
                '"$@" &',
                "sh",
                sys.executable,
                "-P",
                "-m",
                "shunter",
                "sweep",
                "--resume",
                handle,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )


def submit_points(runner: Runner, app_id: str, *, wait: bool = True, workspace: Any = None) -> int:
    """Submit the points of a sweep that are not submitted yet; returns how many are left.

    If only some may run at a time, ``wait`` says whether to wait until other points have ended. ``workspace``
    is the code, if the sweep begins here.

    Raises:
        UnknownAppException: there is no such sweep.
        BackendError: another process submits its points, or a point was refused.
    """
    plan = _plan(app_id)
    with _alone(app_id), working_in(plan["cwd"], f"the sweep {app_id}"):
        done = submitted_points(runner, app_id)
        todo = [index for index in range(len(plan["points"])) if index not in done]
        running = [record.handle for record in done.values() if not is_terminal(record.state)]
        first = next(iter(done.values()), None)
        for number, index in enumerate(todo):
            if not _await_room(runner, app_id, running, plan["parallel"], wait=wait):
                return 0 if _is_cancelled(app_id) else len(todo) - number
            handle = _submit_point(runner, plan, app_id, index, first, workspace)
            first = first or runner.history.find(handle)
            running.append(handle)
            if _is_cancelled(app_id):  # while it was submitted
                runner.cancel(handle)
    return 0


def _await_room(runner: Runner, app_id: str, running: list[str], parallel: int | None, *, wait: bool) -> bool:
    """Tell whether one more point may be submitted; waits for that if asked to."""
    polls = polling()
    while not _is_cancelled(app_id):
        if parallel is None or len(running) < parallel:
            return True
        found = runner.statuses(running)
        running[:] = [
            handle
            for handle, status in found.items()
            if status is not None and not is_terminal(status.state) and status.state not in _OVER
        ]
        if len(running) >= parallel:
            if not wait:
                return False
            polls.pause()
    return False


def _submit_point(
    runner: Runner,
    plan: dict[str, Any],
    app_id: str,
    index: int,
    first: JobRecord | None,
    workspace: Any,
) -> str:
    """Submit a point, with the code that went with the first one; returns its handle."""
    missing: set[str] = set()
    point = plan["points"][index]
    app = from_json(AppDef, restore(point["app"], os.environ, missing))
    cfg = restore(plan["cfg"], os.environ, missing)
    if missing:
        raise missing_secrets_error(f"point {index} of {app_id}", missing)
    submission = Submission(
        app=app,
        component=plan["component"],
        arguments=point["args"],
        scheduler=plan["scheduler"],
        options=cfg,
        workspace=workspace if workspace is not None else plan["workspace"],
        after=plan["after"] or (),
        metrics=plan["metrics"],
        parent_run_id=plan["parent_run_id"],
        sweep=app_id,
        point=index,
    )
    if first is not None:
        submission = with_code_of(submission, first, runner.scheduler(plan["scheduler"]))
    return runner.submit(submission)


def repeat(
    runner: Runner, handle: str, cfg: Mapping[str, Any] | None = None, *, only_failed: bool = False
) -> str:
    """Submit a sweep again, or only its points that failed or were cancelled; returns the new handle.

    Args:
        runner: submits the points.
        handle: a sweep whose points are jobs.
        cfg: options that replace the old ones.
        only_failed: whether to repeat only the points that failed or were cancelled.

    Raises:
        UnknownAppException: there is no such sweep.
        ConfigError: none has failed, or a secret that it held cannot be recovered.
    """
    app_id = parse_app_handle(handle).app_id
    plan = _plan(app_id)
    states = point_statuses(runner, app_id, plan)
    kept = [
        point
        for index, point in enumerate(plan["points"])
        if not only_failed or states[index].state in (AppState.FAILED, AppState.CANCELLED)
    ]
    if not kept:
        raise nothing_failed()
    missing: set[str] = set()
    apps = [from_json(AppDef, restore(point["app"], os.environ, missing)) for point in kept]
    options = {**restore(plan["cfg"], os.environ, missing), **(cfg or {})}
    if missing:
        raise missing_secrets_error(f"the sweep {handle}", missing)
    submission = Submission(
        component=plan["component"],
        scheduler=plan["scheduler"],
        options=options,
        workspace=plan["workspace"],
        metrics=plan["metrics"],
        parent_run_id=plan["parent_run_id"],
        directory=plan["cwd"],
        rerun_of=handle,
    )
    first = next(iter(submitted_points(runner, app_id).values()), None)
    if first is not None:
        for app in apps:
            with_code = with_code_of(replace(submission, app=app), first, runner.scheduler(plan["scheduler"]))
        submission = replace(with_code, app=None)
    jobs = PointJobsPlan(
        submission, [Point(point["values"], point["args"]) for point in kept], apps, plan["parallel"]
    )
    return jobs.submit(runner, jobs.check(runner))


# ---- what is known of a sweep


def submitted_points(runner: Runner, app_id: str) -> dict[int, JobRecord]:
    """Return the jobs of a sweep's points in the history, including those that may have been submitted."""
    records = runner.history.of_sweep(app_id)
    if any(record.phase == INTENT for record in records):
        reconcile(runner.history, runner.scheduler, records)
        records = runner.history.of_sweep(app_id)
    return {
        record.point: record for record in records if record.point is not None and record.phase != REFUSED
    }


def point_statuses(runner: Runner, app_id: str, plan: dict[str, Any]) -> list[AppStatus]:
    """Return the state of each point."""
    done = submitted_points(runner, app_id)
    found = runner.statuses([record.handle for record in done.values() if record.phase == SUBMITTED])
    ended = _is_cancelled(app_id)
    statuses = []
    for index in range(len(plan["points"])):
        record = done.get(index)
        if record is None:
            missing = AppStatus(AppState.CANCELLED, msg="cancelled before it was submitted")
            statuses.append(missing if ended else AppStatus(AppState.PENDING, msg="not submitted yet"))
        elif record.phase == INTENT:
            statuses.append(AppStatus(AppState.PENDING, msg="its submission is in progress"))
        else:
            status = found.get(record.handle) or recorded_status(record)
            statuses.append(status or AppStatus(AppState.UNKNOWN, msg="its job was deleted"))
    return statuses


class PointJobs(Scheduler[Any]):
    """Answers for sweeps whose points are jobs of other schedulers, by asking the runner about these jobs."""

    @property
    def _runner(self) -> Runner:
        runner: Runner = self.context.runner  # type: ignore[attr-defined]
        return runner

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[Any]:
        raise ConfigError("jobs are not submitted to 'sweep'", hint="`shunter sweep` starts a sweep.")

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Refuse: `PointJobsPlan` submits the points, each to its scheduler."""
        raise ConfigError("jobs are not submitted to 'sweep'", hint="`shunter sweep` starts a sweep.")

    def exists(self, app_id: str) -> bool:
        """Tell whether there is a sweep of this id."""
        return _find_plan(app_id) is not None

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return an empty list: all sweeps are in the history."""
        return []

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Describe a sweep by the states of its points."""
        plan = _find_plan(app_id)
        if plan is None:
            return None
        statuses = point_statuses(self._runner, app_id, plan)
        roles = _roles(plan)
        return DescribeAppResponse(
            app_id=app_id,
            state=_state(statuses),
            msg=_message(app_id, statuses) or NONE,
            roles_statuses=_role_statuses(plan, roles, statuses),
            roles=roles,
        )

    def _cancel_existing(self, app_id: str) -> None:
        with open(os.path.join(_folder(app_id), "cancelled"), "ab"):
            pass
        handles = [
            record.handle for record in submitted_points(self._runner, app_id).values() if record.handle
        ]
        for error in self._runner.cancel_many(handles).values():
            if error is not None:
                raise error

    def _delete_existing(self, app_id: str) -> None:
        found = self.describe(app_id)
        if found is not None and not is_terminal(found.state):
            raise not_ended(app_id, found.state)
        done = submitted_points(self._runner, app_id).values()
        handles = [record.handle for record in done if record.phase == SUBMITTED]
        for error in self._runner.delete_many(handles).values():
            if error is not None and not isinstance(error, UnknownAppException):
                raise error
        remove_tree(_folder(app_id))

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return the directories of sweeps that have ended long enough ago."""
        found = []
        for app_id in _all_ids():
            age = time.time() - _ended_at(app_id, self.describe(app_id))
            if age >= older_than:
                folder = _folder(app_id)
                found.append(Leftover(app_id, folder, age, size_of([folder]), app_id=app_id))
        return found

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them; returns how many bytes that frees."""
        return remove_leftovers(leftovers, lambda item: remove_tree(_folder(item.app_id)))

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command in a replica of a point's job."""
        handle, role, index = self._replica(app_id, role_name, k)
        if not handle:
            raise ConfigError(f"{role_name}/{k} of {app_id} has not been submitted yet")
        return self._runner.execute(handle, role, index, command, tty=tty)

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: Any = None,
        until: Any = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Return the log lines of a replica of a point's job; following waits until it is submitted."""
        polls = polling()
        while not (found := self._replica(app_id, role_name, k))[0]:
            if not should_tail or _is_cancelled(app_id):
                return
            polls.pause()
        yield from self._runner.log_lines(
            found[0], found[1], found[2], regex, since, until, should_tail, streams
        )

    def _replica(self, app_id: str, role_name: str, k: int) -> tuple[str, str, int]:
        """Return handle, role and index of a replica in its point's job; handle "" before its submission."""
        plan = _plan(app_id)
        point, role, index = k, role_name, 0
        if not _is_simple(plan):
            first, _, role = role_name.partition(".")
            point, index = int(first) if first.isdigit() else -1, k
        layout = _layout(plan["points"][0]["app"])
        known = 0 <= point < len(plan["points"]) and (role, index) in layout
        check_replicas(app_id, [(role_name, k)], {(role_name, k)} if known else set())
        record = submitted_points(self._runner, app_id).get(point)
        return ("" if record is None or record.phase == INTENT else record.handle), role, index


def _layout(app: Mapping[str, Any]) -> set[tuple[str, int]]:
    return {(role["name"], k) for role in app["roles"] for k in range(role["num_replicas"])}


def _is_simple(plan: Mapping[str, Any]) -> bool:
    """Tell whether each point is one replica, so that the points can be shown as the replicas of one role."""
    return all(len(_layout(point["app"])) == 1 for point in plan["points"])


def _roles(plan: Mapping[str, Any]) -> list[Role]:
    roles = list(from_json(AppDef, plan["points"][0]["app"]).roles)
    points = [{"values": point["values"], "args": []} for point in plan["points"]]
    roles[0].metadata[SWEEP_KEY] = {"points": points}
    if _is_simple(plan):
        roles[0].num_replicas = len(points)
    return roles


def _role_statuses(
    plan: Mapping[str, Any], roles: Sequence[Role], statuses: Sequence[AppStatus]
) -> list[RoleStatus]:
    if _is_simple(plan):
        replicas = []
        for index, status in enumerate(statuses):
            own = next(iter(status.replicas()), None) or ReplicaStatus(0, status.state, roles[0].name)
            state = status.state if is_terminal(status.state) or not status.replicas() else own.state
            reason = own.reason or status.reason
            replicas.append(_changed(own, id=index, role=roles[0].name, state=state, reason=reason))
        return [RoleStatus(roles[0].name, replicas)]
    found = []
    for index, (point, status) in enumerate(zip(plan["points"], statuses, strict=True)):
        there = {each.role: each.replicas for each in status.roles}
        for role in point["app"]["roles"]:
            name = f"{index}.{role['name']}"
            planned = [
                ReplicaStatus(k, status.state, name, reason=status.reason)
                for k in range(role["num_replicas"])
            ]
            replicas = [_changed(each, role=name) for each in there.get(role["name"]) or planned]
            found.append(RoleStatus(name, replicas))
    return found


def _changed(replica: ReplicaStatus, **fields: Any) -> ReplicaStatus:
    found = copy(replica)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def _state(statuses: Sequence[AppStatus]) -> AppState:
    states = {status.state for status in statuses}
    open_ones = {state for state in states if not is_terminal(state) and state not in _OVER}
    if not open_ones:
        for state in (AppState.FAILED, *_OVER, AppState.CANCELLED):
            if state in states:
                return state
        return AppState.SUCCEEDED
    if open_ones == {AppState.UNREACHABLE}:
        return AppState.UNREACHABLE
    if open_ones <= {AppState.PENDING, AppState.SUBMITTED} and states == open_ones:
        return AppState.PENDING
    return AppState.RUNNING


def _message(app_id: str, statuses: Sequence[AppStatus]) -> str:
    total, parts = len(statuses), []
    failed = sum(status.state == AppState.FAILED for status in statuses)
    if failed:
        parts.append(f"{failed} of {total} points failed")
    waiting = sum(status.msg == "not submitted yet" for status in statuses)
    if waiting:
        parts.append(f"{waiting} of {total} points are not submitted yet")
        if not _is_being_submitted(app_id):
            parts[-1] += f", and no process is submitting them: `shunter sweep --resume {app_id}`"
    return "; ".join(parts)


# ---- the directory of a sweep


def _folder(app_id: str) -> str:
    return os.path.join(state_dir(), "sweeps", app_id)


def _all_ids() -> builtins.list[str]:
    try:
        return sorted(os.listdir(_folder("")))
    except FileNotFoundError:
        return []


def _ended_at(app_id: str, found: DescribeAppResponse | None) -> float:
    """Return when a sweep ended, in seconds since the epoch; infinity if it has not."""
    if _is_being_submitted(app_id) or (found is not None and not is_terminal(found.state)):
        return math.inf
    ends = [
        each.ended_at or 0.0 for role in (found.roles_statuses if found else []) for each in role.replicas
    ]
    try:
        return max([os.path.getmtime(_folder(app_id)), *ends])
    except FileNotFoundError:  # it is being deleted
        return math.inf


def _find_plan(app_id: str) -> dict[str, Any] | None:
    if not app_id or "/" in app_id or app_id.startswith("."):
        return None
    return read_json(os.path.join(_folder(app_id), "sweep.json"))


def _plan(app_id: str) -> dict[str, Any]:
    plan = _find_plan(app_id)
    if plan is None:
        raise UnknownAppException(f"there is no sweep {app_id!r} whose points are jobs")
    return plan


def _is_cancelled(app_id: str) -> bool:
    return os.path.exists(os.path.join(_folder(app_id), "cancelled"))


def _is_being_submitted(app_id: str) -> bool:
    return is_locked(os.path.join(_folder(app_id), "lock"))


@contextlib.contextmanager
def _alone(app_id: str) -> Iterator[None]:
    """Hold the lock of a sweep; it is freed when this process ends."""
    lock = os.open(os.path.join(_folder(app_id), "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise BackendError(f"another process is submitting the points of {app_id}") from None
    try:
        yield
    finally:
        os.close(lock)


def create_scheduler(session_name: str, **kwargs: object) -> PointJobs:
    """Return what answers for such sweeps. It takes no arguments."""
    return PointJobs(SWEEPS, session_name)
