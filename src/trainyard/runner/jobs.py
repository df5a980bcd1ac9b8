"""Looking after jobs that have been submitted."""

from __future__ import annotations

import builtins

from trainyard.errors import AccessError, StateStoreError, UnknownAppException
from trainyard.runner.events import log_event
from trainyard.runner.session import Session
from trainyard.specs.handles import make_app_handle, parse_app_handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import Any

    from trainyard.runner.history import History
    from trainyard.runner.jobsearch import JobFilter
    from trainyard.runner.records import JobRecord
    from trainyard.schedulers.base import (
        DescribeAppResponse,
        ListAppResponse,
        LogBlock,
        LogQuery,
        Scheduler,
        Stream,
    )
    from trainyard.specs.app import AppDef
    from trainyard.specs.handles import AppHandle
    from trainyard.specs.status import AppStatus


class JobAccess(Session):
    """The calls that take a handle."""

    # ---- observing

    def status(self, app_handle: AppHandle, *, refusal_is_final: bool = False) -> AppStatus | None:
        """Return the state of a job; None if there is none of this handle.

        When the scheduler cannot be asked, the state is the one of the history if the job is known to have
        ended, else UNREACHABLE; ``msg`` says why.

        Args:
            app_handle: the job.
            refusal_is_final: raise `AccessError` where the scheduler refuses the credentials, rather than
                return UNREACHABLE.

        Raises:
            MalformedAppHandleException: it is no handle.
            UnknownSchedulerException: its scheduler does not exist.
            AccessError: see ``refusal_is_final``.
        """
        from trainyard.runner import observation

        parsed = parse_app_handle(app_handle)
        scheduler = self.scheduler(parsed.scheduler_backend)
        with log_event("status", scheduler.backend, self._name, app_id=parsed.app_id):
            try:
                response = scheduler.describe(parsed.app_id)
            except Exception as error:
                ended = self._known_end(app_handle, error)
                if ended is None and refusal_is_final and isinstance(error, AccessError):
                    raise
                return ended or observation.unreachable(error)
            return self._seen(app_handle, scheduler, response)

    def statuses(self, handles: Iterable[AppHandle]) -> dict[AppHandle, AppStatus | None]:
        """Return the states of several jobs, with one batched call for each scheduler.

        Raises:
            MalformedAppHandleException: one of them is no handle.
        """
        from trainyard.runner import observation

        statuses: dict[AppHandle, AppStatus | None] = {}
        found = observation.describe_handles(self.scheduler, dict.fromkeys(handles))
        for handle, response in found.items():
            if isinstance(response, Exception):
                statuses[handle] = self._known_end(handle, response) or observation.unreachable(response)
            elif response is None:
                statuses[handle] = self._recorded(handle)
            else:
                statuses[handle] = response.to_status()
        observation.note(
            self.history, [(h, s) for h, s in statuses.items() if s is not None and found[h] is not None]
        )
        return statuses

    def jobs(
        self, limit: int | None = None, scheduler: str | None = None, *, refresh: bool = True
    ) -> builtins.list[JobRecord]:
        """Return the submissions of the history, the latest first.

        Args:
            limit: at most so many; None for all.
            scheduler: only those of this one.
            refresh: ask the schedulers, once each, for the states of those that have not ended. A job
                that cannot be seen now is UNREACHABLE.
        """
        if not refresh:
            return self.history.rows(limit, scheduler)
        from trainyard.runner.jobsearch import JobFilter

        return self.search(JobFilter(refused=True, scheduler=scheduler), limit)[0]

    def search(
        self, wanted: JobFilter, limit: int | None = None, *, by_time: bool = False
    ) -> tuple[builtins.list[JobRecord], int]:
        """Return submissions of the history and the number of all that fit; see `jobsearch.search`."""
        from trainyard.runner.jobsearch import search

        return search(self.history, self.scheduler, wanted, limit, by_time=by_time)

    def wait(
        self, app_handle: AppHandle, wait_interval: float = 10, timeout: float | None = None
    ) -> AppStatus | None:
        """Block until a job has ended; None if there is none of this handle.

        Args:
            app_handle: the job.
            wait_interval: longest time between two attempts to reach a scheduler that fails to answer.
                How often one that answers is asked is its own matter.
            timeout: seconds after which the state of that time is returned; None to wait for ever.

        Raises:
            AccessError: the scheduler refuses the credentials, and the job is not known to have ended.
        """
        parsed = parse_app_handle(app_handle)
        scheduler = self.scheduler(parsed.scheduler_backend)
        with log_event("wait", scheduler.backend, self._name, app_id=parsed.app_id):
            from trainyard.runner.waiting import wait

            try:
                response = wait(scheduler, parsed.app_id, wait_interval, timeout)
            except AccessError as error:
                ended = self._known_end(app_handle, error)
                if ended is None:
                    raise
                return ended
            self._collect_late_facts(only_done=True)
            if isinstance(response, Exception):
                from trainyard.runner.observation import unreachable

                return self._known_end(app_handle, response) or unreachable(response)
            return self._seen(app_handle, scheduler, response)

    def describe(self, app_handle: AppHandle) -> AppDef | None:
        """Return the definition of a job, from its scheduler or else the history; None if there is none."""
        parsed = parse_app_handle(app_handle)
        scheduler = self.scheduler(parsed.scheduler_backend)
        with log_event("describe", scheduler.backend, self._name, app_id=parsed.app_id):
            response = scheduler.describe(parsed.app_id)
            return self._definition(app_handle, response)

    def list(self, scheduler: str, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all jobs that the scheduler knows, their handles filled in."""
        with log_event("list", scheduler, self._name):
            jobs = self.scheduler(scheduler).list(cfg)
            for job in jobs:
                job.app_handle = make_app_handle(scheduler, self._name, job.app_id)
            return jobs

    def replicas(self, app_handle: AppHandle) -> builtins.list[tuple[str, int]]:
        """Return all replicas of a job in order, as pairs of role name and index.

        Raises:
            UnknownAppException: neither the scheduler nor the history knows the job.
        """
        response = self._describe_existing(app_handle)
        if response is not None and response.roles_statuses:
            return [(role.role, replica.id) for role in response.roles_statuses for replica in role.replicas]
        app = self._definition(app_handle, response)
        return [(role.name, k) for role in app.roles for k in range(role.num_replicas)] if app else []

    def resolve_handle(self, text: str | None) -> AppHandle:
        """Return the handle that a person means.

        Args:
            text: a handle; the beginning of an app id, or of a handle, that is in the history and fits one
                job only; or ``-``, "" or None for the job that was submitted last.

        Raises:
            UnknownAppException: nothing in the history fits.
            UsageError: several jobs fit; the message lists them.
        """
        from trainyard.runner.lookup import resolve

        return resolve(text, self._reconciled_history)

    # ---- ending

    def cancel(self, app_handle: AppHandle) -> None:
        """Ask a job to stop. Does not wait for it; does nothing if it has ended or does not exist."""
        parsed = parse_app_handle(app_handle)
        scheduler = self.scheduler(parsed.scheduler_backend)
        with log_event("cancel", scheduler.backend, self._name, app_id=parsed.app_id):
            scheduler.cancel(parsed.app_id)

    def stop(self, app_handle: AppHandle) -> None:
        """Do what `cancel` does; the predecessor's older name."""
        self.cancel(app_handle)

    def delete(self, app_handle: AppHandle) -> None:
        """Remove what the scheduler keeps of a job that has ended, and leave it out of lists.

        Raises:
            UnknownAppException: neither the scheduler nor the history knows the job.
            ConfigError: it has not ended.
        """
        parsed = parse_app_handle(app_handle)
        scheduler = self.scheduler(parsed.scheduler_backend)
        with log_event("delete", scheduler.backend, self._name, app_id=parsed.app_id):
            record = self.history.find(app_handle)
            if record is None or record.phase == "deleted":
                self._require(app_handle, scheduler, parsed.app_id)
            scheduler.delete(parsed.app_id)
            if record is not None:
                self._mark_deleted(app_handle)

    def _mark_deleted(self, app_handle: AppHandle) -> None:
        """Leave a removed job out of lists. That it is gone stands, whatever becomes of its row."""
        try:
            self.history.mark_deleted(app_handle)
        except StateStoreError as error:
            import warnings

            warnings.warn(
                f"{app_handle} is deleted, but stays in lists for now: {error.message}",
                RuntimeWarning,
                stacklevel=3,
            )

    # ---- logs

    def log_lines(
        self,
        app_handle: AppHandle,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Return the log lines of a role's k-th replica; see `Scheduler.log_iter`.

        Raises:
            UnknownAppException: there is no such job.
        """
        parsed = parse_app_handle(app_handle)
        scheduler = self.scheduler(parsed.scheduler_backend)
        with log_event("log_lines", scheduler.backend, self._name, app_id=parsed.app_id):
            self._require(app_handle, scheduler, parsed.app_id)
            return scheduler.log_iter(parsed.app_id, role_name, k, regex, since, until, should_tail, streams)

    def log_blocks(
        self, app_handle: AppHandle, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return the log lines of several replicas, in about the order in which they were written.

        Raises:
            UnknownAppException: there is no such job.
        """
        parsed = parse_app_handle(app_handle)
        scheduler = self.scheduler(parsed.scheduler_backend)
        with log_event("log_lines", scheduler.backend, self._name, app_id=parsed.app_id):
            self._require(app_handle, scheduler, parsed.app_id)
            return scheduler.log_blocks(parsed.app_id, replicas, query)

    # ---- shared

    def _require(self, app_handle: AppHandle, scheduler: Scheduler[Any], app_id: str) -> None:
        if not scheduler.exists(app_id):
            raise _unknown(app_handle, scheduler.backend)

    def _describe_existing(self, app_handle: AppHandle) -> DescribeAppResponse | None:
        parsed = parse_app_handle(app_handle)
        response = self.scheduler(parsed.scheduler_backend).describe(parsed.app_id)
        if response is None and self._record_of(app_handle) is None:
            raise _unknown(app_handle, parsed.scheduler_backend)
        return response

    def _definition(self, app_handle: AppHandle, response: DescribeAppResponse | None) -> AppDef | None:
        from trainyard.specs.app import AppDef
        from trainyard.specs.serialize import from_json

        if response is not None and response.roles:
            return AppDef(response.app_id, list(response.roles), dict(response.metadata))
        record = self._record_of(app_handle)
        if record is not None and record.app:
            return from_json(AppDef, record.app)
        return None if response is None else AppDef(response.app_id, [], dict(response.metadata))

    def _record_of(self, app_handle: AppHandle) -> JobRecord | None:
        record = self.history.find(app_handle)
        return None if record is None or record.phase == "deleted" else record

    def _known_end(self, app_handle: AppHandle, error: Exception) -> AppStatus | None:
        """Return how a job ended, from the history, where its scheduler cannot be asked; else None."""
        from trainyard.runner.observation import known_end

        try:
            return known_end(self.history.find(app_handle), error)
        except StateStoreError:
            return None

    def _recorded(self, app_handle: AppHandle) -> AppStatus | None:
        from trainyard.runner.observation import reconcile, recorded_status

        record = self.history.find(app_handle)
        if record is not None and record.phase == "intent":
            reconcile(self.history, self.scheduler, [record])
            record = self.history.find(app_handle)
        return recorded_status(record)

    def _seen(
        self, app_handle: AppHandle, scheduler: Scheduler[Any], response: DescribeAppResponse | None
    ) -> AppStatus | None:
        if response is None:
            return self._recorded(app_handle)
        status = response.to_status()
        # Opening the history costs more than the whole of a local job's status, and that can be seen again.
        if self._history is not None or not scheduler.is_local:
            from trainyard.runner.observation import note

            note(self.history, [(app_handle, status)])
        return status

    def _reconciled_history(self) -> History:
        intents = self.history.intents()
        if intents:
            from trainyard.runner.observation import reconcile

            reconcile(self.history, self.scheduler, intents)
        return self.history


def _unknown(app_handle: AppHandle, scheduler: str) -> UnknownAppException:
    return UnknownAppException(
        f"{scheduler} knows no job {app_handle}",
        hint="`trainyard list` shows the jobs of this machine's history.",
    )
