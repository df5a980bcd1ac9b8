"""The template of a cluster's scheduler: everything that does not depend on the native commands.

A backend fills the hooks at the beginning of `HpcScheduler`; none of them knows of ssh, files or histories.
"""

from __future__ import annotations

import builtins
import os
import posixpath
import re
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from shunter._toolkit.environment_description import Description
from shunter.errors import BackendError, ConfigError, ShunterError, UnknownAppException, UnreachableError
from shunter.paths import existing
from shunter.progress import Progress
from shunter.schedulers.api import (
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
    Scheduler,
    Stream,
    not_an_array,
    not_ended,
)
from shunter.schedulers.capabilities import SEPARATE_STREAMS, Capabilities
from shunter.schedulers.hpc import follow_up_request, leases, shared_environments, shared_folder, submission
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.follow_up_request import AFTER, QueueWords, command_after
from shunter.schedulers.hpc.housekeeping import avoided_hosts, leftovers, shared_folder_check
from shunter.schedulers.hpc.logs import SharedLogs, follow, read, read_part, scripts_output
from shunter.schedulers.hpc.meeting_ports import set_meeting_ports
from shunter.schedulers.hpc.observe import state_by_records
from shunter.schedulers.hpc.observed_job import Observed, Place
from shunter.schedulers.hpc.options import HpcOpts
from shunter.schedulers.hpc.queries import JobIds, JobQuery, NativeJob
from shunter.schedulers.hpc.request import JOB_DIR, LINK, REPLICA, HpcRequest, JobPlan
from shunter.schedulers.hpc.shared_folder import (
    ENVIRONMENT,
    ENVIRONMENTS,
    FOLLOW_UP_IDS,
    FOLLOW_UP_SCRIPT,
    RACE_LOST,
    RUN_SCRIPT,
    TOOLKIT,
    WAITING_BOX,
    SharedJob,
    base_folder,
    job_folder,
    read_jobs,
)
from shunter.schedulers.hpc.shared_results import SharedResults
from shunter.schedulers.hpc.ssh import commands_on
from shunter.schedulers.hpc.storage import Storage, check_shared_folder
from shunter.schedulers.ids import is_made_here, make_unique
from shunter.schedulers.joined_terminal import SHELL
from shunter.schedulers.kept_results import LocalResults, ResultPlace, without_toolkit
from shunter.schedulers.lines import all_replicas, check_replicas, compile_regex
from shunter.schedulers.responses import environment_leftovers, environments_among
from shunter.specs.app import AppDef, Role, macros
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import make_app_handle
from shunter.specs.status import AppState, is_terminal
from shunter.specs.workspace import Workspace
from shunter.system.identity import user_name
from shunter.workspace import environment
from shunter.workspace.directory_shipment import DirectoryShipment
from shunter.workspace.shipment import Shipment
from shunter.workspace.toolkit_files import ToolkitPlace


class NotSentError(UnreachableError):
    """The queue cannot be reached, so it has not received the submission."""


#: The filters that `HpcScheduler.list` takes.
LIST_FILTERS = frozenset({"states", "since", "all"})
#: How long a submission may go on after an interrupt: its job can only be cancelled once it is known.
FINISH_SECONDS = 5.0


class HpcScheduler(Scheduler[HpcOpts]):
    """What the schedulers of clusters have in common. See `shunter.schedulers.hpc` for how one is added."""

    capabilities = Capabilities(list_filters=LIST_FILTERS, streams=SEPARATE_STREAMS, retries=("application",))
    #: Which words of a native command mean that the queue does not answer; compiled with re.IGNORECASE.
    unreachable_words = r"connection refused|timed out|timeout"
    #: Which of them mean that a submission has not even reached the queue.
    unsent_words = r"connection refused|connect failure|unable to send message|cannot connect"
    #: The native id in what the submit command prints, as group 1, with re.MULTILINE; the last one counts.
    id_pattern = r"^(\d+)$"
    #: The command that ends submissions, whose ids follow.
    cancel_command: Sequence[str] = ()
    #: Which lines of it say that a job has ended already, or is about to: no failure.
    over_words = r"already"
    #: What to do about refusals of the submit command: patterns of its words, with a hint each. The first
    #: that fits is shown; they are compiled with re.IGNORECASE.
    refusal_hints: Sequence[tuple[str, str]] = ()

    # ---- hooks

    @abstractmethod
    def make_script(self, plan: JobPlan, opts: Any) -> tuple[list[str], str]:
        """Return the submit command and the script that goes to its standard input. Pure.

        Args:
            plan: the job; it makes the lines that start replicas, and takes warnings.
            opts: the options, of the backend's own class.

        Raises:
            ConfigError: the job cannot run on this cluster.
        """

    @abstractmethod
    def queue_words(self, plan: JobPlan, opts: Any, command: builtins.list[str]) -> QueueWords:
        """Return the queue's words for a job's follow-up. Pure.

        Args:
            plan: the job.
            opts: the options, of the backend's own class.
            command: the submit command of the job.

        Raises:
            ConfigError: nothing can follow on the end of this job.
        """

    @abstractmethod
    def wait_options(self, after: Sequence[tuple[str, bool]]) -> builtins.list[str]:
        """Return the options of the submit command that make a job wait for others.

        Args:
            after: native ids, at least one, each with whether any end will do, rather than success alone.
        """

    @abstractmethod
    def query(self, commands: Commands, refs: Sequence[JobIds]) -> Mapping[str, builtins.list[NativeJob]]:
        """Return for each job that the queue or the accounting knows its submissions, the oldest first.

        Ids that are not known are left out. A job without native ids is looked up by its name; `by_job` sorts
        what was found.

        Raises:
            UnreachableError: the queue does not answer.
        """

    @abstractmethod
    def query_all(self, commands: Commands, since: float | None) -> builtins.list[NativeJob]:
        """Return all submissions of this user that the queue or the accounting knows.

        Args:
            commands: where to ask.
            since: only those that had not ended at this time; None for what the backend finds reasonable.
        """

    @abstractmethod
    def enter_command(
        self, native: NativeJob, number: int, host: str, command: Sequence[str], *, tty: bool
    ) -> builtins.list[str]:
        """Return the native command that runs a command where a replica runs.

        Args:
            native: the running submission.
            number: the replica's index in the whole job, role after role.
            host: the host that it runs on.
            command: the command.
            tty: whether it gets a terminal.
        """

    def cancel_natively(self, commands: Commands, native_ids: Sequence[str]) -> None:
        """Cancel submissions, in as few calls as possible; to cancel one that has ended is not an error.

        Raises:
            BackendError: it was refused, in the queue's own words.
        """
        answer = commands.run([*self.cancel_command, *native_ids])
        lines = f"{answer.err}\n{answer.text}".splitlines()
        refused = [line for line in lines if line.strip() and not re.search(self.over_words, line, re.I)]
        if answer.code != 0 and refused:
            raise self.refusal(commands, "cancel the job", "\n".join(refused))

    def task_id(self, native_id: str, number: int) -> str:
        """Return the native id of one replica of an array, by its index in the whole job."""
        raise NotImplementedError(f"{self.backend} has no arrays")

    def examine(self, cfg: Mapping[str, Any]) -> Iterable[Check]:
        """Check whether jobs with these options could run, for `doctor`; an error ends it. Changes nothing.

        Args:
            cfg: options; missing ones are not checked.
        """
        return []

    def examine_job(self, job: AppDryRunInfo[HpcRequest]) -> builtins.list[Check]:
        """Check whether a job could run now, for `doctor`. Changes nothing."""
        return []

    def is_native_id(self, text: str) -> bool:
        """Tell whether a text could be a native id."""
        return text.isdecimal()

    # ---- places

    def __init__(self, backend: str, session_name: str) -> None:
        super().__init__(backend, session_name)
        self._queries: dict[str, JobQuery] = {}

    def commands(self, host: str) -> Commands:
        """Return what runs native programs on a login node, "" for this machine. Replaced in tests."""
        return commands_on(host)

    def storage(self, host: str) -> Storage:
        """Return the shared storage as a login node sees it."""
        return Storage(self.commands(host))

    def ask(self, commands: Commands, command: Sequence[str], attempt: str, *, hint: str = "") -> str:
        """Run a native query; returns what it printed.

        Raises:
            UnreachableError: the queue does not answer.
            BackendError: it was refused, in its own words.
        """
        answer = commands.run(command)
        if answer.code == 0:
            return answer.text
        raise self.refusal(commands, attempt, answer.words, hint)

    def refusal(self, commands: Commands, attempt: str, words: str, hint: str = "") -> BackendError:
        """Return the error for what a native program complained about."""
        message = f"cannot {attempt} {commands.where}: {words}"
        if re.search(self.unreachable_words, words, re.IGNORECASE):
            return UnreachableError(
                message, hint="The state of the jobs is unknown at the moment. Try again later."
            )
        return BackendError(message, hint=hint)

    def default_place(self, cfg: Mapping[str, Any] | None = None) -> Place:
        """Return where to find jobs that are not in the history: by these options, or as configured here."""
        options = {
            **self.context.configured_options(),
            **{key: value for key, value in (cfg or {}).items() if value is not None},
        }
        host = str(options.get("host") or "")
        shared = str(options.get("shared_dir") or shared_folder.DEFAULT_SHARED)
        return Place(host, self._at_home(host, shared))

    def place_of(self, app_id: str) -> Place:
        """Return where a job is."""
        recalled = self.context.native_id(app_id)
        return Place.parse(recalled) if recalled else self.default_place()

    def _at_home(self, host: str, path: str) -> str:
        if path.startswith("~/"):
            return posixpath.join(self.storage(host).home(), path[2:])
        return path

    def _query(self, host: str) -> JobQuery:
        if host not in self._queries:
            self._queries[host] = JobQuery(lambda refs: self.query(self.commands(host), refs))
        return self._queries[host]

    # ---- submitting

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan a folder with the workspace on shared storage."""
        if not workspace:
            return None
        return DirectoryShipment(workspace)

    def _toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where the toolkit will be on shared storage; each replica gets a base directory."""
        return ToolkitPlace(
            ("python", "-S", TOOLKIT),
            code=macros.img_root,
            base=base_folder(JOB_DIR, role.name, REPLICA),
            env={"SHUNTER_INSTALLER": "none"},
            environments={"store": ENVIRONMENTS, "pointer": ENVIRONMENT},
        )

    def _plan_environment(self, info: AppDryRunInfo[HpcRequest], description: Description) -> dict[str, Any]:
        """Say that the environment is built before the job is submitted; look for it on this machine."""
        shared, host = info.request.shared_dir, info.request.host
        store = posixpath.join(shared, "environments")
        if not host:
            return environment.planned(description, os.path.expanduser(store))
        place = f"will be built in {store} on {host}, unless it is there"
        return {**environment.summary(description), "built": None, "place": place}

    def runs_in_image(self, role: Role, cfg: Mapping[str, Any]) -> bool:
        """Tell whether a role's replicas run in its image, whose Python and libraries are different ones."""
        return False

    def _build_environments(self, info: AppDryRunInfo[HpcRequest], progress: Progress) -> None:
        """Build the environments on the shared storage, except those of images."""
        request = info.request = info.request.at_home(self.storage(info.request.host).home())
        commands, storage = self.commands(request.host), self.storage(request.host)
        check_shared_folder(storage, request.shared_dir)
        for role, description in environment.of_app(info.app):
            pointer = ""
            if not self.runs_in_image(role, info.cfg):
                pointer = shared_environments.build(
                    commands, storage, description, request.shared_dir, progress
                )
            request = request.moved(ENVIRONMENT.replace("*", description.digest), pointer)
        info.request = request.moved(ENVIRONMENTS, posixpath.join(request.shared_dir, "environments"))

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[HpcRequest]:
        assert self.opts_class is not None
        opts = self.opts_class(**cfg)
        if opts.array and not self.capabilities.arrays:
            raise ConfigError(f"array=True: {self.backend} has no array jobs", hint="Leave it out.")
        follow_up_request.check(self.backend, opts)
        app_id = make_unique(app.name)
        for role in app.roles:
            set_meeting_ports(role, app_id)
        plan = JobPlan(app, opts, app_id, None if shipment is None else shipment.manifest)
        request = plan.request(*self.make_script(plan, opts))
        is_followed = opts.notify or opts.retry is not None
        words = self.queue_words(plan, opts, request.command) if is_followed else None
        if words is not None:
            words.id_pattern = self.id_pattern
            words.follow = words.follow or [*words.submit, *self.wait_options([(AFTER, True)])]
        handle = f"{self.backend}://{self.session_name}/{app_id}"
        request.files = follow_up_request.files_of_supervision(plan, handle, words)
        if opts.retry is not None:
            request.details["retry"] = True
        info = AppDryRunInfo(request, str)
        info.app_id = app_id
        info.warnings += request.warnings  # of what has no effect
        return info

    def _depend_on(self, info: AppDryRunInfo[HpcRequest], dependencies: Sequence[Dependency]) -> None:
        """Let the job wait for others, by the queue itself."""
        request = info.request
        request.after = [
            (self._last_native_id(item.app_id, request.host), item.any_end) for item in dependencies
        ]
        request.dependencies = self.wait_options(request.after)

    def _last_native_id(self, app_id: str, host: str) -> str:
        place, native, job = self.observed(app_id)
        if place.host != host:
            raise ConfigError(
                f"{app_id} was submitted on another cluster",
                hint="A job can only wait for jobs of the same queue.",
            )
        ids = [item.native_id for item in native] or place.native_ids or (job.native_ids if job else [])
        if not ids:
            raise UnknownAppException(f"there is no job {app_id!r} {self.commands(host).where}")
        return ids[-1]

    def ship(self, info: AppDryRunInfo[HpcRequest], progress: Any = None) -> None:
        """Copy the code to shared storage, once for all jobs with the same code."""
        request = info.request = info.request.at_home(self.storage(info.request.host).home())
        storage = self.storage(request.host)
        check_shared_folder(storage, request.shared_dir)
        super().ship(info, progress)
        if isinstance(info.shipment, DirectoryShipment):
            manifest = info.shipment.manifest
            folder = submission.put_code(storage, info.shipment.store, manifest, request.shared_dir)
            planned = f"{request.shared_dir}/code/{manifest.fingerprint[:32]}"
            info.request = info.request.moved(planned, folder)

    def schedule(self, dryrun_info: AppDryRunInfo[HpcRequest]) -> str:
        """Make the job's folder and submit the script, once for each link of a chain; returns the job's id.

        If a submission is refused or interrupted, those before are cancelled and the folder is removed. If
        the queue does not answer, the folder stays, and `describe` looks the job up by its name.

        Raises:
            BackendError: the queue refused it, in its own words.
            UnreachableError: the queue does not answer.
        """
        request = dryrun_info.request
        commands, storage = self.commands(request.host), self.storage(request.host)
        request = request.at_home(storage.home())
        if dryrun_info.shipment is None:  # or else it was checked before the code went there
            check_shared_folder(storage, request.shared_dir)
        if any(TOOLKIT in text for text in [*request.roles.values(), *request.files.values()]):
            request = request.moved(TOOLKIT, submission.put_toolkit(storage, request.shared_dir))
        if dryrun_info.lease:
            handle = make_app_handle(self.backend, self.session_name, request.app_id)
            leases.enter(storage, request, dryrun_info.lease, handle, dryrun_info.rivals, self.cancel_command)
        submission.put_job(storage, request, {"session": self.session_name})
        native: builtins.list[str] = []
        try:
            for link in range(request.chain):
                # it also waits for the other jobs: what may never start must not start by its second link
                after = [*request.after, *((each, True) for each in native[-1:])]
                waits = self.wait_options(after) if after else []
                script = request.script.replace(LINK, str(link))
                native.append(self.submit_natively(commands, [*request.command, *waits], script))
                storage.write(f"{request.folder}/native", ("\n".join(native) + "\n").encode())
            if FOLLOW_UP_SCRIPT in request.files:
                command = command_after(request.files, native[-1])
                follow_up = self.submit_natively(commands, command, request.files[FOLLOW_UP_SCRIPT])
                storage.write(f"{request.folder}/{FOLLOW_UP_IDS}", f"{follow_up}\n".encode())
        except BaseException as error:
            if isinstance(error, NotSentError) or not isinstance(error, UnreachableError):
                self._undo(request, native, was_interrupted=not isinstance(error, Exception))
            raise
        dryrun_info.request = request
        dryrun_info.native_id = str(Place(request.host, request.shared_dir, native))
        return request.app_id

    def _undo(self, request: HpcRequest, native: builtins.list[str], *, was_interrupted: bool) -> None:
        """Cancel what has been submitted of a job, and remove its folder."""
        commands = self.commands(request.host)
        with suppress(ShunterError):  # what went wrong before is the error to show
            if was_interrupted:  # the queue may have taken one more
                known = self.query(commands, [JobIds(request.app_id)]).get(request.app_id, [])
                live = [item.native_id for item in known if not is_terminal(item.state)]
                native = [*dict.fromkeys([*native, *live])]
            if native:
                self.cancel_natively(commands, native)
            submission.remove_folder(self.storage(request.host), request.folder)

    def submit_natively(self, commands: Commands, command: Sequence[str], script: str) -> str:
        """Send a script to the queue; returns the native id."""
        text = script.encode("utf-8", "surrogateescape")
        answer = commands.run(command, stdin=text, finish=FINISH_SECONDS)
        if answer.code != 0:
            error = self.refusal(commands, "submit the job", answer.words, self.hint_for(answer.words))
            if isinstance(error, UnreachableError):
                was_sent = re.search("timed out", answer.words, re.IGNORECASE)
                if not was_sent and re.search(self.unsent_words, answer.words, re.IGNORECASE):
                    raise NotSentError(error.message, hint="Nothing was submitted. Try again later.")
                error.hint = "It may have been submitted; `shunter list` shows it then."
            raise error
        ids: builtins.list[str] = re.findall(self.id_pattern, answer.text, re.MULTILINE)
        if not ids:
            raise UnreachableError(
                f"{command[0]} {commands.where} did not print the job's id: {answer.words}",
                hint="It may have been submitted; `shunter list` shows it then.",
            )
        return ids[-1]

    def hint_for(self, words: str) -> str:
        """Return what to do about a refusal of the queue; "" if nothing is known."""
        hints = (hint for pattern, hint in self.refusal_hints if re.search(pattern, words, re.IGNORECASE))
        return next(hints, "")

    # ---- observing

    def observed(self, app_id: str) -> tuple[Place, builtins.list[NativeJob], SharedJob | None]:
        """Return where a job is, what the queue says and what its folder tells; raises what goes wrong."""
        found = self._observe_many([app_id])[app_id]
        if found.problem:
            raise UnreachableError(
                found.problem, hint="The state of the job is unknown at the moment. Try again later."
            )
        return found.place, found.native, found.job

    def _observe_many(self, app_ids: Iterable[str]) -> dict[str, Observed]:
        """Observe jobs: one query and a few reads for all of the same place."""
        seen = {app_id: Observed(self.place_of(app_id)) for app_id in app_ids}
        groups: dict[tuple[str, str], dict[str, Observed]] = {}
        for app_id, item in seen.items():
            groups.setdefault((item.place.host, item.place.shared), {})[app_id] = item
        for (host, shared), items in groups.items():
            self._observe_at(host, shared, items)
        return seen

    def _observe_at(self, host: str, shared: str, seen: Mapping[str, Observed]) -> None:
        jobs: dict[str, SharedJob] = {}
        storage_problem = ""
        try:
            jobs = read_jobs(self.storage(host), shared, [*seen], with_reports=True)
        except (BackendError, ConfigError) as error:
            storage_problem = error.message
        refs = []
        for app_id, item in seen.items():
            item.job = jobs.get(app_id)
            native = max(item.place.native_ids, item.job.native_ids if item.job else [], key=len)
            if not native and item.job is None and self.is_native_id(app_id):
                native = [app_id]
            is_partial = item.job is not None and 0 < len(native) < item.job.chain
            refs.append(JobIds(app_id, [*native, *item.waiting_follow_up()], is_partial))
        try:
            answers = self._query(host).ask(refs)
        except BackendError as error:
            for item in seen.values():
                item.problem = error.message
            return
        for app_id, item in seen.items():
            item.take(answers.get(app_id, []))
            item.problem = storage_problem
        # a job that ended between the two has left its records by now, and its follow-up what became of it
        late = [app_id for app_id in jobs if seen[app_id].is_behind() or seen[app_id].has_lost_follow_up()]
        for app_id, job in read_jobs(self.storage(host), shared, late, with_reports=True).items():
            if seen[app_id].take_folder(job):
                self._query(host).forget([app_id])

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Describe a job; it is UNREACHABLE while the queue does not answer."""
        return self.describe_many([app_id])[app_id]

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe jobs: one query of the queue for all of them."""
        seen = self._observe_many(app_ids)
        found = {app_id: item.describe(app_id) for app_id, item in seen.items()}
        for app_id, response in found.items():
            if response is not None and not seen[app_id].place.host:  # its disk is this machine's, too
                response.results = existing(response.results)
        return found

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return this user's jobs on a cluster, the oldest first; by default those that we submitted."""
        cfg = dict(cfg or {})
        place = self.default_place(cfg)
        storage = self.storage(place.host)
        native = self.query_all(self.commands(place.host), cfg.get("since"))
        jobs = read_jobs(storage, place.shared, storage.names(f"{place.shared}/jobs"))
        seen = {app_id: Observed(place, job=job) for app_id, job in jobs.items()}
        by_native_id = {native_id: app_id for app_id, job in jobs.items() for native_id in job.native_ids}
        for item in native:
            is_ours = is_made_here(item.app_id) and not is_terminal(item.state)
            # what has ended and has no folder any more was deleted
            app_id = by_native_id.get(item.native_id) or (item.app_id if is_ours else "")
            if app_id or cfg.get("all"):
                seen.setdefault(app_id or item.native_id, Observed(place)).native.append(item)
        live = {item.native_id for item in native if not is_terminal(item.state)}
        states, since = cfg.get("states"), cfg.get("since")
        rows = []
        for app_id, each in seen.items():
            job = each.job
            if job is not None and job.may_start_again and job.native_ids:
                each.take(each.native)
                job.is_settled = bool(each.native) and not live & {*job.follow_ups, *job.native_ids}
            found = each.describe(app_id)
            if found is None or (states and found.state not in states):
                continue
            created = job.document.get("created_at") if job is not None else None
            row = ListAppResponse(
                app_id,
                found.state,
                name=str(job.document.get("name", "")) if job is not None else "",
                submitted_at=created or (each.native[0].submitted_at if each.native else None),
                ended_at=found.ended_at,
                started_at=found.started_at,
            )
            is_late_enough = since is None or (row.ended_at or row.submitted_at or 0) >= since
            if is_late_enough or not is_terminal(row.state):
                rows.append(row)
        return sorted(rows, key=lambda row: row.submitted_at or 0.0)

    def details(self, app_id: str) -> JobDetails:
        """Return what else can be asked about a job: what the queue's programs wrote."""
        return HpcJobDetails(self, app_id)

    # ---- races

    def lease_place(self, info: AppDryRunInfo[HpcRequest]) -> tuple[str, str]:
        """Say that a job sees the shared folder of its cluster."""
        return info.request.host, info.request.shared_dir

    def lease_holder(self, app_id: str) -> str:
        """Return the handle of the job that has the lease of a job's race; "" if none has it."""
        place = self.place_of(app_id)
        storage = self.storage(place.host)
        job = read_jobs(storage, place.shared, [app_id]).get(app_id)
        return leases.holder(storage, job)

    # ---- results

    def results(self, app_id: str, role_name: str, k: int) -> ResultPlace:
        """Return the results of a replica: directories of the job's folder on shared storage."""
        place = self.place_of(app_id)
        storage = self.storage(place.host)
        job = read_jobs(storage, place.shared, [app_id]).get(app_id)
        if job is None:
            raise UnknownAppException(f"there is no job {app_id!r} in {place.shared}")
        check_replicas(app_id, [(role_name, k)], all_replicas(job.layout))
        if not job.document.get("results"):
            raise without_toolkit(app_id, role_name)
        base = base_folder(job_folder(place.shared, app_id), role_name, k)
        return SharedResults(storage, base) if storage.is_remote else LocalResults.below(base)

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command where a replica runs, by the queue's own means."""
        place, native, job = self.observed(app_id)
        if job is None and not native:
            raise UnknownAppException(f"there is no job {app_id!r}")
        running = next((item for item in native if item.state == AppState.RUNNING), None)
        if running is None:
            raise ConfigError(
                f"{app_id} is not running", hint="A command can be run in a running replica only."
            )
        known = all_replicas(job.layout if job is not None else [(role_name, k + 1)])
        check_replicas(app_id, [(role_name, k)], known)
        number = known.index((role_name, k))
        words = [*(command or SHELL)]
        host, note = running.host_of(number), ""
        if job is not None:  # in the directory and with the variables of the program
            script = f"{job_folder(place.shared, app_id)}/{RUN_SCRIPT}"
            note = f"entered-{secrets.token_hex(8)}"
            words = ["sh", script, "enter", note, role_name, str(k), *words]
            record = job.replicas.get((role_name, k))
            host = record.host if record is not None and record.host else host
        if not host:
            raise ConfigError(f"{self.backend} does not say on which host {role_name}/{k} of {app_id} runs")
        commands = self.commands(place.host)
        code = commands.join(self.enter_command(running, number, host, words, tty=tty), tty=tty)
        if note and code == 0:
            path = f"{job_folder(place.shared, app_id)}/state/.{note}"
            storage = self.storage(place.host)
            code = int(storage.read([path])[0] or b"0")
            storage.remove([path])
        return code

    # ---- ending

    def _cancel_existing(self, app_id: str) -> None:
        error = self.cancel_many([app_id])[app_id]
        if error is not None:
            raise error

    def cancel_many(self, app_ids: Iterable[str]) -> dict[str, ShunterError | None]:
        """Cancel jobs: one call of the queue for all of them; every submission of a chain is cancelled."""
        results: dict[str, ShunterError | None] = {}
        by_host: dict[str, builtins.list[tuple[str, builtins.list[str]]]] = {}
        for app_id, each in self._observe_many(app_ids).items():
            results[app_id] = None
            if each.problem:
                results[app_id] = UnreachableError(f"cannot cancel {app_id}: {each.problem}")
                continue
            live = [item.native_id for item in each.native if not is_terminal(item.state)]
            if not each.native and each.job is not None and state_by_records(each.job) is None:
                live = each.job.native_ids
            if not live and not (each.job is not None and each.job.may_start_again):
                continue
            if each.job is not None:
                self._note_cancellation(app_id, each)
            if live:
                by_host.setdefault(each.place.host, []).append((app_id, live))
        for host, items in by_host.items():
            try:
                self.cancel_natively(self.commands(host), [native for _, ids in items for native in ids])
            except ShunterError as error:
                results.update({app_id: error for app_id, _ in items})
            self._query(host).forget([app_id for app_id, _ in items])
        return results

    def _note_cancellation(self, app_id: str, seen: Observed) -> None:
        """Note in a job's folder who cancels it, or that another job of its race has started."""
        storage, folder = self.storage(seen.place.host), job_folder(seen.place.shared, app_id)
        by = user_name()
        if seen.job is not None and seen.job.lease and not seen.job.has_run:
            holder = leases.holder(storage, seen.job)
            if holder not in ("", make_app_handle(self.backend, self.session_name, app_id)):
                by = f"{RACE_LOST} {holder}"
                storage.remove([f"{folder}/{WAITING_BOX}"])
        storage.write(f"{folder}/cancelled", by.encode())

    def cancel_replicas(self, app_id: str, replicas: Sequence[tuple[str, int]]) -> None:
        """Cancel single tasks of an array; a note in the job's folder tells that they did not fail."""
        place, native, job = self.observed(app_id)
        if job is None:
            raise UnknownAppException(f"there is no job {app_id!r} in {place.shared}")
        known = all_replicas(job.layout)
        check_replicas(app_id, replicas, known)
        if not job.document.get("array"):
            raise not_an_array(app_id)
        live = [item.native_id for item in native if not is_terminal(item.state)]
        for role, k in replicas if live else ():
            note = f"{job_folder(place.shared, app_id)}/state/{role}-{k}.cancelled"
            self.storage(place.host).write(note, user_name().encode())
        ids = [self.task_id(each, known.index(replica)) for each in live for replica in replicas]
        if ids:
            self.cancel_natively(self.commands(place.host), ids)
        self._query(place.host).forget([app_id])

    def delete(self, app_id: str) -> None:
        """Remove the folder of a job that has ended."""
        seen = self._observe_many([app_id])[app_id]
        response = seen.describe(app_id)
        if response is not None and not is_terminal(response.state):
            raise not_ended(app_id, response.state)
        if seen.job is not None:
            self.storage(seen.place.host).remove([job_folder(seen.place.shared, app_id)])
            self._query(seen.place.host).forget([app_id])

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check whether jobs with these options, or this job, could run; show which hosts retries avoid."""
        cfg = {name.replace("-", "_"): value for name, value in cfg.items()}
        checks: builtins.list[Check] = []
        try:
            checks.extend(self.examine(cfg))
        except ShunterError as error:
            is_known = not checks or isinstance(error, UnreachableError)
            checks.append(Check(self.backend, False if is_known else None, error.message, error.hint))
        if checks and checks[0].ok is False:  # the queue's commands are not there, or it does not answer
            return checks
        avoided: builtins.list[Check] = []
        try:
            place = self.default_place({**cfg, "shared_dir": cfg.get("shared_dir") or cfg.get("job_dir")})
            checks.append(shared_folder_check(self.commands(place.host), place.shared))
            avoided += avoided_hosts(self.storage(place.host), place.shared, time.time())
        except ShunterError as error:
            checks.append(Check("shared folder", False, error.message, error.hint))
        return [*checks, *(self.examine_job(job) if job is not None else []), *avoided]

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return the folders of jobs that ended long enough ago, code and environments that no job uses."""
        place = self.default_place(cfg)
        storage, commands = self.storage(place.host), self.commands(place.host)
        unused = shared_environments.unused(commands, storage, place.shared, older_than)
        return [
            *leftovers(storage, place.shared, self.list(cfg), older_than, time.time()),
            *environment_leftovers(shared_environments.folder_in(place.shared), unused),
        ]

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them, with their logs; returns how many bytes that frees."""
        place = self.default_place(cfg)
        storage, commands = self.storage(place.host), self.commands(place.host)
        names, others = environments_among(leftovers, shared_environments.folder_in(place.shared))
        storage.remove([item.id for item in others])
        freed = shared_environments.remove(commands, storage, place.shared, names)
        return freed + sum(item.size for item in others)

    # ---- logs

    def log_blocks(
        self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return lines of several replicas, of all attempts, from shared storage."""
        if query.regex is not None:
            compile_regex(query.regex)
        place = self.place_of(app_id)
        self._check_log(place, app_id, replicas)
        stream = Stream(query.streams) if query.streams is not None else Stream.COMBINED
        folder = job_folder(place.shared, app_id)
        storage = self.storage(place.host)
        logs = SharedLogs(storage, folder, replicas, stream, is_patient=query.should_tail)
        if not query.should_tail:
            return read(logs, query)
        return follow(logs, query, lambda: self._has_ended(app_id))

    def log_part(self, app_id: str, role_name: str, k: int, wanted: LogRange) -> LogPart | None:
        """Return a part of a replica's log, found by the indexes of its attempts."""
        place = self.place_of(app_id)
        if "/" not in role_name + app_id:  # so that they name a folder of logs, and nothing else
            folder = job_folder(place.shared, app_id)
            logs = SharedLogs(self.storage(place.host), folder, [(role_name, k)], Stream.COMBINED)
            found = read_part(logs, wanted)
            if found is not None:
                return found
        self._check_log(place, app_id, [(role_name, k)])
        return LogPart(b"", "", "", 0, 0)

    def _check_log(self, place: Place, app_id: str, replicas: Sequence[tuple[str, int]]) -> None:
        """Check that a job has a folder, and these replicas."""
        job = read_jobs(self.storage(place.host), place.shared, [app_id]).get(app_id)
        if job is None:
            raise UnknownAppException(f"there is no log of {app_id!r} in {place.shared}")
        check_replicas(app_id, replicas, all_replicas(job.layout))

    def _has_ended(self, app_id: str) -> bool:
        found = self.describe(app_id)
        return found is None or is_terminal(found.state)


class HpcJobDetails(JobDetails):
    """What a queue can tell about the job with an id beside its description."""

    def __init__(self, scheduler: HpcScheduler, app_id: str) -> None:
        self._scheduler = scheduler
        self._app_id = app_id

    def backend_output(self) -> Sequence[str]:
        """Return the end of what the queue's programs wrote: why a step was killed or not started."""
        place = self._scheduler.place_of(self._app_id)
        storage = self._scheduler.storage(place.host)
        return scripts_output(storage, job_folder(place.shared, self._app_id))
