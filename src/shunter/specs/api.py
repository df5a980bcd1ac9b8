"""The nouns of a job, in the module where TorchX has them; each is defined in a module named after it."""

from __future__ import annotations

from shunter.errors import (
    AppStatusError,
    InvalidRunConfigException,
    MalformedAppHandleException,
    UnknownAppException,
    UnknownSchedulerException,
)
from shunter.specs.app import MISSING, AppDef, RetryPolicy, Role, macros
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import AppHandle, ParsedAppHandle, make_app_handle, parse_app_handle
from shunter.specs.mounts import BindMount, DeviceMount, MountType, VolumeMount
from shunter.specs.options import CfgVal, runopt, runopts
from shunter.specs.resources import NULL_RESOURCE, Resource
from shunter.specs.status import (
    NONE,
    AppState,
    AppStatus,
    ReplicaState,
    ReplicaStatus,
    RoleStatus,
    is_started,
    is_terminal,
)
from shunter.specs.workspace import Workspace

#: Stands for all roles of a job.
ALL = "all"

__all__ = [
    "ALL",
    "MISSING",
    "NONE",
    "NULL_RESOURCE",
    "AppDef",
    "AppDryRunInfo",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "BindMount",
    "CfgVal",
    "DeviceMount",
    "InvalidRunConfigException",
    "MalformedAppHandleException",
    "MountType",
    "ParsedAppHandle",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "UnknownAppException",
    "UnknownSchedulerException",
    "VolumeMount",
    "Workspace",
    "is_started",
    "is_terminal",
    "macros",
    "make_app_handle",
    "parse_app_handle",
    "runopt",
    "runopts",
]
