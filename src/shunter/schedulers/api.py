"""The interface between the runner and a scheduler: `Scheduler`, and the values that it takes and returns."""

from __future__ import annotations

import builtins
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from shunter._toolkit.environment_description import Description
from shunter.backoff import polling
from shunter.errors import BackendError, ConfigError, ShunterError, UnreachableError
from shunter.progress import Progress, Silent
from shunter.schedulers.capabilities import UNDECLARED, Capabilities, check_needs, has_own
from shunter.schedulers.lines import iter_lines, merge_line_iterators
from shunter.schedulers.responses import (
    NOT_SET,
    Check,
    Dependency,
    DescribeAppResponse,
    JobDetails,
    Leftover,
    ListAppResponse,
    LogBlock,
    LogPart,
    LogQuery,
    LogRange,
    Stream,
)
from shunter.specs.app import AppDef, Role, validate_app
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import runopts
from shunter.specs.status import is_terminal
from shunter.specs.workspace import Workspace
from shunter.workspace.shipment import Shipment, replace_references
from shunter.workspace.toolkit_files import ToolkitPlace

T = TypeVar("T")

__all__ = [
    "NOT_SET",
    "CancelsReplicas",
    "Capabilities",
    "Check",
    "Dependency",
    "DescribeAppResponse",
    "JobDetails",
    "Leftover",
    "ListAppResponse",
    "LogBlock",
    "LogPart",
    "LogQuery",
    "LogRange",
    "Scheduler",
    "Stream",
    "filter_regex",
    "not_an_array",
    "not_ended",
    "not_running",
    "poll_until_ended",
]


class Context:
    """What a scheduler may ask the program that uses it; a scheduler that is used alone gets no answers."""

    def native_id(self, app_id: str) -> str | None:
        """Return the backend's own id of a job of this scheduler, if the history has it."""
        return None

    def configured_options(self) -> Mapping[str, Any]:
        """Return the scheduler's options that are configured for this directory, without defaults."""
        return {}


@runtime_checkable
class CancelsReplicas(Protocol):
    """A scheduler that can stop single replicas of a job whose replicas are independent."""

    def cancel_replicas(self, app_id: str, replicas: Sequence[tuple[str, int]]) -> None:
        """Ask replicas to stop, by role and index; the others go on.

        Raises:
            UnknownAppException: there is no such job.
            UsageError: it has no such replica.
            ConfigError: the job's replicas belong together.
        """


@runtime_checkable
class TakesLeases(Protocol):
    """A scheduler whose jobs can take part in a race: at their start they take the lease ``info.lease``."""

    def lease_place(self, info: AppDryRunInfo[Any]) -> tuple[str, str]:
        """Return the host and the shared folder on which a planned job sees leases.

        The host is "" for this machine; both are "" if the job sees every folder of this machine.
        """

    def lease_holder(self, app_id: str) -> str:
        """Return the handle of the job that has the lease of a job's race; "" if none has it.

        Raises:
            BackendError: it cannot be seen now.
        """


class Scheduler(ABC, Generic[T]):
    """A backend that runs jobs. ``T`` is the type of its options.

    A scheduler must implement `_submit_dryrun`, `schedule`, `describe` and `list`, and to be useful also
    `_cancel_existing` and `log_iter` (or `log_blocks`). The other methods have a body here, written in terms
    of these, and are overridden where the backend offers more. Methods that begin with an underscore are
    hooks of the methods of this class; the runner does not call them.

    Args:
        backend: its name, the first part of handles.
        session_name: name of the runner's session, the second part.

    Attributes:
        opts_class: the options dataclass, its fields made by `shunter.specs.option`.
        capabilities: what it can do beyond what its methods and options show; see `capabilities_of`.
        context: what the runner tells it about jobs and configuration.
    """

    opts_class: type[Any] | None = None
    capabilities: Capabilities = UNDECLARED

    def __init__(self, backend: str, session_name: str) -> None:
        self.backend = backend
        self.session_name = session_name
        self.context = Context()

    def close(self) -> None:
        """Release connections and threads. May be called more than once."""

    def run_opts(self) -> runopts:
        """Return the options that jobs on this scheduler take."""
        return runopts() if self.opts_class is None else runopts.from_dataclass(self.opts_class)

    # ---- submitting

    def submit(self, app: AppDef, cfg: Any, workspace: Workspace | str | None = None) -> str:
        """Check, prepare and start a job without a runner; returns its id. For tests."""
        info = self.submit_dryrun(app, cfg, workspace)
        info.warn()
        self.ship(info)
        return self.schedule(info)

    def submit_dryrun(
        self,
        app: AppDef,
        cfg: Any,
        workspace: Workspace | str | None = None,
        after: Sequence[Dependency] = (),
    ) -> AppDryRunInfo[Any]:
        """Check the job and make the request that `schedule` would send. Changes nothing outside ``app``.

        Args:
            app: the job. Roles with a training specification become calls of the toolkit, and with a
                workspace their images become those that will hold it.
            cfg: the scheduler's options.
            workspace: the code that travels with the job, see `Workspace.from_str`.
            after: jobs of this scheduler that have to end before this one starts.

        Raises:
            InvalidRunConfigException: an option is unknown, missing or of the wrong type.
            ConfigError: the job cannot run on this scheduler, or cannot wait for others.
            UnknownAppException: there is no such job to wait for.
        """
        # what only submissions need takes longer to load than all that `list` or `status` needs
        from shunter.schedulers.toolkit_start import start_toolkits
        from shunter.workspace import environment

        validate_app(app)
        warnings = start_toolkits(app, self.backend, self.capabilities, self._toolkit_place)
        resolved = self.run_opts().resolve(cfg)
        self._validate(app, resolved)
        warnings += check_needs(self.backend, self.capabilities, app)
        if not isinstance(workspace, Workspace):
            workspace = Workspace.from_str(workspace)
        shipment = self._plan_shipment(app, workspace, resolved)
        if shipment is None:
            info = self._submit_dryrun(app, resolved)
        else:
            info = self._submit_dryrun(app, resolved, shipment)
        info.app = app
        info.shipment = shipment
        info.cfg = resolved
        info.warnings[:0] = warnings
        info.environments = {
            role.name: self._plan_environment(info, description)
            for role, description in environment.of_app(app)
        }
        info.scheduler = self.backend
        info.session = self.session_name
        for role in app.roles:
            info = role.pre_proc(self.backend, info)
        if after:
            self._depend_on(info, after)
        return info

    @abstractmethod
    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[Any]:
        """Make the native request from a valid job and resolved options.

        ``shipment`` is passed only by schedulers whose `_plan_shipment` returns one.
        """

    def _validate(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        """Refuse what this scheduler cannot run."""

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan how a workspace gets to the job; None if nothing has to travel. Only reads.

        A scheduler that ships code overrides this, and may set the roles' images to their future names.

        Raises:
            ConfigError: this scheduler cannot ship this code.
        """
        if workspace:
            raise ConfigError(
                f"{self.backend} cannot ship a workspace: {workspace}", hint="Leave --workspace out."
            )
        return None

    def _toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where a role's replicas will find the toolkit; None if it cannot be shipped to them."""
        return None

    def _depend_on(self, info: AppDryRunInfo[Any], dependencies: Sequence[Dependency]) -> None:
        """Let the job of a request start only after others. Changes ``info.request``, and starts nothing."""
        raise cannot_wait(self.backend)

    def _plan_environment(self, info: AppDryRunInfo[Any], description: Description) -> dict[str, Any]:
        """Say how a role gets its Python environment, as JSON values. Builds nothing."""
        from shunter.workspace import environment

        place = "is installed where the job runs, at its start, unless it is there"
        return {**environment.summary(description), "built": None, "place": place}

    def _build_environments(self, info: AppDryRunInfo[Any], progress: Progress) -> None:
        """Build the Python environments of a job, where that is done before it is submitted.

        Where the toolkit builds them in the job, this does nothing.

        Raises:
            ShunterError: one could not be built; no job may be started.
        """

    def ship(self, info: AppDryRunInfo[Any], progress: Progress | None = None) -> None:
        """Bring a job's environment and code to where it will run, and put the exact images into the request.

        Called before `schedule`. Does nothing for a job without a workspace and an environment.

        Raises:
            ShunterError: one of them could not be brought; no job may be started.
        """
        progress = progress or Silent()
        if info.environments:
            self._build_environments(info, progress)
        if info.shipment is None:
            return
        self._check_before_shipping(info)
        for warning in info.shipment.report.warnings():
            progress.done(warning)
        self._put_images(info, info.shipment.ship(progress))

    def _put_images(self, info: AppDryRunInfo[Any], references: Mapping[str, str]) -> None:
        """Put the exact images in place of the planned ones."""
        info.request = replace_references(info.request, references)
        roles = info.app.roles if info.app is not None else []
        info.images = {role.name: references[role.image] for role in roles if role.image in references}
        for role in roles:
            role.image = references.get(role.image, role.image)

    def _check_before_shipping(self, info: AppDryRunInfo[Any]) -> None:
        """Check with a call or two whether the backend would accept the job, before its code is sent.

        Raises:
            ShunterError: it would not, for example for lack of credentials or of the queue.
        """

    @abstractmethod
    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Send a request and return the id of the job.

        Sets ``dryrun_info.native_id`` where the backend's own id is a different one.

        Raises:
            BackendError: the backend refused it or could not be reached.
        """

    # ---- observing

    @abstractmethod
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what the scheduler knows of a job; None if it does not know the id."""

    def describe_many(
        self, app_ids: Iterable[str]
    ) -> Mapping[str, DescribeAppResponse | ShunterError | None]:
        """Describe several jobs, with few calls where the backend allows it.

        A job that cannot be asked for, although others can, has its error in place of a description.
        """
        return {app_id: self.describe(app_id) for app_id in app_ids}

    @abstractmethod
    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all jobs that were launched on this scheduler, complete."""

    def exists(self, app_id: str) -> bool:
        """Tell whether the scheduler knows a job of this id."""
        return self.describe(app_id) is not None

    def wait(self, app_id: str, timeout: float | None = None) -> DescribeAppResponse | None:
        """Block until the job ends or ``timeout`` seconds pass, and describe it; None for an unknown id.

        Polls as often as `shunter.backoff.polling` says, unless the backend can notify.
        """
        return poll_until_ended(lambda: self.describe(app_id), timeout)

    def details(self, app_id: str) -> JobDetails:
        """Return what else can be asked about a job, such as its place in the queue."""
        return JobDetails()

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command where a replica runs, joined to this process's stdin, stdout and stderr.

        Args:
            app_id: id of the job.
            role_name: name of the role.
            k: index of the replica.
            command: program and arguments; empty for a shell.
            tty: give it a terminal, which is resized with this process's terminal and receives its Ctrl-C.
                This process's stdin is then a terminal. See `shunter.schedulers.joined_terminal`.

        Returns:
            The exit code of the command; 128 + N if signal N ended it.

        Raises:
            UnknownAppException: there is no such job.
            ConfigError: the replica does not exist or is not running, or nothing can be started in it.
        """
        raise ConfigError(
            f"{self.backend} cannot run a command in a job",
            hint="`shunter schedulers` shows which schedulers can.",
        )

    # ---- ending

    def cancel(self, app_id: str) -> None:
        """Ask the job to stop. Does not wait for it; does nothing if it has ended or does not exist."""
        if self.exists(app_id):
            self._cancel_existing(app_id)

    def _cancel_existing(self, app_id: str) -> None:
        raise NotImplementedError(f"{self.backend} cannot cancel jobs")

    def cancel_many(self, app_ids: Iterable[str]) -> dict[str, ShunterError | None]:
        """Ask jobs to stop, with few calls where the backend allows it; returns what failed for each."""
        return {app_id: attempt(self.cancel, app_id) for app_id in app_ids}

    def delete(self, app_id: str) -> None:
        """Remove what the scheduler keeps of a job that has ended. Does nothing if it does not exist.

        Raises:
            ConfigError: the job has not ended.
        """
        if self.exists(app_id):
            self._delete_existing(app_id)

    def _delete_existing(self, app_id: str) -> None:
        raise NotImplementedError(f"{self.backend} cannot delete jobs")

    # ---- housekeeping

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check whether jobs with these options could run. Changes nothing.

        Args:
            cfg: options; missing ones are not checked.
            job: a job that is planned: also check whether it could run now. Nothing of it is sent or built.
        """
        if job is None or not has_own(self, "_check_before_shipping"):
            return []
        return [accepted("the job", lambda: self._check_before_shipping(job), "would be accepted")]

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return what jobs left behind at the backend more than ``older_than`` seconds ago."""
        raise NotImplementedError(f"{self.backend} has no leftovers to remove")

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove what `leftovers` returned; returns the number of bytes freed.

        Raises:
            ShunterError: something cannot be removed; the rest has been.
        """
        raise NotImplementedError(f"{self.backend} has no leftovers to remove")

    # ---- logs

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        r"""Return the log lines of a role's k-th replica. A scheduler implements this or `log_blocks`.

        Each has its line end: ``\n``, or the ``\r`` of a progress bar.

        Args:
            app_id: id of the job.
            role_name: name of the role.
            k: index of the replica.
            regex: only lines in which this matches somewhere.
            since: only lines written at or after this time, where the scheduler keeps times.
            until: only lines written before this time, likewise.
            should_tail: follow until the job has ended and its log is read to the end.
            streams: which output stream; None for the scheduler's default.

        Raises:
            ValueError: the scheduler does not have this stream, or the job no such replica.
            NotImplementedError: the scheduler cannot read logs.
        """
        if type(self).log_blocks is Scheduler.log_blocks:
            raise NotImplementedError(f"{self.backend} cannot read logs")
        query = LogQuery(regex, since, until, should_tail, streams)
        blocks = self.log_blocks(app_id, [(role_name, k)], query)
        return (line.decode("utf-8", "replace") for block in blocks for line in iter_lines(block.data))

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return the lines of several replicas, in about the order in which they were written.

        Args:
            app_id: id of the job.
            replicas: pairs of a role's name and a replica's index.
            query: which lines.
        """
        iterators = {
            (role, k): self.log_iter(
                app_id, role, k, query.regex, query.since, query.until, query.should_tail, query.streams
            )
            for role, k in replicas
        }
        return merge_line_iterators(iterators, query.last)

    def log_part(self, app_id: str, role_name: str, k: int, wanted: LogRange) -> LogPart | None:
        """Return a part of a replica's log, at a cost that does not grow with the log.

        None where logs can only be read from their beginning or from their end.
        """
        return None


def attempt(action: Callable[[str], None], app_id: str) -> ShunterError | None:
    """Carry out an action on a job; returns the error if it failed."""
    try:
        action(app_id)
    except ShunterError as error:
        return error
    except NotImplementedError as error:
        return BackendError(str(error))
    return None


def not_an_array(app_id: str) -> ConfigError:
    """Return the error for a job whose single replicas cannot be cancelled."""
    return ConfigError(
        f"{app_id} is not an array: its replicas work together",
        hint=f"Cancel all of it: shunter cancel {app_id}",
    )


def not_ended(app_id: str, state: object) -> ShunterError:
    """Return the error for a job that cannot be deleted because it is not known to have ended."""
    if str(state) == "UNREACHABLE":
        return UnreachableError(
            f"{app_id} cannot be seen now, so it cannot be deleted", hint="Try again later."
        )
    return ConfigError(f"{app_id} is {state}, so it cannot be deleted", hint="Cancel it first.")


def not_running(replica: str, state: object) -> ConfigError:
    """Return the error for a replica in which nothing can be started; ``replica`` names it in messages."""
    return ConfigError(
        f"{replica} is not running, so nothing can be started in it: it is {state}",
        hint="`shunter status` shows which replicas run.",
    )


def cannot_wait(backend: str) -> ConfigError:
    """Return the error for a job that is to wait for others on a scheduler that cannot do that."""
    return ConfigError(
        f"{backend} cannot let a job wait for others",
        hint="Wait for them first: `shunter wait HANDLE && shunter run ...`.",
    )


def accepted(name: str, attempt: Callable[[], object], text: str) -> Check:
    """Return the result of a check that raises an error if it fails; a remark if it gets no answer."""
    try:
        attempt()
    except UnreachableError as error:
        return Check(name, None, f"it was not checked: {error.message}", error.hint)
    except ShunterError as error:
        return Check(name, False, error.message, error.hint)
    return Check(name, True, text)


def if_reachable(checks: Sequence[Check], more: Callable[[], Sequence[Check]]) -> list[Check]:
    """Return checks, and those of ``more`` unless the first one, of the connection, has failed."""
    return [*checks, *(more() if not checks or checks[0].ok is not False else ())]


def poll_until_ended(
    describe: Callable[[], DescribeAppResponse | None], timeout: float | None = None
) -> DescribeAppResponse | None:
    """Describe a job until it has ended, does not exist, or ``timeout`` seconds have passed."""
    polls = polling(timeout)
    while True:
        response = describe()
        if response is None or is_terminal(response.state) or not polls.pause():
            return response


def filter_regex(regex: str, data: Iterable[str]) -> Iterable[str]:
    """Keep the lines in which the regular expression matches somewhere."""
    pattern = re.compile(regex)
    return filter(pattern.search, data)
