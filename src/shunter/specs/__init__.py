"""The data of a job: roles, resources, options, states, handles. Nothing here runs or stores anything."""

from __future__ import annotations

from shunter.specs import api
from shunter.specs.api import *  # noqa: F403 - what `api.__all__` lists
from shunter.specs.app import validate_app
from shunter.specs.mounts import parse_mounts
from shunter.specs.options import option
from shunter.specs.resource_catalog import get_named_resources, named_resources, resource
from shunter.specs.serialize import from_json, to_json

__all__ = [
    "from_json",
    "get_named_resources",
    "named_resources",
    "option",
    "parse_mounts",
    "resource",
    "to_json",
    "validate_app",
]
__all__ += api.__all__
