"""The interface between the runner and a scheduler.

A scheduler implements four primitives (`_submit_dryrun`, `schedule`, `describe`, `list`), and
`_cancel_existing` and `log_iter` where its backend can. Everything else has a body here, written in terms
of those, and is overridden only where the backend offers something better: `wait` where it notifies,
`describe_many` where it takes many ids, `log_blocks` where it reads many replicas at once.
"""

from __future__ import annotations

import builtins
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
    Leftover,
    ListAppResponse,
    LogBlock,
    LogGrowth,
    LogPart,
    LogQuery,
    LogRange,
    ReplicaUsage,
    Stream,
)
from shunter.specs.app import AppDef, Role, validate_app
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import runopts
from shunter.specs.status import is_terminal
from shunter.specs.workspace import Workspace

if TYPE_CHECKING:
    from shunter.workspace.shipment import Shipment
    from shunter.workspace.toolkit_files import ToolkitPlace

T = TypeVar("T")

__all__ = [
    "NOT_SET",
    "Capabilities",
    "Check",
    "Dependency",
    "DescribeAppResponse",
    "Leftover",
    "ListAppResponse",
    "LogBlock",
    "LogGrowth",
    "LogPart",
    "LogQuery",
    "LogRange",
    "ReplicaUsage",
    "Scheduler",
    "Stream",
    "filter_regex",
    "not_ended",
    "not_running",
    "poll_until_ended",
]


class Scheduler(ABC, Generic[T]):
    """A backend that runs jobs. ``T`` is the type of its options.

    Args:
        backend: its name, the first part of handles.
        session_name: name of the runner's session, the second part.
    """

    #: The options dataclass, its fields made by `shunter.specs.option`.
    opts_class: type[Any] | None = None
    #: What it can do beyond what its methods and options show; see `capabilities_of`.
    capabilities: Capabilities = UNDECLARED
    #: Whether jobs run on this machine, so that a command that starts one follows it by default.
    is_local = False
    #: Whether the current directory travels with a job by default, as an image needs the user's code.
    ships_by_default = False
    #: Whether every role needs an image, so that a role without one gets the default image.
    runs_images = False
    #: Whether the scheduler itself ships the workspaces that roles name, as plugins for TorchX of 2026 do.
    builds_roles = False
    #: The filters that `list` accepts in ``cfg`` in addition to options: ``states`` (a set of `AppState`),
    #: ``since`` (seconds since the epoch), ``all`` (also jobs that are not ours).
    list_filters: frozenset[str] = frozenset()
    #: Whether the scheduler runs a role's ``metadata["train"]`` itself, without the toolkit.
    reads_training_specs = False

    def __init__(self, backend: str, session_name: str) -> None:
        self.backend = backend
        self.session_name = session_name

        #: Returns the backend's id of a job of ours, if the history has it. Set by the runner.
        self.recall: Callable[[str], str | None] = lambda app_id: None
        #: Returns the options configured for this directory, without defaults. Set by the runner.
        self.configured: Callable[[], Mapping[str, Any]] = dict

    def close(self) -> None:
        """Release connections and threads. May be called more than once."""

    def run_opts(self) -> runopts:
        """Return the options that jobs on this scheduler take."""
        return runopts() if self.opts_class is None else runopts.from_dataclass(self.opts_class)

    # ---- submitting

    def expect_submission(self) -> None:
        """Start work that does not need the job yet. A job may or may not follow."""

    def submit(self, app: AppDef, cfg: Any, workspace: Workspace | str | None = None) -> str:
        """Check, prepare and start a job without a runner; returns its id. For tests."""
        info = self.submit_dryrun(app, cfg, workspace)
        info.warn()
        self.ship(info)
        return self.schedule(info)

    def submit_dryrun(
        self, app: AppDef, cfg: Any, workspace: Workspace | str | None = None
    ) -> AppDryRunInfo[Any]:
        """Check the job and make the request that `schedule` would send. Changes nothing outside ``app``.

        Args:
            app: the job. With a workspace, its images become those that will hold the workspace.
            cfg: the scheduler's options.
            workspace: the code that travels with the job, see `Workspace.from_str`.

        Raises:
            InvalidRunConfigException: an option is unknown, missing or of the wrong type.
            ConfigError: the job cannot run on this scheduler.
        """
        validate_app(app)
        return self.make_dryrun(app, cfg, workspace)

    def make_dryrun(
        self, app: AppDef, cfg: Any, workspace: Workspace | str | None = None
    ) -> AppDryRunInfo[Any]:
        """Make the request for a job that has passed `validate_app`; see `submit_dryrun`."""
        resolved = self.run_opts().resolve(cfg)
        self._validate(app, resolved)
        warnings = check_needs(self.backend, self.capabilities, app)
        if not isinstance(workspace, Workspace):
            workspace = Workspace.from_str(workspace)
        shipment = self.plan_shipment(app, workspace, resolved)
        info = self._make_request(app, resolved, shipment)
        info.app = app
        info.shipment = shipment
        info.cfg = resolved
        info.warnings[:0] = warnings
        info.scheduler = self.backend
        info.session = self.session_name
        for role in app.roles:
            info = role.pre_proc(self.backend, info)
        return info

    def depend_on(self, info: AppDryRunInfo[Any], dependencies: Sequence[Dependency]) -> None:
        """Let the job of a request start only after other jobs of this scheduler. Changes ``info.request``.

        Called once, after `make_dryrun` and before `ship`. It may query the backend, but starts nothing.

        Raises:
            ConfigError: this scheduler, or this kind of job, cannot wait for others.
            UnknownAppException: there is no such job.
        """
        raise ConfigError(
            f"{self.backend} cannot let a job wait for others",
            hint="Wait for them first: `shunter wait HANDLE && shunter run ...`.",
        )

    def plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan how a workspace gets to the job; None if nothing has to travel. Only reads.

        A scheduler that ships code overrides this, and may set the roles' images to their future names.

        Raises:
            ConfigError: this scheduler cannot ship this code.
        """
        if workspace:
            raise ConfigError(
                f"{self.backend} cannot ship a workspace: {workspace}",
                hint="Leave --workspace out.",
            )
        return None

    def toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where a role's replicas will find the toolkit; None if it cannot be shipped to them."""
        return None

    def check_before_shipping(self, info: AppDryRunInfo[Any], progress: Progress) -> None:
        """Check with a call or two whether the backend would accept the job, before its code is sent.

        Raises:
            ShunterError: it would not, for example for lack of credentials or of the queue.
        """

    def ship(self, info: AppDryRunInfo[Any], progress: Progress | None = None) -> None:
        """Ship a job's code to where it will run, and put the exact images into the request.

        Called before `schedule`. Does nothing for a job without a workspace.

        Raises:
            ShunterError: the code could not be shipped; no job may be started.
        """
        from shunter.workspace.shipment import replace_references

        if info.shipment is None:
            return
        progress = progress or Silent()
        self.check_before_shipping(info, progress)
        for warning in info.shipment.report.warnings():
            progress.done(warning)
        references = info.shipment.ship(progress)
        info.request = replace_references(info.request, references)
        roles = info.app.roles if info.app is not None else []
        info.record["images"] = {
            role.name: references[role.image] for role in roles if role.image in references
        }
        for role in roles:
            role.image = references.get(role.image, role.image)

    def jobs_at_a_time(self, app: AppDef, cfg: Mapping[str, Any]) -> int | None:
        """Return how many jobs like this one a sweep runs at a time by default; None for no limit."""
        return None

    def own_directory(self, app_id: str, role: str, replica: object) -> str:
        """Return the working directory that a point of a sweep has for itself; "" if that is not known."""
        return ""

    def has_images(self, images: Sequence[str]) -> bool:
        """Tell whether all of these images, which `ship` made, still exist."""
        return False

    def _make_request(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None
    ) -> AppDryRunInfo[Any]:
        """Make the request; overridden by schedulers whose requests depend on how the code travels."""
        return self._submit_dryrun(app, cfg)

    def _validate(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        """Refuse what this scheduler cannot run. Overridden by schedulers."""

    @abstractmethod
    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Any]:
        """Make the native request from a valid job and resolved options."""

    @abstractmethod
    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Send a request and return the id of the job.

        Raises:
            BackendError: the backend refused it or could not be reached.
        """

    # ---- observing

    @abstractmethod
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what the scheduler knows of a job; None if it does not know the id."""

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe several jobs, with few calls where the backend allows it."""
        return {app_id: self.describe(app_id) for app_id in app_ids}

    @abstractmethod
    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all jobs that were launched on this scheduler, complete."""

    def lists(self, app_id: str, cfg: Mapping[str, Any]) -> bool:
        """Tell whether `list` with these options would include a job of this id."""
        return True

    def exists(self, app_id: str) -> bool:
        """Tell whether the scheduler knows a job of this id."""
        return self.describe(app_id) is not None

    def wait(self, app_id: str, timeout: float | None = None) -> DescribeAppResponse | None:
        """Block until the job ends or ``timeout`` seconds pass, and describe it; None for an unknown id.

        Polls as often as `shunter.backoff.polling` says, unless the backend can notify.
        """
        return poll_until_ended(lambda: self.describe(app_id), timeout)

    def notify(self, app_id: str, changed: Event) -> Callable[[], object] | None:
        """Set an event whenever a job changes, or can no longer be observed.

        Returns:
            A function that ends the notifications; None if the backend cannot notify and must be polled.
        """
        return None

    def queue_position(self, app_id: str) -> str:
        """Return a waiting job's place in the queue and its expected start, in words; "" if unknown."""
        return ""

    def smallest_change(self, app_id: str) -> str:
        """Return in words what change would let a waiting job start right now; "" if unknown."""
        return ""

    def job_output(self, app_id: str) -> Sequence[str]:
        """Return the last lines that the backend's programs wrote about a job, in addition to its logs."""
        return ()

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

    def cancel_many(self, app_ids: Iterable[str]) -> dict[str, ShunterError | None]:
        """Ask jobs to stop, with few calls where the backend allows it; returns what failed for each."""
        return {app_id: attempt(self.cancel, app_id) for app_id in app_ids}

    def _cancel_existing(self, app_id: str) -> None:
        raise NotImplementedError(f"{self.backend} cannot cancel jobs")

    def interrupt(self, app_id: str, absence: float = 0.0) -> None:
        """Simulate a spot interruption: stop the job's machines, and restart it ``absence`` seconds later.

        Raises:
            ConfigError: this scheduler cannot simulate that, or the job is not running on spot machines.
            UnknownAppException: there is no such job.
        """
        raise ConfigError(f"{self.backend} cannot simulate interruptions", hint="sagemaker_local can.")

    def delete(self, app_id: str) -> None:
        """Remove what the scheduler keeps of a job that has ended. Does nothing if it does not exist.

        Raises:
            ConfigError: the job has not ended.
        """
        if self.exists(app_id):
            self._delete_existing(app_id)

    def delete_many(self, app_ids: Iterable[str]) -> dict[str, ShunterError | None]:
        """Remove what the scheduler keeps of jobs that have ended; returns what failed for each."""
        return {app_id: attempt(self.delete, app_id) for app_id in app_ids}

    def _delete_existing(self, app_id: str) -> None:
        raise NotImplementedError(f"{self.backend} cannot delete jobs")

    # ---- housekeeping

    def doctor(self, cfg: Mapping[str, Any]) -> builtins.list[Check]:
        """Check whether jobs with these options could run. Changes nothing.

        Args:
            cfg: options; missing ones are not checked.
        """
        raise NotImplementedError(f"{self.backend} has no checks")

    def check_job(self, info: AppDryRunInfo[Any]) -> builtins.list[Check]:
        """Ask the backend whether this very job could run now: what `doctor` cannot know without the job.

        Nothing is sent, built or submitted. By default what is checked before code is shipped.
        """
        if not has_own(self, "check_before_shipping"):
            return []
        return [accepted("the job", lambda: self.check_before_shipping(info, Silent()), "would be accepted")]

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return what jobs left behind at the backend more than ``older_than`` seconds ago."""
        raise NotImplementedError(f"{self.backend} has no leftovers to remove")

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove what `leftovers` found; returns the number of bytes freed.

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

    def log_growth(
        self, app_id: str, replicas: Sequence[tuple[str, int]], position: dict[str, Any], *, to_the_end: bool
    ) -> Iterator[LogGrowth] | None:
        """Return what logs have grown by since a position, by stream; None if only `log_blocks` can read.

        Args:
            app_id: id of the job.
            replicas: pairs of a role's name and a replica's index.
            position: how far each log has been read, as JSON values; empty at first. It is updated.
            to_the_end: also yield a last line without its end, since no more will come.
        """
        return None

    def usage(self, app_id: str, after: float) -> Iterator[ReplicaUsage]:
        """Return the samples of what replicas used that were taken after a time.

        Args:
            app_id: id of the job.
            after: seconds since the epoch.
        """
        return iter(())


def attempt(action: Callable[[str], None], app_id: str) -> ShunterError | None:
    """Carry out an action on a job; returns the error if it failed."""
    try:
        action(app_id)
    except ShunterError as error:
        return error
    except NotImplementedError as error:
        return BackendError(str(error))
    return None


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


def accepted(name: str, attempt: Callable[[], object], text: str) -> Check:
    """Return the result of a check that raises an error if it fails; a remark if it gets no answer."""
    try:
        attempt()
    except UnreachableError as error:
        return Check(name, None, f"it was not checked: {error.message}", error.hint)
    except ShunterError as error:
        return Check(name, False, error.message, error.hint)
    return Check(name, True, text)


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
