"""TorchX's names for AWS instance types: one function each, such as ``aws_p4d_24xlarge()``."""

from __future__ import annotations

import os
from importlib import import_module

from shunter.specs.named_resources_aws import (
    EFA_DEVICE,
    INSTANCE_TYPE,
    MEMORY_SHARE,
    NEURON_DEVICE,
    USABLE_GIB,
)
from shunter.specs.named_resources_aws import NAMED_RESOURCES as _AWS
from shunter.specs.named_resources_generic import NAMED_RESOURCES as GENERIC_NAMED_RESOURCES
from shunter.specs.resources import Resource, ResourceFactory

K8S_ITYPE = INSTANCE_TYPE
MEM_TAX = MEMORY_SHARE
GiB = USABLE_GIB
NAMED_RESOURCES: dict[str, ResourceFactory] = dict(_AWS)
AWS_NAMED_RESOURCES = NAMED_RESOURCES
FB_NAMED_RESOURCES: dict[str, ResourceFactory] = {}

__all__ = [
    "AWS_NAMED_RESOURCES",
    "EFA_DEVICE",
    "FB_NAMED_RESOURCES",
    "GENERIC_NAMED_RESOURCES",
    "K8S_ITYPE",
    "MEM_TAX",
    "NAMED_RESOURCES",
    "NEURON_DEVICE",
    "GiB",
    "instance_type_from_resource",
]
_FUNCTIONS = {name.replace(".", "_").replace("-", "_"): factory for name, factory in _AWS.items()}


def instance_type_from_resource(resource: Resource) -> str | None:
    """Return the instance type that a resource stands for; None if it names none."""
    return resource.capabilities.get(K8S_ITYPE)


def __getattr__(name: str) -> object:
    if name == "CUSTOM_NAMED_RESOURCES":
        return _custom()
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_FUNCTIONS])


def _custom() -> dict[str, ResourceFactory]:
    """Return the resources of the module that the variable TORCHX_CUSTOM_NAMED_RESOURCES names."""
    name = os.environ.get("TORCHX_CUSTOM_NAMED_RESOURCES")
    return dict(import_module(name).NAMED_RESOURCES) if name else {}
