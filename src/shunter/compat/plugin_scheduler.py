"""The class from which schedulers written for TorchX derive: ``torchx.schedulers.api.Scheduler``.

The runner uses such a scheduler through `shunter.schedulers.torchx_scheduler`. Our own schedulers count as
instances too, so that ``isinstance`` gives the same answer as with TorchX.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar

from shunter.errors import ConfigError
from shunter.schedulers.api import Scheduler
from shunter.schedulers.responses import DescribeAppResponse, ListAppResponse, Stream
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import runopts
from shunter.specs.resources import NULL_RESOURCE

T = TypeVar("T")


class PluginScheduler(ABC, Generic[T]):
    """A scheduler with TorchX's interface. ``T`` is the type of its options.

    Args:
        backend: its name.
        session_name: name of the runner's session.
    """

    def __init__(self, backend: str, session_name: str) -> None:
        self.backend = backend
        self.session_name = session_name

    def close(self) -> None:
        """Release what the scheduler holds."""

    # ---- options

    def run_opts(self) -> runopts:
        """Return the options of jobs, with those of the workspace if the scheduler builds one."""
        options = self._run_opts()
        workspace_opts = getattr(self, "workspace_opts", None)
        if workspace_opts is not None:
            options.update(workspace_opts())
        return options

    def _run_opts(self) -> runopts:
        """Return the options of jobs. Overridden by schedulers."""
        return runopts()

    # ---- submitting

    def submit(self, app: AppDef, cfg: Any, workspace: str | None = None) -> str:
        """Make a request and send it, checking only its options; returns the job's id."""
        resolved = self.run_opts().resolve(cfg)
        if workspace:
            build = getattr(self, "build_workspace_and_update_role", None)
            if build is None:
                raise ConfigError(f"{self.backend} cannot ship a workspace: {workspace}")
            build(app.roles[0], workspace, resolved)
        return self.schedule(self.submit_dryrun(app, resolved))

    def submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo[Any]:
        """Make the request, and let each role's ``pre_proc`` change it."""
        resolved = self.run_opts().resolve(cfg)
        info = self._submit_dryrun(app, resolved)
        for role in app.roles:
            info = role.pre_proc(self.backend, info)
        info.app, info.cfg, info.scheduler = app, resolved, self.backend
        return info

    def _validate(self, app: AppDef, scheduler: str, cfg: Any = None) -> None:
        """Refuse a job that does not say what it needs. Overridden by schedulers."""
        for role in app.roles:
            if role.resource == NULL_RESOURCE:
                raise ConfigError(
                    f"role {role.name!r} does not say which resources it needs, as {scheduler} requires",
                    hint="Set cpu, gpu and memMB of its Resource, or a named one.",
                )

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: Any) -> None:
        """Refuse a job before its workspace is built. Overridden by schedulers."""

    @abstractmethod
    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo[Any]:
        """Make the request from resolved options."""

    @abstractmethod
    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Send a request; returns the job's id."""

    # ---- observing and ending

    @abstractmethod
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what is known of a job; None if there is no such job."""

    def describe_native(self, app_id: str) -> AppDryRunInfo[Any] | None:
        """Return the request of a job as it was sent; None if it is not known. Overridden by schedulers."""
        return None

    @abstractmethod
    def list(self, cfg: Any = None) -> builtins.list[ListAppResponse]:
        """Return the jobs of this scheduler."""

    def exists(self, app_id: str) -> bool:
        """Tell whether there is such a job."""
        return self.describe(app_id) is not None

    def cancel(self, app_id: str) -> None:
        """Stop a job, if it exists."""
        if self.exists(app_id):
            self._cancel_existing(app_id)

    def _cancel_existing(self, app_id: str) -> None:
        """Stop a job that exists. Overridden by schedulers."""
        raise NotImplementedError(f"{self.backend} cannot cancel jobs")

    def delete(self, app_id: str) -> None:
        """Remove a job, if it exists."""
        if self.exists(app_id):
            self._delete_existing(app_id)

    def _delete_existing(self, app_id: str) -> None:
        """Remove a job that exists. Overridden by schedulers."""
        raise NotImplementedError(f"{self.backend} cannot delete jobs")

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
        """Return the lines of a replica's log. Overridden by schedulers."""
        raise NotImplementedError(f"{self.backend} cannot read logs")


PluginScheduler.register(Scheduler)  # type: ignore[type-abstract]
