"""The runner: what the command line does, as a Python API."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from shunter.errors import AccessError, ConfigError, ShunterError, StateStoreError
from shunter.progress import Progress, Silent
from shunter.runner import observation, races
from shunter.runner.config import DEFAULT, Config, effective_options, load_config
from shunter.runner.events import log_event
from shunter.runner.fetched_results import Fetched, ResultSource, chosen_files, fetch, sources_of
from shunter.runner.history import History
from shunter.runner.jobsearch import JobFilter, resolve, resolve_all, search, unrecorded
from shunter.runner.log_filter import shown, shown_blocks, shown_lines
from shunter.runner.observation import open_dependencies, reconcile, unknown_job
from shunter.runner.records import JobRecord
from shunter.schedulers.api import (
    CancelsReplicas,
    Context,
    DescribeAppResponse,
    ListAppResponse,
    LogBlock,
    LogPart,
    LogQuery,
    LogRange,
    Scheduler,
    Stream,
)
from shunter.schedulers.kept_results import KeepsResults, ResultPlace
from shunter.schedulers.registry import (
    SWEEPS,
    SchedulerFactory,
    as_scheduler,
    get_default_scheduler_name,
    get_scheduler_factories,
    get_scheduler_factory,
    unknown_scheduler,
)
from shunter.schedulers.short_names import full_name
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import AppHandle, make_app_handle, parse_app_handle
from shunter.specs.options import runopts
from shunter.specs.status import AppStatus, is_terminal
from shunter.specs.submission import Submission
from shunter.specs.workspace import Workspace

DEFAULT_SESSION = "shunter"


def get_runner(
    name: str | None = None,
    component_defaults: Mapping[str, Mapping[str, str]] | None = None,
    **scheduler_params: Any,
) -> Runner:
    """Return a runner with all schedulers, built-in ones and those of plugins; see `Runner`."""
    return Runner(name or DEFAULT_SESSION, None, component_defaults, scheduler_params)


class Runner:
    """Submits jobs and looks after them. A context manager; `close` frees what it holds.

    Schedulers, history and configuration are each made when they are first needed.

    Args:
        name: name of the session, the second part of handles.
        scheduler_factories: what makes each scheduler, by name; None for all that are installed.
        component_defaults: by component, values of parameters that are not given.
        scheduler_params: given to every scheduler that is made.
        history: where submissions are recorded; by default the history of the state directory.
    """

    def __init__(
        self,
        name: str = DEFAULT_SESSION,
        scheduler_factories: Mapping[str, SchedulerFactory] | None = None,
        component_defaults: Mapping[str, Mapping[str, str]] | None = None,
        scheduler_params: Mapping[str, Any] | None = None,
        history: History | None = None,
    ) -> None:
        self._name = name
        self._factories = scheduler_factories
        #: By component, values of parameters that are not given.
        self.component_defaults = component_defaults or {}
        self._scheduler_params = dict(scheduler_params or {})
        self._history = history
        self._config: Config | None = None
        self._schedulers: dict[str, Scheduler[Any]] = {}
        #: Receives the progress of code that is being shipped, if set.
        self.progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the schedulers and the history. May be called more than once."""
        for scheduler in self._schedulers.values():
            scheduler.close()
        self._schedulers.clear()
        if self._history is not None:
            self._history.close()

    def name(self) -> str:
        """Return the name of the session."""
        return self._name

    @property
    def history(self) -> History:
        """The history of submissions. Opened when it is first read or written."""
        if self._history is None:
            self._history = History()
        return self._history

    @property
    def config(self) -> Config:
        """The configuration for the current directory, read once."""
        if self._config is None:
            self._config = load_config()
        return self._config

    def trackers(self) -> dict[str, str | None]:
        """Return the trackers of jobs that are submitted, by name, each with its configuration.

        Raises:
            ConfigError: a project's file sets them, and the user has not trusted it.
        """
        return self.config.trackers(submitting=True)

    # ---- schedulers

    def scheduler(self, name: str) -> Scheduler[Any]:
        """Return the scheduler of this name, made on first use.

        Raises:
            UnknownSchedulerException: there is none.
        """
        if self._factories is None:
            name = full_name(name)
        if name not in self._schedulers:
            created = self._factory(name)(self._name, **self._scheduler_params)
            scheduler = as_scheduler(created, name, self._name)
            scheduler.backend = name  # the name in handles, whatever its class calls itself
            scheduler.context = RunnerContext(self, scheduler)
            self._schedulers[name] = scheduler
        return self._schedulers[name]

    def scheduler_backends(self) -> builtins.list[str]:
        """Return the names of all schedulers, the default one first."""
        if self._factories is not None:
            return list(self._factories)
        return list(get_scheduler_factories())

    def scheduler_run_opts(self, scheduler: str) -> runopts:
        """Return the options of a scheduler."""
        return self.scheduler(scheduler).run_opts()

    def cfg_from_str(self, scheduler: str, *cfg_literals: str) -> dict[str, Any]:
        """Read ``key=value,...`` texts as options of a scheduler; later ones win."""
        opts = self.scheduler_run_opts(scheduler)
        cfg: dict[str, Any] = {}
        for literal in cfg_literals:
            cfg |= opts.cfg_from_str(literal)
        return cfg

    def _factory(self, name: str) -> SchedulerFactory:
        if self._factories is None or name == SWEEPS:
            return get_scheduler_factory(name)
        if name in self._factories:
            return self._factories[name]
        raise unknown_scheduler(name, self._factories)

    def default_scheduler(self) -> str:
        """Return the name of the scheduler that is used when none is named."""
        return get_default_scheduler_name() if self._factories is None else next(iter(self._factories))

    # ---- submitting

    def plan(self, submission: Submission) -> AppDryRunInfo[Any]:
        """Make the request for a submission and check it. Touches nothing, and leaves its job as it is.

        Raises:
            ConfigError: the component, its arguments, or the options are wrong.
            UnknownAppException: a job to wait for does not exist.
        """
        from shunter.runner.preparation import prepare  # only submissions need what these load
        from shunter.runner.submit import working_in

        scheduler = self.scheduler(submission.scheduler or self.default_scheduler())
        app = self.app_of(submission)
        text = _text_of(submission.workspace)
        with (
            working_in(submission.directory, submission.rerun_of or ""),
            log_event("dryrun", scheduler.backend, self._name, workspace=text, app_metadata=app.metadata),
        ):
            after = open_dependencies(self, scheduler, submission.after) if submission.after else []
            return prepare(scheduler, app, submission, after, self.trackers(), self.config.image())

    def submit(self, submission: Submission) -> AppHandle:
        """Submit a job; returns its handle. See `plan` and `schedule` for what can go wrong."""
        return self.schedule(self.plan(submission))

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> AppHandle:
        """Ship a job's code and send the request that `plan` made; returns the job's handle.

        The history holds an intent before anything is sent, and the outcome afterwards.

        Raises:
            StateStoreError: the intent cannot be recorded; nothing was sent.
            ShunterError: the code could not be shipped; nothing was started.
            BackendError: the scheduler refused.
        """
        from shunter.runner.submit import submit, working_in

        scheduler = self.scheduler(dryrun_info.scheduler)
        submission = dryrun_info.submission or Submission()
        with (
            working_in(submission.directory, submission.rerun_of or ""),
            log_event("schedule", scheduler.backend, self._name) as event,
        ):
            event.app_id = submit(scheduler, dryrun_info, self.history, self.progress)
        return make_app_handle(scheduler.backend, dryrun_info.session or self._name, event.app_id)

    def run_component(
        self,
        component: str,
        component_args: builtins.list[str] | dict[str, Any],
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppHandle:
        """Make a job from a component and submit it; returns its handle. See `Submission` for the rest.

        Raises:
            ConfigError: the component, its arguments, or the options are wrong; nothing was submitted.
            BackendError: the scheduler refused.
        """
        what = {"component": component, "arguments": component_args}
        return self._run("run_component", _submission(what, scheduler, cfg, workspace, parent_run_id))

    def dryrun_component(
        self,
        component: str,
        component_args: builtins.list[str] | dict[str, Any],
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Like `run_component`, but only make the request. Touches nothing."""
        what = {"component": component, "arguments": component_args}
        return self.plan(_submission(what, scheduler, cfg, workspace, parent_run_id))

    def run(
        self,
        app: AppDef,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppHandle:
        """Submit a job; returns its handle. See `Submission`."""
        return self._run("run", _submission({"app": app}, scheduler, cfg, workspace, parent_run_id))

    def dryrun(
        self,
        app: AppDef,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Make the request for a job and check it. Touches nothing, and leaves ``app`` as it is."""
        return self.plan(_submission({"app": app}, scheduler, cfg, workspace, parent_run_id))

    def _run(self, api: str, submission: Submission) -> AppHandle:
        """Plan and submit, as one event of this name."""
        text = _text_of(submission.workspace)
        with log_event(api, submission.scheduler, self._name, workspace=text) as event:
            info = self.plan(submission)
            event.scheduler, event.app_id = info.scheduler, info.app_id
            return self.schedule(info)

    def rerun(self, app_handle: AppHandle, **changes: Any) -> AppHandle:
        """Submit a job of the history again, exactly: same definition, code, options and directory.

        Args:
            app_handle: the job to repeat.
            changes: see `rerun.repetition_of`.

        Raises:
            UnknownAppException: it is not in the history.
            ConfigError: a secret that it held, its code or its directory, cannot be recovered.
        """
        return self.submit(self.repeated(app_handle, **changes))

    def repeated(self, app_handle: AppHandle, **changes: Any) -> Submission:
        """Return the submission that repeats a job of the history; changes: see `rerun.repetition_of`."""
        from shunter.runner.rerun import repeated

        return repeated(self, app_handle, **changes)

    def app_of(self, submission: Submission) -> AppDef:
        """Return the job of a submission: its own, or what its component makes."""
        app = self._app_of(submission)
        return replace(app, name=submission.name) if submission.name else app

    def _app_of(self, submission: Submission) -> AppDef:
        if submission.app is not None:
            return submission.app
        from shunter.components.finder import get_component  # only what submits needs components

        component = get_component(submission.component or "")
        defaults: dict[str, Any] = {}
        for name in (component.config_name, submission.component):  # a script's own win over train.script's
            defaults |= self.component_defaults.get(name or "", {})
        arguments = submission.arguments
        words = dict(arguments) if isinstance(arguments, Mapping) else list(arguments)
        return component.parse(words, {**defaults, **submission.defaults})

    # ---- observing

    def status(self, app_handle: AppHandle, *, refusal_is_final: bool = False) -> AppStatus | None:
        """Return the state of a job; None if there is no such job.

        When the scheduler cannot be asked, the state is that of the history if the job is known to have
        ended, else UNREACHABLE; ``msg`` says why.

        Args:
            refusal_is_final: raise `AccessError` where the scheduler refuses the credentials, rather than
                return UNREACHABLE.

        Raises:
            MalformedAppHandleException: the handle is malformed.
            UnknownSchedulerException: its scheduler does not exist.
            AccessError: see ``refusal_is_final``.
        """
        scheduler, app_id = self.locate(app_handle)
        with log_event("status", scheduler.backend, self._name, app_id=app_id):
            try:
                seen: DescribeAppResponse | Exception | None = scheduler.describe(app_id)
            except Exception as error:
                seen = error
            return self._observed(app_handle, scheduler, seen, refusal_is_final=refusal_is_final)

    def statuses(self, handles: Iterable[AppHandle]) -> dict[AppHandle, AppStatus | None]:
        """Return the states of several jobs, with one batched call for each scheduler.

        Raises:
            MalformedAppHandleException: a handle is malformed.
        """
        return observation.statuses(self.history, self.scheduler, handles)

    def jobs(
        self, limit: int | None = None, scheduler: str | None = None, *, refresh: bool = True
    ) -> builtins.list[JobRecord]:
        """Return the submissions of the history, the latest first.

        Args:
            limit: return no more than this; None for all.
            scheduler: only jobs of this scheduler.
            refresh: ask the schedulers, once each, for the states of jobs that have not ended. A job
                that cannot be seen now is UNREACHABLE.
        """
        if not refresh:
            return self.history.rows(limit, scheduler)
        return self.search(JobFilter(refused=True, scheduler=scheduler), limit)[0]

    def search(
        self, job_filter: JobFilter, limit: int | None = None, *, by_time: bool = False
    ) -> tuple[builtins.list[JobRecord], int]:
        """Return submissions of the history and the number of all that match; see `jobsearch.search`."""
        found = search(self.history, self.scheduler, job_filter, limit, by_time=by_time)
        open_races = {record.race for record in found[0] if record.race and not is_terminal(record.state)}
        if open_races and races.settle(self, open_races):
            found = search(self.history, self.scheduler, job_filter, limit, by_time=by_time)
        return found

    def recorded_jobs(
        self, job_filter: JobFilter, limit: int | None = None, offset: int = 0
    ) -> tuple[builtins.list[JobRecord], int]:
        """Return a page of the history, the latest first, and the number of all that match.

        States are those that were seen last: no scheduler is asked.
        """
        records = self.history.select(job_filter, limit, offset=offset)
        return records, self.history.count(job_filter)

    def wait(
        self, app_handle: AppHandle, wait_interval: float = 10, timeout: float | None = None
    ) -> AppStatus | None:
        """Block until a job has ended; returns None if there is no such job.

        Args:
            wait_interval: longest time between two attempts to reach a scheduler that does not answer.
                A scheduler with its own `wait` decides how often it polls.
            timeout: seconds after which the job's current state is returned; None to wait forever.

        Raises:
            AccessError: the scheduler refuses the credentials, and the job is not known to have ended.
        """
        scheduler, app_id = self.locate(app_handle)
        with log_event("wait", scheduler.backend, self._name, app_id=app_id):
            try:
                seen = observation.wait_for_end(scheduler, app_id, wait_interval, timeout)
            except AccessError as error:
                seen = error
            return self._observed(app_handle, scheduler, seen, refusal_is_final=True)

    def describe(self, app_handle: AppHandle) -> AppDef | None:
        """Return the definition of a job, from its scheduler or else the history; None if neither has it."""
        scheduler, app_id = self.locate(app_handle)
        with log_event("describe", scheduler.backend, self._name, app_id=app_id):
            return observation.definition(self.history, app_handle, scheduler.describe(app_id))

    def list(self, scheduler: str, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all jobs that the scheduler knows, their handles filled in."""
        with log_event("list", scheduler, self._name):
            jobs = self.scheduler(scheduler).list(cfg)
            for job in jobs:
                job.app_handle = make_app_handle(scheduler, self._name, job.app_id)
            return jobs

    def unrecorded_jobs(
        self, job_filter: JobFilter, cfg: Mapping[str, Any] | None = None
    ) -> builtins.list[ListAppResponse]:
        """Return the jobs that the filter's scheduler lists and the history does not know."""
        name = job_filter.scheduler or self.default_scheduler()
        return unrecorded(
            self.history, self.scheduler(name), lambda options: self.list(name, options), job_filter, cfg
        )

    def replicas(self, app_handle: AppHandle) -> builtins.list[tuple[str, int]]:
        """Return all replicas of a job in order, as pairs of role name and index.

        Raises:
            UnknownAppException: neither the scheduler nor the history knows the job.
        """
        scheduler, app_id = self.locate(app_handle)
        return observation.replicas(self.history, app_handle, scheduler.describe(app_id))

    def resolve_handle(self, text: str | None) -> AppHandle:
        """Return the handle of the job that a user names.

        Args:
            text: a handle; the beginning of an app id, or of a handle, that matches only one job of the
                history; a name, which means the latest job of that name, with a warning if there are several;
                or ``-`` or None for the job that was submitted last.

        Raises:
            UnknownAppException: no job of the history matches.
            UsageError: several jobs match; the message lists them. Or the text is empty.
        """
        return resolve(text, self._reconciled_history)

    def execute(
        self, app_handle: AppHandle, role_name: str, k: int, command: Sequence[str] = (), *, tty: bool = False
    ) -> int:
        """Run a command where a replica runs, joined to this process's streams; see `Scheduler.execute`."""
        scheduler, app_id = self.locate(app_handle)
        with log_event("execute", scheduler.backend, self._name, app_id=app_id):
            return scheduler.execute(app_id, role_name, k, command, tty=tty)

    def resolve_handles(self, texts: Iterable[str], *, latest: bool = True) -> builtins.list[AppHandle]:
        """Return the handles of the jobs that a user names, each once.

        Args:
            texts: as `resolve_handle` takes them, or patterns of names and ids with ``*``, ``?`` and ``[``.
            latest: whether a name that several jobs have means the latest; otherwise it is refused.

        Raises:
            UnknownAppException: no job of the history matches one of them.
            UsageError: what is not a pattern matches several jobs.
        """
        return resolve_all(texts, self._reconciled_history, latest=latest)

    def results(self, app_handle: AppHandle, role_name: str, k: int = 0) -> ResultPlace:
        """Return where the results of a replica are: files that can be listed and read.

        Raises:
            UnknownAppException: there is no such job.
            UsageError: it has no such replica.
            ConfigError: its results are kept nowhere; the hint says what to do.
            BackendError: the scheduler does not answer.
        """
        scheduler, app_id = self.locate(app_handle)
        if not isinstance(scheduler, KeepsResults):
            raise ConfigError(
                f"{scheduler.backend} does not say where the results of its jobs are",
                hint="Have them sent to storage: run it with --output URI.",
            )
        with log_event("results", scheduler.backend, self._name, app_id=app_id):
            return scheduler.results(app_id, role_name, k)

    def result_sources(
        self, app_handle: AppHandle, replicas: Sequence[tuple[str, int]] | None = None
    ) -> builtins.list[ResultSource]:
        """Return where the results of replicas are, all by default; see `results` for what can go wrong."""
        chosen = self.replicas(app_handle) if replicas is None else replicas
        return sources_of([(role, k, self.results(app_handle, role, k)) for role, k in chosen])

    def fetch(
        self,
        app_handle: AppHandle,
        target: str,
        patterns: Sequence[str] = (),
        *,
        replicas: Sequence[tuple[str, int]] | None = None,
        force: bool = False,
    ) -> Fetched:
        """Bring results of a job to a directory of this machine; go on where an earlier attempt ended.

        Args:
            app_handle: the job. One that runs has the results that are there so far.
            target: the directory. Several replicas go to ``ROLE/K`` below it.
            patterns: which files, see `fetched_results.chosen_files`; all by default.
            replicas: of which replicas, as pairs of role name and index; of all by default.
            force: overwrite files that differ.

        Raises:
            UnknownAppException: there is no such job.
            ConfigError: there are no such results, or a file here differs. The other files have been fetched.
            BackendError: a file could not be read. The other files have been fetched.
        """
        progress = self.progress or Silent()
        chosen = chosen_files(self.result_sources(app_handle, replicas), patterns, progress)
        fetched = fetch(chosen, target, progress, force=force)
        fetched.raise_for_problems()
        return fetched

    # ---- ending

    def cancel(self, app_handle: AppHandle) -> None:
        """Ask a job to stop. Does not wait for it; does nothing if it has ended or does not exist."""
        scheduler, app_id = self.locate(app_handle)
        with log_event("cancel", scheduler.backend, self._name, app_id=app_id):
            scheduler.cancel(app_id)

    def cancel_replicas(self, app_handle: AppHandle, replicas: Sequence[tuple[str, int]]) -> None:
        """Ask single replicas of an array to stop; see `CancelsReplicas`.

        Raises:
            ConfigError: the scheduler cannot do that, or the job's replicas belong together.
        """
        scheduler, app_id = self.locate(app_handle)
        if not isinstance(scheduler, CancelsReplicas):
            raise ConfigError(
                f"{scheduler.backend} cannot cancel single replicas",
                hint="Without ROLE/ID the whole job is cancelled.",
            )
        with log_event("cancel", scheduler.backend, self._name, app_id=app_id):
            scheduler.cancel_replicas(app_id, replicas)

    def cancel_many(self, app_handles: Iterable[AppHandle]) -> dict[AppHandle, ShunterError | None]:
        """Ask jobs to stop, with few calls; returns what went wrong for each, None if nothing did."""
        return observation.cancel_all(self, app_handles)

    def stop(self, app_handle: AppHandle) -> None:
        """Do what `cancel` does; TorchX's older name for it."""
        self.cancel(app_handle)

    def delete(self, app_handle: AppHandle) -> None:
        """Remove what the scheduler keeps of a job that has ended, and leave it out of lists.

        Raises:
            UnknownAppException: neither the scheduler nor the history knows the job.
            ConfigError: it has not ended.
        """
        error = self.delete_many([app_handle])[app_handle]
        if error is not None:
            raise error

    def delete_many(self, app_handles: Iterable[AppHandle]) -> dict[AppHandle, ShunterError | None]:
        """Do for several jobs what `delete` does; returns what went wrong for each, None if nothing did."""
        return observation.delete_all(self, app_handles)

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
        scheduler, app_id = self.locate(app_handle)
        with log_event("log_lines", scheduler.backend, self._name, app_id=app_id):
            _require(app_handle, scheduler, app_id)
            lines = scheduler.log_iter(app_id, role_name, k, regex, since, until, should_tail, streams)
            return lines if scheduler.capabilities.is_local else shown_lines(lines)

    def log_blocks(
        self,
        app_handle: AppHandle,
        replicas: Sequence[tuple[str, int]],
        query: LogQuery,
        *,
        with_usage: bool = False,
    ) -> Iterator[LogBlock]:
        """Return the log lines of several replicas, in about the order in which they were written.

        Args:
            app_handle: the job.
            replicas: pairs of role name and index.
            query: which lines.
            with_usage: also those that say what the script uses, see `shunter._toolkit.usage_log`.

        Raises:
            UnknownAppException: there is no such job.
        """
        scheduler, app_id = self.locate(app_handle)
        with log_event("log_lines", scheduler.backend, self._name, app_id=app_id):
            _require(app_handle, scheduler, app_id)
            if scheduler.capabilities.is_local:
                return scheduler.log_blocks(app_id, replicas, query)
            return shown_blocks(scheduler, app_id, replicas, query, with_usage=with_usage)

    def log_part(self, app_handle: AppHandle, role_name: str, k: int, wanted: LogRange) -> LogPart | None:
        """Return a part of a replica's log; None where the scheduler has none, see `Scheduler.log_part`."""
        scheduler, app_id = self.locate(app_handle)
        part = scheduler.log_part(app_id, role_name, k, wanted)
        return part and replace(part, data=shown(part.data))

    # ---- shared

    def locate(self, app_handle: AppHandle) -> tuple[Scheduler[Any], str]:
        """Return a job's scheduler, and its id there."""
        parsed = parse_app_handle(app_handle)
        return self.scheduler(parsed.scheduler_backend), parsed.app_id

    def _observed(
        self,
        app_handle: AppHandle,
        scheduler: Scheduler[Any],
        seen: DescribeAppResponse | Exception | None,
        *,
        refusal_is_final: bool,
    ) -> AppStatus | None:
        """Return the state of a job by its scheduler's answer, and record it; or else the history's."""
        if seen is None:
            return observation.unseen_status(self.history, self.scheduler, app_handle)
        if isinstance(seen, Exception):
            ended = observation.known_end(self.history, app_handle, seen)
            if ended is None and refusal_is_final and isinstance(seen, AccessError):
                raise seen
            return ended or observation.unreachable(seen)
        status = seen.to_status()
        # Opening the history takes longer than the whole `status` of a local job, which can be asked again.
        if self._history is not None or not scheduler.capabilities.is_local:
            with suppress(StateStoreError):
                record = self.history.find(app_handle)
                status = races.as_lost(record, app_handle, status)
                observation.record_states(self.history, [(app_handle, status)])
                if record is not None and record.race:
                    races.settle(self, [record.race])
        return status

    def _reconciled_history(self) -> History:
        intents = self.history.intents()
        if intents:
            reconcile(self.history, self.scheduler, intents)
        return self.history


class RunnerContext(Context):
    """Tells a scheduler what the runner's history and configuration hold for it."""

    def __init__(self, runner: Runner, scheduler: Scheduler[Any]) -> None:
        self.runner = runner
        self._scheduler = scheduler

    def native_id(self, app_id: str) -> str | None:
        """Return the backend's own id of a job of this scheduler, if the history has it."""
        handle = make_app_handle(self._scheduler.backend, self._scheduler.session_name, app_id)
        try:
            record = self.runner.history.find(handle)
        except StateStoreError:
            return None  # the backend can be asked
        return None if record is None else record.native_id

    def configured_options(self) -> dict[str, Any]:
        """Return the scheduler's options that are configured for this directory, without defaults."""
        options = effective_options(
            self.runner.config, self._scheduler.backend, self._scheduler.run_opts(), refuse_withheld=False
        )
        return {key: setting.value for key, setting in options.items() if setting.kind != DEFAULT}


def _submission(
    what: dict[str, Any],
    scheduler: str | None,
    cfg: Mapping[str, Any] | None,
    workspace: Workspace | str | None,
    parent_run_id: str | None,
) -> Submission:
    """Return a submission of TorchX's parameters; ``what`` is the app, or component and arguments."""
    return Submission(
        **what,
        scheduler=scheduler or "",
        options=cfg or {},
        workspace=workspace,
        parent_run_id=parent_run_id,
    )


def _require(app_handle: AppHandle, scheduler: Scheduler[Any], app_id: str) -> None:
    if not scheduler.exists(app_id):
        raise unknown_job(app_handle)


def _text_of(workspace: Workspace | str | None) -> str | None:
    """Return a workspace as events name it."""
    return None if workspace is None else str(workspace)
