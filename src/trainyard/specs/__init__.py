"""The data of a job: roles, resources, options, states, handles. Nothing here runs or stores anything.

Names are loaded when they are first used, so that a command pays only for those that it touches.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.errors import (
        AppStatusError,
        InvalidRunConfigException,
        MalformedAppHandleException,
        UnknownAppException,
        UnknownSchedulerException,
    )
    from trainyard.specs.app import MISSING, AppDef, RetryPolicy, Role, validate_app
    from trainyard.specs.dryrun_info import AppDryRunInfo
    from trainyard.specs.handles import AppHandle, ParsedAppHandle, make_app_handle, parse_app_handle
    from trainyard.specs.mounts import BindMount, DeviceMount, MountType, VolumeMount, parse_mounts
    from trainyard.specs.options import CfgVal, option, runopt, runopts
    from trainyard.specs.resource_catalog import get_named_resources, named_resources, resource
    from trainyard.specs.resources import NULL_RESOURCE, Resource
    from trainyard.specs.serialize import from_json, to_json
    from trainyard.specs.status import (
        NONE,
        AppState,
        AppStatus,
        ReplicaState,
        ReplicaStatus,
        RoleStatus,
        is_started,
        is_terminal,
    )
    from trainyard.specs.substitution import macros
    from trainyard.specs.workspace import Workspace

ALL = "all"

_HOMES = {
    "errors": "AppStatusError InvalidRunConfigException MalformedAppHandleException UnknownAppException "
    "UnknownSchedulerException",
    "specs.app": "MISSING AppDef RetryPolicy Role validate_app",
    "specs.dryrun_info": "AppDryRunInfo",
    "specs.handles": "AppHandle ParsedAppHandle make_app_handle parse_app_handle",
    "specs.substitution": "macros",
    "specs.workspace": "Workspace",
    "specs.mounts": "BindMount DeviceMount MountType VolumeMount parse_mounts",
    "specs.resource_catalog": "get_named_resources named_resources resource",
    "specs.resources": "NULL_RESOURCE Resource",
    "specs.options": "CfgVal option runopt runopts",
    "specs.serialize": "from_json to_json",
    "specs.status": "NONE AppState AppStatus ReplicaState ReplicaStatus RoleStatus is_started is_terminal",
}
_HOME_OF = {name: f"trainyard.{module}" for module, names in _HOMES.items() for name in names.split()}

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


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
