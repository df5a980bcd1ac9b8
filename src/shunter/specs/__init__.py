"""The data of a job: roles, resources, options, states, handles. Nothing here runs or stores anything.

Names are loaded when they are first used, so that a command pays only for those that it touches.
"""

from __future__ import annotations

from importlib import import_module

from shunter.errors import AppStatusError as AppStatusError
from shunter.errors import InvalidRunConfigException as InvalidRunConfigException
from shunter.errors import MalformedAppHandleException as MalformedAppHandleException
from shunter.errors import UnknownAppException as UnknownAppException
from shunter.errors import UnknownSchedulerException as UnknownSchedulerException
from shunter.specs.app import MISSING as MISSING
from shunter.specs.app import AppDef as AppDef
from shunter.specs.app import RetryPolicy as RetryPolicy
from shunter.specs.app import Role as Role
from shunter.specs.app import validate_app as validate_app
from shunter.specs.dryrun_info import AppDryRunInfo as AppDryRunInfo
from shunter.specs.handles import AppHandle as AppHandle
from shunter.specs.handles import ParsedAppHandle as ParsedAppHandle
from shunter.specs.handles import make_app_handle as make_app_handle
from shunter.specs.handles import parse_app_handle as parse_app_handle
from shunter.specs.mounts import BindMount as BindMount
from shunter.specs.mounts import DeviceMount as DeviceMount
from shunter.specs.mounts import MountType as MountType
from shunter.specs.mounts import VolumeMount as VolumeMount
from shunter.specs.mounts import parse_mounts as parse_mounts
from shunter.specs.options import CfgVal as CfgVal
from shunter.specs.options import option as option
from shunter.specs.options import runopt as runopt
from shunter.specs.options import runopts as runopts
from shunter.specs.resource_catalog import get_named_resources as get_named_resources
from shunter.specs.resource_catalog import named_resources as named_resources
from shunter.specs.resource_catalog import resource as resource
from shunter.specs.resources import NULL_RESOURCE as NULL_RESOURCE
from shunter.specs.resources import Resource as Resource
from shunter.specs.serialize import from_json as from_json
from shunter.specs.serialize import to_json as to_json
from shunter.specs.status import NONE as NONE
from shunter.specs.status import AppState as AppState
from shunter.specs.status import AppStatus as AppStatus
from shunter.specs.status import ReplicaState as ReplicaState
from shunter.specs.status import ReplicaStatus as ReplicaStatus
from shunter.specs.status import RoleStatus as RoleStatus
from shunter.specs.status import is_started as is_started
from shunter.specs.status import is_terminal as is_terminal
from shunter.specs.substitution import macros as macros
from shunter.specs.workspace import Workspace as Workspace

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
_HOME_OF = {name: f"shunter.{module}" for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted(["ALL", *_HOME_OF])


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
