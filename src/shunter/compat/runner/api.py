"""TorchX's runner (``torchx.runner``): ours, with its defaults, and answers in the states that it has."""

from __future__ import annotations

import builtins
import contextlib
import copy
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shunter.compat.runner.events import log_event
from shunter.compat.schedulers.factories import get_scheduler_factories
from shunter.compat.specs.builders import exits
from shunter.compat.specs.status import AppStatus, torchx_rows, torchx_status
from shunter.errors import PluginError, UnknownAppException
from shunter.runner.api import Runner
from shunter.runner.config import load_config
from shunter.schedulers.registry import SchedulerFactory
from shunter.schedulers.responses import ListAppResponse
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.submission import Submission
from shunter.specs.workspace import Workspace

__all__ = ["Runner", "TorchxRunner", "get_configured_trackers", "get_runner", "log_event"]
DEFAULT_SESSION = "torchx"
logger = logging.getLogger(__name__)
_every_scheduler = get_scheduler_factories


def get_runner(
    name: str | None = None,
    component_defaults: Mapping[str, Mapping[str, str]] | None = None,
    **scheduler_params: Any,
) -> TorchxRunner:
    """Return a runner with all schedulers: built-in ones and those of plugins.

    Args:
        name: name of the session, ``torchx`` by default.
        component_defaults: default values of components' arguments, by component.
        scheduler_params: passed to the schedulers' factories.
    """
    # tests replace the name in this module
    factories = None if get_scheduler_factories is _every_scheduler else get_scheduler_factories()
    return TorchxRunner(name or DEFAULT_SESSION, factories, component_defaults, scheduler_params)


def get_configured_trackers() -> dict[str, str | None]:
    """Return the trackers that the configuration names, with their configuration."""
    return load_config().trackers(submitting=True)


class TorchxRunner(Runner):
    """Submits jobs and looks after them, as TorchX's runner does.

    Events stay out of the program's log, as with TorchX, unless their logger has been configured.
    """

    def __init__(
        self,
        name: str = "",
        scheduler_factories: Mapping[str, SchedulerFactory] | None = None,
        component_defaults: Mapping[str, Mapping[str, str]] | None = None,
        scheduler_params: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(name, scheduler_factories, component_defaults, scheduler_params, **more)
        #: The definitions of jobs, by handle, that a subclass submitted itself.
        self._apps: dict[str, AppDef] = {}

    def trackers(self) -> dict[str, str | None]:
        """Return the trackers of jobs; tests replace `get_configured_trackers`."""
        return get_configured_trackers()

    def app_of(self, submission: Submission) -> AppDef:
        """Return the job of a submission. Arguments that do not fit its component raise `SystemExit` too."""
        return exits(super().app_of)(submission)

    def run(
        self,
        app: AppDef,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
        dryrun: bool = False,
    ) -> Any:
        """Submit a job and return its handle; with ``dryrun`` only make the request, and return that."""
        if dryrun:
            return self.dryrun(app, scheduler, cfg, workspace, parent_run_id)
        return super().run(app, scheduler, cfg, workspace, parent_run_id)

    def plan(self, submission: Submission) -> AppDryRunInfo[Any]:
        """Make the request for a submission. A workspace without files is left out, with a warning."""
        workspace = submission.workspace
        if workspace and _holds_no_files(str(workspace)):
            warnings.warn(f"the workspace {workspace} has no files, so none travel", stacklevel=2)
            submission = replace(submission, workspace=None)
        app = self.app_of(submission)
        return super().plan(replace(submission, app=_split_variables(app)))

    def status(self, app_handle: str, **more: Any) -> AppStatus | None:
        """Return the state of a job; None if there is no such job. One that cannot be seen now is UNKNOWN."""
        return torchx_status(super().status(app_handle, **more))

    def wait(
        self, app_handle: str, wait_interval: float = 10, timeout: float | None = None
    ) -> AppStatus | None:
        """Block until a job has ended, and return its state; None if there is no such job."""
        return torchx_status(super().wait(app_handle, wait_interval, timeout))

    def list(self, scheduler: str, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return all jobs that the scheduler knows."""
        return torchx_rows(super().list(scheduler, cfg))

    def cancel(self, app_handle: str) -> None:
        """Ask a job to stop, if there is such a job."""
        with contextlib.suppress(UnknownAppException):
            super().cancel(app_handle)

    def delete(self, app_handle: str) -> None:
        """Remove what the scheduler keeps of a job, if there is such a job."""
        with contextlib.suppress(UnknownAppException):
            super().delete(app_handle)

    # ---- internals that products built on TorchX use

    def _scheduler(self, scheduler: str) -> Any:
        """Return a scheduler as its factory made it.

        Raises:
            Exception: what the factory raises, as with TorchX.
        """
        try:
            made = self.scheduler(scheduler)
        except PluginError as error:
            raise error.__cause__ or error from error.__cause__
        return getattr(made, "made", made)

    def describe(self, app_handle: str) -> AppDef | None:
        """Return the definition of a job; None if there is no such job."""
        return self._apps.get(app_handle) or super().describe(app_handle)


def _holds_no_files(workspace: str) -> bool:
    """Tell whether a workspace is one directory without files; TorchX submits such a job."""
    folder = workspace.removeprefix("file://")
    return os.path.isdir(folder) and not any(files for _, _, files in os.walk(folder))


def _split_variables(app: AppDef) -> AppDef:
    """Return the job with variables as processes see them: what follows a name's first "=" is the value.

    TorchX sends names with "=" as they are; torchft's examples have one.
    """
    roles = getattr(app, "roles", None)
    if not isinstance(roles, list) or not all(isinstance(getattr(role, "env", None), dict) for role in roles):
        return app  # it is refused, with the reason
    odd = sorted({name for role in roles for name in role.env or {} if name.find("=") > 0})
    if not odd:
        return app
    warnings.warn(f"names of variables hold '=', which begins the value: {', '.join(odd)}", stacklevel=3)
    changed = copy.copy(app)
    changed.roles = [copy.copy(role) for role in roles]
    for role in changed.roles:
        pairs = [f"{name}={value}".partition("=") for name, value in (role.env or {}).items()]
        role.env = {name: value for name, _, value in pairs}
    return changed
