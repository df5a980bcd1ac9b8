"""Adapts the schedulers of plugins that were written for TorchX to our interface.

Such a scheduler implements ``_submit_dryrun(app, cfg)``, ``schedule``, ``describe``, ``list`` and
``_cancel_existing``, and ``run_opts``, ``_validate``, ``log_iter``, ``close`` and a workspace's methods if it
wants to. Which parameters ``_validate`` and ``list`` take depends on the release that it was written for.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from shunter import specs
from shunter.errors import ConfigError, ShunterError
from shunter.schedulers import responses
from shunter.schedulers.api import Scheduler
from shunter.schedulers.capabilities import INTERFACES, Capabilities
from shunter.schedulers.responses import Dependency, DescribeAppResponse, ListAppResponse, Stream
from shunter.schedulers.toolkit_start import start_toolkits
from shunter.specs.app import AppDef, validate_app
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import runopt, runopts
from shunter.specs.translation import classes_of, translated
from shunter.specs.workspace import Workspace
from shunter.workspace.shipment import Shipment


class TorchXScheduler(Scheduler["Any"]):
    """A scheduler with TorchX's interface, as ours.

    Args:
        made: the plugin's scheduler.
        name: its name in handles, which need not be the one that its class gives itself.
        session_name: name of the runner's session.
    """

    def __init__(self, made: Any, name: str, session_name: str) -> None:
        super().__init__(name, session_name)
        self.made = made
        declared = getattr(made, "capabilities", None)
        self.capabilities = replace(
            declared if isinstance(declared, Capabilities) else UNCHECKED,
            is_local=bool(getattr(made, "is_local", False)),
            ships_by_default=hasattr(made, "build_workspace_and_update_role"),
            ships_roles=hasattr(made, "build_workspaces"),
        )

    def close(self) -> None:
        """Close the plugin's scheduler."""
        close = getattr(self.made, "close", None)
        if close is not None:
            close()

    def run_opts(self) -> runopts:
        """Return the plugin's options."""
        declared = self.made.run_opts()
        if isinstance(declared, runopts):
            return declared
        options = {
            name: opt
            if isinstance(opt, runopt)
            else runopt(opt.default, opt.opt_type, bool(opt.is_required), opt.help)
            for name, opt in declared
        }
        return runopts(**options)

    def _resolved(self, cfg: Any) -> Any:
        """Return the options of a job, with defaults: as the plugin does it, if it declares none itself."""
        options = self.run_opts()
        return options.resolve(cfg) if len(options) else self.made.run_opts().resolve(cfg)

    # ---- submitting

    def submit_dryrun(
        self,
        app: AppDef,
        cfg: Any,
        workspace: Workspace | str | None = None,
        after: Sequence[Dependency] = (),
    ) -> AppDryRunInfo[Any]:
        """Make the request in TorchX's order: options, workspace, checks, request.

        A workspace is built now, since the request names the resulting image.
        """
        validate_app(app)
        warnings = start_toolkits(app, self.backend, self.capabilities, self._toolkit_place)
        resolved = self._resolved(cfg)
        if not isinstance(workspace, Workspace):
            workspace = Workspace.from_str(workspace)
        theirs = translated_for(self.made, app)
        self._check("_pre_build_validate", theirs, resolved)
        warnings += self._build(theirs, workspace, resolved)
        self._check("_validate", theirs, resolved)
        native: Any = self.made.submit_dryrun(theirs, resolved)
        for name, value in (("_app", theirs), ("_cfg", resolved), ("_scheduler", self.backend)):
            setattr(native, name, value)
        info: AppDryRunInfo[Any] = native
        if not isinstance(native, AppDryRunInfo):
            info = AppDryRunInfo(native.request, lambda _: repr(native))
            info.native = native  # type: ignore[attr-defined]
        info.app, info.cfg = app, dict(resolved)
        info.scheduler, info.session = self.backend, self.session_name
        info.warnings += warnings
        if after:
            self._depend_on(info, after)
        return info

    def _check(self, method: str, app: Any, cfg: Mapping[str, Any]) -> None:
        try:
            call_with(getattr(self.made, method, None), app, self.backend, cfg)
        except ShunterError:
            raise
        except ValueError as error:
            raise ConfigError(f"{self.backend} refuses the job: {error}") from error

    def _build(self, app: Any, workspace: Workspace, cfg: Mapping[str, Any]) -> builtins.list[str]:
        """Have the plugin put the code into the images: of the first role, or of all that name their own."""
        # a workspace that is given is that of the first role
        if self.capabilities.ships_roles and any(
            role.workspace for role in app.roles[1 if workspace else 0 :]
        ):
            if workspace:
                app.roles[0].workspace = translated_for(self.made, workspace)
            self.made.build_workspaces(app.roles, cfg)
            return []
        build = getattr(self.made, "build_workspace_and_update_role", None)
        if not workspace or not app.roles:
            return []
        if build is None:
            return [f"{self.backend} cannot ship a workspace, so {workspace} does not travel with the job"]
        if workspace.frozen or not workspace.is_unmapped_single_project():
            raise ConfigError(
                f"{self.backend} takes one directory as the workspace, not {workspace}",
                hint="It comes from a plugin for TorchX, which builds the image itself.",
            )
        build(app.roles[0], str(workspace), cfg)
        return []

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan nothing: the plugin ships the code itself."""
        return None

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[Any]:
        return self.submit_dryrun(app, cfg)

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Have the plugin send the request."""
        native = getattr(dryrun_info, "native", dryrun_info)
        if native is not dryrun_info:
            native.request = dryrun_info.request
        return str(self.made.schedule(native))

    # ---- observing

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what the plugin knows of a job."""
        response = _translated(self.made.describe(app_id))
        if response is not None and type(response).__name__ == "DescribeAppResponse":
            response.app_id = app_id
        return response  # type: ignore[no-any-return]

    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        """Return the plugin's jobs."""
        return [_translated(row) for row in call_with(self.made.list, cfg)]

    def exists(self, app_id: str) -> bool:
        """Tell whether the plugin knows a job."""
        return bool(self.made.exists(app_id))

    # ---- ending

    def cancel(self, app_id: str) -> None:
        """Have the plugin stop a job."""
        self.made.cancel(app_id)

    def delete(self, app_id: str) -> None:
        """Have the plugin remove a job, if it can."""
        if not self.implements("delete", "_delete_existing"):
            raise NotImplementedError(f"{self.backend} cannot delete jobs")
        self.made.delete(app_id)

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
        """Return the log lines of a replica, each with its line end."""
        if streams is not None:
            streams = translated_for(self.made, streams)
        lines = self.made.log_iter(app_id, role_name, k, regex, since, until, should_tail, streams=streams)
        return (line if line.endswith(("\n", "\r")) else f"{line}\n" for line in lines)

    # ---- what the matrix of schedulers shows

    def implements(self, *methods: str) -> bool:
        """Tell whether the plugin has one of these methods itself."""
        known = {"_plan_shipment": "build_workspace_and_update_role", "log_blocks": "log_iter"}
        named = [getattr(type(self.made), known.get(name, name), None) for name in methods]
        return any(getattr(each, "__module__", INTERFACES[0]) not in INTERFACES for each in named)


#: Jobs of plugins are not checked against what their schedulers can do.
UNCHECKED = Capabilities(streams=(), since_until=False, retries=())


def translated_for(made: Any, value: Any) -> Any:
    """Convert a value to the classes that a plugin knows: ours, or those of an installed TorchX."""
    if "torchx.schedulers.api" not in sys.modules or not _is_torchx_class(type(made)):
        return value
    theirs = [sys.modules[name] for name in ("torchx.specs.api", "torchx.schedulers.api")]
    return translated(value, classes_of(*theirs))


def _is_torchx_class(cls: type) -> bool:
    return any(base.__module__ == "torchx.schedulers.api" for base in cls.__mro__)


def _translated(value: Any) -> Any:
    if value is None or isinstance(value, (DescribeAppResponse, ListAppResponse)):
        return value
    return translated(value, classes_of(specs, responses))


def call_with(method: Any, *values: Any) -> Any:
    """Call a method, if there is one, with as many of these values as it has parameters."""
    if method is None:
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return method(*values)
    return method(*values[: sum(parameter.kind in kinds for parameter in parameters)])
