"""`local_cwd`: jobs as processes of this machine, in the directory they are submitted from or a workspace's.

Nothing of a job lives in the process that submits it: `schedule` starts a detached supervisor, and
everything else reads and writes the job's directory.
"""

from __future__ import annotations

import builtins
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from shunter._toolkit import environment_store
from shunter._toolkit.environment_description import Description
from shunter.errors import BackendError, ConfigError
from shunter.progress import Progress
from shunter.schedulers.api import Check, Dependency, if_reachable, not_an_array
from shunter.schedulers.capabilities import SEPARATE_STREAMS, Capabilities
from shunter.schedulers.ids import make_unique
from shunter.schedulers.lines import check_replicas
from shunter.schedulers.local_scheduler.doctor import examine, examine_job
from shunter.schedulers.local_scheduler.options import LocalOpts
from shunter.schedulers.local_scheduler.request import LocalRequest, make_request, without_enclosing_job
from shunter.schedulers.responses import Leftover, environment_leftovers, environments_among
from shunter.schedulers.supervisor import recovery
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.own_directory import freeze
from shunter.schedulers.supervisor.process_command import run_beside
from shunter.schedulers.supervisor.process_plan import ProcessPlan
from shunter.schedulers.supervisor.scheduler import SupervisedScheduler, TakesLocalLeases
from shunter.schedulers.supervisor.submission import submit
from shunter.specs.app import AppDef, Role, macros
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.workspace import Workspace
from shunter.system.identity import user_name
from shunter.workspace import environment
from shunter.workspace.directory_shipment import DirectoryShipment, make_view, remove_view
from shunter.workspace.shipment import Shipment
from shunter.workspace.toolkit_files import ToolkitPlace, local_command, put_toolkit


class LocalScheduler(TakesLocalLeases, SupervisedScheduler[LocalOpts]):
    """Runs jobs as processes of this machine. See `shunter.schedulers.local_scheduler`."""

    capabilities = Capabilities(
        notifies=True, is_local=True, streams=SEPARATE_STREAMS, arrays=True, ignores=("mounts", "elastic")
    )
    opts_class = LocalOpts
    job_class = JobDirectory

    def __init__(self, session_name: str) -> None:
        super().__init__("local_cwd", session_name)

    # ---- submitting

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan a working directory for the job. Without a workspace it runs where it is submitted from."""
        if not workspace:
            return None
        return DirectoryShipment(workspace)

    def _toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where the toolkit will be in the state directory; each replica gets a base directory."""
        base = JobDirectory.of(macros.app_id).base_dir(role.name, macros.replica_id)
        # This is the user's own Python: the user decides which requirements of a project are installed there.
        return ToolkitPlace(
            local_command(),
            code=macros.img_root,
            base=base,
            env={"SHUNTER_INSTALLER": "none"},
            environments={"store": environment.local_store()},
        )

    def _plan_environment(
        self, info: AppDryRunInfo[LocalRequest], description: Description
    ) -> dict[str, Any]:
        """Look whether this machine has the environment."""
        version = info.request.python.partition(" ")[0]
        return environment.planned(description, environment.local_store(), version)

    def _build_environments(self, info: AppDryRunInfo[LocalRequest], progress: Progress) -> None:
        """Build the environments on this machine, for the Python that the job has."""
        version, _, python = info.request.python.partition(" ")
        for _, description in environment.of_app(info.app):
            environment.build_here(description, python, version, progress)

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[LocalRequest]:
        app_id = make_unique(app.name)
        manifest = None if shipment is None else shipment.manifest
        sources = getattr(shipment, "sources", ())
        request = make_request(app, self.opts_class(**cfg), app_id, manifest, sources)
        info = AppDryRunInfo(request, str)
        info.app_id = app_id
        info.python, info.python_origin = request.python, request.python_origin
        return info

    def _depend_on(self, info: AppDryRunInfo[LocalRequest], dependencies: Sequence[Dependency]) -> None:
        """Have the job's supervisor wait for others' ends before it starts the replicas."""
        info.request.after = [
            {**vars(item), "job_dir": JobDirectory.of(item.app_id).path} for item in dependencies
        ]

    def schedule(self, dryrun_info: AppDryRunInfo[LocalRequest]) -> str:
        """Start the job's supervisor; the job runs when this returns.

        Raises:
            StateStoreError: the state directory cannot be written.
            BackendError: the supervisor could not be started.
        """
        if dryrun_info.app is not None and any(
            "train" in role.metadata or "program" in role.metadata for role in dryrun_info.app.roles
        ):
            put_toolkit()
        if dryrun_info.shipment is None:
            return _submit(dryrun_info)
        return _submit_with_workspace(dryrun_info)

    def leftovers(self, cfg: Mapping[str, Any], older_than: float) -> builtins.list[Leftover]:
        """Return jobs that ended long enough ago, and environments that none has used for as long."""
        store = environment.local_store()
        unused = environment_store.unused(store, older_than)
        return [*super().leftovers(cfg, older_than), *environment_leftovers(store, unused)]

    def remove_leftovers(self, cfg: Mapping[str, Any], leftovers: Sequence[Leftover]) -> int:
        """Remove them; returns how many bytes that frees."""
        store = environment.local_store()
        names, jobs = environments_among(leftovers, store)
        return environment_store.remove(store, names) + super().remove_leftovers(cfg, jobs)

    def doctor(self, cfg: Mapping[str, Any], job: AppDryRunInfo[Any] | None = None) -> builtins.list[Check]:
        """Check where jobs keep their files, and say what this machine has; compare a job with it."""
        app = None if job is None else job.app
        return examine() if app is None else if_reachable(examine(), lambda: examine_job(app))

    def cancel_replicas(self, app_id: str, replicas: Sequence[tuple[str, int]]) -> None:
        """Stop single replicas of an array, or have them not started."""
        job = self._find(app_id)
        check_replicas(app_id, replicas, job.log_dirs())
        if not (job.read_request() or {}).get("array"):
            raise not_an_array(app_id)
        state = self._state_to_end(job)
        if state is not None:
            recovery.stop_replicas(job, state, replicas, by=user_name())

    # ---- entering

    def execute(self, app_id: str, role_name: str, k: int, command: Sequence[str], *, tty: bool) -> int:
        """Run a command beside a replica: with its directory and environment, in its namespaces."""
        replica = self._running_replica(self._find(app_id), role_name, k)
        return run_beside(replica["pid"], f"{app_id} {role_name}/{k}", command)


def _submit(info: AppDryRunInfo[LocalRequest]) -> str:
    """Start the job; its working directory exists."""
    request = info.request
    for warning in request.warnings:
        warnings.warn(warning, RuntimeWarning, stacklevel=4)

    def make_plan() -> ProcessPlan:
        own = request.own_directories
        if own and own["beside"]:
            freeze(own["beside"], own["template"])
        plan = {field.name: getattr(request, field.name) for field in fields(ProcessPlan)}
        plan["env"] = {**without_enclosing_job(os.environ), "PATH": request.path}
        return ProcessPlan(**plan)

    facts = {"own_directories": request.own_directories, "array": request.array}
    return submit(JobDirectory(request.job_dir), info, request.layout(), make_plan, facts=facts)


def _submit_with_workspace(info: AppDryRunInfo[LocalRequest]) -> str:
    """Make the job's working directory and start the job; remove the directory if the job cannot start."""
    if not isinstance(info.shipment, DirectoryShipment):
        raise ConfigError(f"local_cwd cannot run a job from {type(info.shipment).__name__}")
    app_id = info.request.app_id
    if JobDirectory.of(app_id).exists():
        raise BackendError(f"the job {app_id} has been submitted already")
    make_view(info.shipment, app_id)
    try:
        return _submit(info)
    except BaseException:
        if not JobDirectory.of(app_id).exists():
            remove_view(app_id)
        raise


def create_scheduler(session_name: str, **kwargs: object) -> LocalScheduler:
    """Make the scheduler. It takes no arguments."""
    return LocalScheduler(session_name)
