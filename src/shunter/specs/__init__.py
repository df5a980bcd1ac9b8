"""The data of a job: roles, resources, options, states, handles. Nothing here runs or stores anything."""

from __future__ import annotations

from shunter.errors import (
    AppStatusError,
    InvalidRunConfigException,
    MalformedAppHandleException,
    UnknownAppException,
    UnknownSchedulerException,
)
from shunter.specs.app import MISSING, AppDef, RetryPolicy, Role, validate_app
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import AppHandle, ParsedAppHandle, make_app_handle, parse_app_handle
from shunter.specs.mounts import BindMount, DeviceMount, MountType, VolumeMount, parse_mounts
from shunter.specs.options import CfgVal, option, runopt, runopts
from shunter.specs.resource_catalog import get_named_resources, named_resources, resource
from shunter.specs.resources import NULL_RESOURCE, Resource
from shunter.specs.serialize import from_json, to_json
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
from shunter.specs.substitution import macros
from shunter.specs.workspace import Workspace

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
    "from_json",
    "get_named_resources",
    "is_started",
    "is_terminal",
    "macros",
    "make_app_handle",
    "named_resources",
    "option",
    "parse_app_handle",
    "parse_mounts",
    "resource",
    "runopt",
    "runopts",
    "to_json",
    "validate_app",
]
