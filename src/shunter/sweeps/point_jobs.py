"""Sweeps whose points are separate jobs, not replicas of one: listed, watched and ended together.

Their handles are ``sweep://SESSION/ID``; `PointJobs` answers for them by asking the schedulers of the points.
A directory of the state directory holds the points to submit; the history holds those that were submitted,
with an intent before each submission. So the submitting process may be killed at any time, and another one
continues without losing or repeating a point (`Sweep.submit`). A lock lets one process submit at a time.
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
from dataclasses import dataclass, replace
from typing import Any

from shunter.backoff import Backoff, polling
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
from shunter.schedulers.kept_results import ResultPlace
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
_NOT_SUBMITTED = "not submitted yet"
#: Seconds until a lock counts as held: `is_locked` holds it too, for a moment.
LOCK_PATIENCE = 1.0


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
        make_private_dir(_folder(app_id))
        write_json(os.path.join(_folder(app_id), "sweep.json"), self._to_json(backend))
        sweep = Sweep(runner, app_id)
        handle = make_app_handle(SWEEPS, runner.name(), app_id)
        intent = replace(
            intent_of(backend, first), handle=handle, scheduler=SWEEPS, session=runner.name(), app_id=app_id
        )
        key = runner.history.add_intent(intent)
        runner.history.submitted(key, handle, app_id)
        try:
            left = sweep.submit(wait=False, workspace=self.submission.workspace)
        except BaseException as error:
            if isinstance(error, Exception) and not sweep.submitted():
                msg = redact_text(described(error))
                runner.history.amend(key, phase=REFUSED, state=AppState.UNSUBMITTED, msg=msg)
                remove_tree(sweep.folder)
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
    command = [sys.executable, "-P", "-m", "shunter", "sweep", "--resume", handle]
    with open(os.path.join(_folder(parse_app_handle(handle).app_id), "submitting.log"), "ab") as log:
        subprocess.run(  # through a shell, so that it is not a child of this process
            ["sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )


def submit_points(runner: Runner, app_id: str, *, wait: bool = True) -> int:
    """Submit the points of a sweep that are not submitted yet; see `Sweep.submit`."""
    return Sweep(runner, app_id).submit(wait=wait)


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
    sweep = Sweep(runner, parse_app_handle(handle).app_id)
    kept = [
        point
        for point, status in zip(sweep.points, sweep.statuses(), strict=True)
        if not only_failed or status.state in (AppState.FAILED, AppState.CANCELLED)
    ]
    if not kept:
        raise nothing_failed()
    apps, old = _restored([[point["app"] for point in kept], sweep.plan["cfg"]], f"the sweep {handle}")
    jobs = [from_json(AppDef, app) for app in apps]
    submission = replace(
        sweep.submission({**old, **(cfg or {})}), directory=sweep.plan["cwd"], rerun_of=handle
    )
    first = next(iter(sweep.submitted().values()), None)
    if first is not None:
        for app in jobs:
            with_code = with_code_of(replace(submission, app=app), first, sweep.scheduler())
        submission = replace(with_code, app=None)
    points = [Point(point["values"], point["args"]) for point in kept]
    plan = PointJobsPlan(submission, points, jobs, sweep.plan["parallel"])
    return plan.submit(runner, plan.check(runner))


def _restored(values: Any, what: str) -> Any:
    """Return stored values with their secrets put back; ``what`` names them in errors."""
    missing: set[str] = set()
    restored = restore(values, os.environ, missing)
    if missing:
        raise missing_secrets_error(what, missing)
    return restored


class Sweep:
    """A sweep whose points are jobs, by its directory and the history.

    Attributes:
        plan: what is stored of it, see `PointJobsPlan`.
        points: its points, each with ``values``, ``args`` and ``app``.

    Raises:
        UnknownAppException: there is no such sweep.
    """

    def __init__(self, runner: Runner, app_id: str) -> None:
        self.runner = runner
        self.id = app_id
        self.folder = _folder(app_id)
        is_name = app_id and "/" not in app_id and not app_id.startswith(".")
        plan = read_json(os.path.join(self.folder, "sweep.json")) if is_name else None
        if plan is None:
            raise UnknownAppException(f"there is no sweep {app_id!r} whose points are jobs")
        self.plan: dict[str, Any] = plan
        self.points: list[dict[str, Any]] = plan["points"]

    def scheduler(self) -> Scheduler[Any]:
        """Return the scheduler of the points."""
        return self.runner.scheduler(self.plan["scheduler"])

    def submission(self, options: Mapping[str, Any]) -> Submission:
        """Return what the submissions of its points have in common, with these options."""
        return Submission(
            component=self.plan["component"],
            scheduler=self.plan["scheduler"],
            options=options,
            workspace=self.plan["workspace"],
            metrics=self.plan["metrics"],
            parent_run_id=self.plan["parent_run_id"],
        )

    # ---- submitting

    def submit(self, *, wait: bool = True, workspace: Any = None) -> int:
        """Submit the points that are not submitted yet; returns how many are left.

        If only some may run at a time, ``wait`` says whether to wait until other points have ended.
        ``workspace`` is the code, if the sweep begins here.

        Raises:
            BackendError: another process submits its points, or a point was refused.
        """
        with self.alone(), working_in(self.plan["cwd"], f"the sweep {self.id}"):
            done = self.submitted()
            todo = [index for index in range(len(self.points)) if index not in done]
            running = [record.handle for record in done.values() if not is_terminal(record.state)]
            first = next(iter(done.values()), None)
            for number, index in enumerate(todo):
                if not self._await_room(running, wait=wait):
                    return 0 if self.is_cancelled() else len(todo) - number
                handle = self._submit_point(index, first, workspace)
                first = first or self.runner.history.find(handle)
                running.append(handle)
                if self.is_cancelled():  # while it was submitted
                    self.runner.cancel(handle)
        return 0

    def _await_room(self, running: list[str], *, wait: bool) -> bool:
        """Tell whether one more point may be submitted; waits for that if asked to."""
        parallel, polls = self.plan["parallel"], polling()
        while not self.is_cancelled():
            if parallel is None or len(running) < parallel:
                return True
            statuses = self.runner.statuses(running)
            running[:] = [
                handle
                for handle, status in statuses.items()
                if status is not None and not is_terminal(status.state) and status.state not in _OVER
            ]
            if len(running) >= parallel:
                if not wait:
                    return False
                polls.pause()
        return False

    def _submit_point(self, index: int, first: JobRecord | None, workspace: Any) -> str:
        """Submit a point, with the code that went with the first one; returns its handle."""
        point = self.points[index]
        app, options = _restored([point["app"], self.plan["cfg"]], f"point {index} of {self.id}")
        submission = replace(
            self.submission(options),
            app=from_json(AppDef, app),
            arguments=point["args"],
            after=self.plan["after"] or (),
            sweep=self.id,
            point=index,
        )
        if workspace is not None:
            submission = replace(submission, workspace=workspace)
        if first is not None:
            submission = with_code_of(submission, first, self.scheduler())
        return self.runner.submit(submission)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the sweep; it is freed when this process ends."""
        lock = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            tries = Backoff(0.02, 0.2, limit=LOCK_PATIENCE)
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not tries.pause():
                        text = f"another process is submitting the points of {self.id}"
                        raise BackendError(text) from None
            yield
        finally:
            os.close(lock)

    def cancel(self) -> None:
        """Submit no more points, and end those that were submitted."""
        with open(os.path.join(self.folder, "cancelled"), "ab"):
            pass
        handles = [record.handle for record in self.submitted().values() if record.handle]
        for error in self.runner.cancel_many(handles).values():
            if error is not None:
                raise error

    # ---- what is known of it

    def is_cancelled(self) -> bool:
        """Tell whether no more points are to be submitted."""
        return os.path.exists(os.path.join(self.folder, "cancelled"))

    def is_being_submitted(self) -> bool:
        """Tell whether a process submits its points now."""
        return is_locked(os.path.join(self.folder, "lock"))

    def submitted(self) -> dict[int, JobRecord]:
        """Return the jobs of the points in the history, including those that may have been submitted."""
        history = self.runner.history
        records = history.of_sweep(self.id)
        if any(record.phase == INTENT for record in records):
            reconcile(history, self.runner.scheduler, records)
            records = history.of_sweep(self.id)
        return {
            record.point: record for record in records if record.point is not None and record.phase != REFUSED
        }

    def statuses(self) -> list[AppStatus]:
        """Return the state of each point."""
        done = self.submitted()
        handles = [record.handle for record in done.values() if record.phase == SUBMITTED]
        known = self.runner.statuses(handles)
        missing = AppStatus(AppState.PENDING, msg=_NOT_SUBMITTED)
        if self.is_cancelled():
            missing = AppStatus(AppState.CANCELLED, msg="cancelled before it was submitted")
        statuses = []
        for index in range(len(self.points)):
            record = done.get(index)
            if record is None:
                statuses.append(missing)
            elif record.phase == INTENT:
                statuses.append(AppStatus(AppState.PENDING, msg="its submission is in progress"))
            else:
                status = known.get(record.handle) or recorded_status(record)
                statuses.append(status or AppStatus(AppState.UNKNOWN, msg="its job was deleted"))
        return statuses

    def describe(self) -> DescribeAppResponse:
        """Describe it by the states of its points."""
        statuses = self.statuses()
        roles = list(from_json(AppDef, self.points[0]["app"]).roles)
        points = [{"values": point["values"], "args": []} for point in self.points]
        roles[0].metadata[SWEEP_KEY] = {"points": points}
        if self._is_simple():
            roles[0].num_replicas = len(points)
        return DescribeAppResponse(
            app_id=self.id,
            state=_state(statuses),
            msg=self._message(statuses) or NONE,
            roles_statuses=self._role_statuses(roles, statuses),
            roles=roles,
        )

    def ended_at(self) -> float:
        """Return when it ended, in seconds since the epoch; infinity if it has not."""
        response = self.describe()
        if self.is_being_submitted() or not is_terminal(response.state):
            return math.inf
        ends = [replica.ended_at or 0.0 for role in response.roles_statuses for replica in role.replicas]
        return max([os.path.getmtime(self.folder), *ends])

    def replica(self, role_name: str, k: int) -> tuple[str, str, int]:
        """Return handle, role and index of a replica in its point's job; handle "" before its submission.

        Raises:
            UsageError: there is no such replica.
        """
        point, role, index = k, role_name, 0
        if not self._is_simple():
            number, _, role = role_name.partition(".")
            point, index = int(number) if number.isdigit() else -1, k
        is_known = 0 <= point < len(self.points) and (role, index) in _layout(self.points[0])
        check_replicas(self.id, [(role_name, k)], {(role_name, k)} if is_known else set())
        record = self.submitted().get(point)
        return ("" if record is None or record.phase == INTENT else record.handle), role, index

    def _is_simple(self) -> bool:
        """Tell whether each point is one replica, so that the points can be replicas of one role."""
        return all(len(_layout(point)) == 1 for point in self.points)

    def _role_statuses(self, roles: Sequence[Role], statuses: Sequence[AppStatus]) -> list[RoleStatus]:
        if self._is_simple():
            name, replicas = roles[0].name, []
            for index, status in enumerate(statuses):
                own = next(iter(status.replicas()), None)
                state = status.state if own is None or is_terminal(status.state) else own.state
                own = own or ReplicaStatus(0, state, name)
                reason = own.reason or status.reason
                replicas.append(replace(own, id=index, role=name, state=state, reason=reason))
            return [RoleStatus(name, replicas)]
        role_statuses = []
        for index, (point, status) in enumerate(zip(self.points, statuses, strict=True)):
            known = {role.role: role.replicas for role in status.roles}
            for role in point["app"]["roles"]:
                replicas = list(known.get(role["name"]) or ()) or [
                    ReplicaStatus(k, status.state, role["name"], reason=status.reason)
                    for k in range(role["num_replicas"])
                ]
                name = f"{index}.{role['name']}"
                role_statuses.append(RoleStatus(name, [replace(replica, role=name) for replica in replicas]))
        return role_statuses

    def _message(self, statuses: Sequence[AppStatus]) -> str:
        total, parts = len(statuses), []
        failed = sum(status.state == AppState.FAILED for status in statuses)
        if failed:
            parts.append(f"{failed} of {total} points failed")
        waiting = sum(status.msg == _NOT_SUBMITTED for status in statuses)
        if waiting:
            parts.append(f"{waiting} of {total} points are not submitted yet")
            if not self.is_being_submitted():
                parts[-1] += f", and no process is submitting them: `shunter sweep --resume {self.id}`"
        return "; ".join(parts)


def _folder(app_id: str) -> str:
    return os.path.join(state_dir(), "sweeps", app_id)


def _layout(point: Mapping[str, Any]) -> set[tuple[str, int]]:
    """Return role and index of each replica of a point's job."""
    return {(role["name"], k) for role in point["app"]["roles"] for k in range(role["num_replicas"])}


def _state(statuses: Sequence[AppStatus]) -> AppState:
    states = {status.state for status in statuses}
    open_states = {state for state in states if not is_terminal(state) and state not in _OVER}
    if not open_states:
        for state in (AppState.FAILED, *_OVER, AppState.CANCELLED):
            if state in states:
                return state
        return AppState.SUCCEEDED
    if open_states == {AppState.UNREACHABLE}:
        return AppState.UNREACHABLE
    if open_states <= {AppState.PENDING, AppState.SUBMITTED} and states == open_states:
        return AppState.PENDING
    return AppState.RUNNING


class PointJobs(Scheduler[Any]):
    """Answers for sweeps whose points are jobs of other schedulers, by asking the runner about these jobs."""

    def _sweep(self, app_id: str) -> Sweep:
        return Sweep(self.context.runner, app_id)  # type: ignore[attr-defined]

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[Any]:
        raise ConfigError("jobs are not submitted to 'sweep'", hint="`shunter sweep` starts a sweep.")

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Refuse: `PointJobsPlan` submits the points, each to its scheduler."""
        raise ConfigError("jobs are not submitted to 'sweep'", hint="`shunter sweep` starts a sweep.")

    def exists(self, app_id: str) -> bool:
        """Tell whether there is a sweep of this id."""
        try:
            self._sweep(app_id)
        except UnknownAppException:
            return False
        return True

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return an empty list: all sweeps are in the history."""
        return []

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Describe a sweep by the states of its points."""
        return self._sweep(app_id).describe() if self.exists(app_id) else None

    def _cancel_existing(self, app_id: str) -> None:
        self._sweep(app_id).cancel()

    def _delete_existing(self, app_id: str) -> None:
        sweep = self._sweep(app_id)
        state = sweep.describe().state
        if not is_terminal(state):
            raise not_ended(app_id, state)
        handles = [record.handle for record in sweep.submitted().values() if record.phase == SUBMITTED]
        for error in sweep.runner.delete_many(handles).values():
            if error is not None and not isinstance(error, UnknownAppException):
                raise error
        remove_tree(sweep.folder)

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return the directories of sweeps that have ended long enough ago."""
        leftovers = []
        for app_id in sorted(os.listdir(_folder(""))) if os.path.isdir(_folder("")) else ():
            folder = _folder(app_id)
            with contextlib.suppress(FileNotFoundError):  # it is being deleted
                try:
                    ended_at = self._sweep(app_id).ended_at()
                except UnknownAppException:  # the submitter was killed before it had saved the sweep
                    ended_at = os.path.getmtime(folder)
                age = time.time() - ended_at
                if age >= older_than:
                    leftovers.append(Leftover(app_id, folder, age, size_of([folder]), app_id=app_id))
        return leftovers

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them; returns how many bytes that frees."""
        return remove_leftovers(leftovers, lambda item: remove_tree(_folder(item.app_id)))

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command in a replica of a point's job."""
        sweep = self._sweep(app_id)
        handle, role, index = sweep.replica(role_name, k)
        if not handle:
            raise ConfigError(f"{role_name}/{k} of {app_id} has not been submitted yet")
        return sweep.runner.execute(handle, role, index, command, tty=tty)

    def results(self, app_id: str, role_name: str, k: int) -> ResultPlace:
        """Return the results of a replica of a point's job."""
        sweep = self._sweep(app_id)
        handle, role, index = sweep.replica(role_name, k)
        if not handle:
            raise ConfigError(f"{role_name}/{k} of {app_id} has not been submitted yet")
        return sweep.runner.results(handle, role, index)

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
        sweep, polls = self._sweep(app_id), polling()
        while not sweep.replica(role_name, k)[0]:
            if not should_tail or sweep.is_cancelled():
                return
            polls.pause()
        handle, role, index = sweep.replica(role_name, k)
        yield from sweep.runner.log_lines(handle, role, index, regex, since, until, should_tail, streams)


def create_scheduler(session_name: str, **kwargs: object) -> PointJobs:
    """Return what answers for such sweeps. It takes no arguments."""
    return PointJobs(SWEEPS, session_name)
