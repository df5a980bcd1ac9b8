"""The runner: what the command line does, as a Python API."""

from __future__ import annotations

import builtins

from trainyard.errors import UnknownAppException
from trainyard.runner.events import log_event
from trainyard.runner.jobs import JobAccess
from trainyard.runner.session import DEFAULT_SESSION
from trainyard.specs.handles import make_app_handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from trainyard.runner.records import JobRecord
    from trainyard.specs.app import AppDef
    from trainyard.specs.dryrun import AppDryRunInfo
    from trainyard.specs.handles import AppHandle
    from trainyard.specs.workspace import Workspace


def get_runner(
    name: str | None = None,
    component_defaults: Mapping[str, Mapping[str, str]] | None = None,
    **scheduler_params: Any,
) -> Runner:
    """Return a runner with all schedulers, built-in ones and those of plugins.

    Args:
        name: name of the session, the second part of handles; "trainyard" by default.
        component_defaults: values of component parameters that are not given, by component.
        scheduler_params: given to every scheduler that is made.
    """
    return Runner(name or DEFAULT_SESSION, None, component_defaults, scheduler_params)


class Runner(JobAccess):
    """Submits jobs and looks after them: a context manager, with the arguments of `Session`."""

    # ---- submitting

    def run_component(
        self,
        component: str,
        component_args: builtins.list[str] | dict[str, Any],
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppHandle:
        """Make a job from a component and submit it; returns its handle.

        Args:
            component: a builtin's name, ``file.py:function``, or a plugin's component.
            component_args: its arguments, as on the command line or by parameter name.
            scheduler: name of the scheduler; None for the default one.
            cfg: scheduler options, as a mapping or the scheduler's options dataclass.
            workspace: the code that travels with the job, see `Workspace.from_str`; none by default.
            parent_run_id: the run that this one belongs to.

        Raises:
            ConfigError: the component, its arguments, or the options are wrong; nothing was submitted.
            BackendError: the scheduler refused.
        """
        with log_event("run_component", scheduler or "", self._name, workspace=text_of(workspace)) as event:
            self.scheduler(scheduler or self._default_scheduler()).expect_submission()
            info = self.dryrun_component(component, component_args, scheduler, cfg, workspace, parent_run_id)
            event.scheduler, event.app_id = info.scheduler, info.app_id
            return self.schedule(info)

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
        from trainyard.components.finder import get_component

        found = get_component(component)
        defaults: dict[str, Any] = {}
        for name in (found.config_name, component):  # a script's own ones stand above train.script's
            defaults |= self._component_defaults.get(name, {})
        app = found.parse(component_args, defaults)
        info = self.dryrun(app, scheduler or self._default_scheduler(), cfg, workspace, parent_run_id)
        info.record["component"] = component
        info.record["component_args"] = component_args
        return info

    def run(
        self,
        app: AppDef,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppHandle:
        """Submit a job; returns its handle. See `run_component`."""
        with log_event("run", scheduler or "", self._name, workspace=text_of(workspace)) as event:
            info = self.dryrun(app, scheduler, cfg, workspace, parent_run_id)
            event.scheduler, event.app_id = info.scheduler, info.app_id
            return self.schedule(info)

    def dryrun(
        self,
        app: AppDef,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Make the request for a job and check it. Touches nothing, and leaves ``app`` as it is."""
        from trainyard.runner.preparation import prepare

        name = scheduler or self._default_scheduler()
        with log_event("dryrun", name, self._name, workspace=text_of(workspace), app_metadata=app.metadata):
            return prepare(self.scheduler(name), app, cfg, workspace, parent_run_id, self.config.trackers())

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> AppHandle:
        """Send a request that `dryrun` made; returns the job's handle.

        An intent is recorded before, and what came of it after. Between the two the job's code is shipped.

        Raises:
            StateStoreError: the intent cannot be recorded; nothing was sent.
            TrainyardError: the code could not be shipped; nothing was started.
            BackendError: the scheduler refused.
        """
        from trainyard.runner.submission import submit

        scheduler = self.scheduler(dryrun_info.scheduler)
        with log_event("schedule", scheduler.backend, self._name) as event:
            app_id, key, probe = submit(scheduler, dryrun_info, self.history, self.progress)
            event.app_id = app_id
            if probe is not None:
                self._late_facts.append((key, probe))
        return make_app_handle(scheduler.backend, dryrun_info.session or self._name, app_id)

    def rerun(
        self,
        app_handle: AppHandle,
        *,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        workspace: Workspace | str | None = None,
    ) -> AppHandle:
        """Submit a job of the history again, exactly: same definition, code, options and directory.

        Args:
            app_handle: the job to repeat.
            scheduler: another scheduler; the old options are then left out.
            cfg: options that replace the old ones.
            workspace: other code than the job had.

        Raises:
            UnknownAppException: it is not in the history.
            ConfigError: a secret that it held, its code or its directory, cannot be recovered.
        """
        from trainyard.runner.rerun import directory_of

        record = self._to_repeat(app_handle)
        with directory_of(record):
            return self.schedule(self._plan_rerun(record, scheduler, cfg, workspace))

    def dryrun_rerun(
        self,
        app_handle: AppHandle,
        *,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        workspace: Workspace | str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Like `rerun`, but only make the request. Touches nothing."""
        from trainyard.runner.rerun import directory_of

        record = self._to_repeat(app_handle)
        with directory_of(record):
            return self._plan_rerun(record, scheduler, cfg, workspace)

    def _plan_rerun(
        self,
        record: JobRecord,
        scheduler: str | None,
        cfg: Mapping[str, Any] | None,
        workspace: Workspace | str | None,
    ) -> AppDryRunInfo[Any]:
        from trainyard.runner.rerun import frozen_code, recover

        name = scheduler or record.scheduler
        app, options = recover(record, name, cfg)
        reused = workspace is None and frozen_code(record, self.scheduler(name), app)
        info = self.dryrun(app, name, options, reused or workspace, record.parent_run_id)
        info.record |= {
            "component": record.component,
            "component_args": record.component_args,
            "rerun_of": record.handle,
        }
        if workspace is None and not reused:  # its images, if it has any, hold the code already
            info.record |= {"fingerprint": record.fingerprint, "images": record.images}
        return info

    def _to_repeat(self, app_handle: AppHandle) -> JobRecord:
        record = self.history.find(app_handle)
        if record is None:
            raise UnknownAppException(
                f"cannot repeat {app_handle}: it is not in the history of this machine",
                hint="`trainyard list` shows the jobs that are.",
            )
        return record


def text_of(workspace: Workspace | str | None) -> str | None:
    """Return a workspace as events name it."""
    return None if workspace is None else str(workspace)
