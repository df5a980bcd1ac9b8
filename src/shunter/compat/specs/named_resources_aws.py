"""TorchX's names for AWS instance types: one function each, such as ``aws_p4d_24xlarge()``."""

from __future__ import annotations

import os
from importlib import import_module

from shunter.specs import named_resources_aws, named_resources_generic
from shunter.specs.resources import Resource, ResourceFactory

EFA_DEVICE = named_resources_aws.EFA_DEVICE
NEURON_DEVICE = named_resources_aws.NEURON_DEVICE
K8S_ITYPE = named_resources_aws.INSTANCE_TYPE
MEM_TAX = named_resources_aws.MEMORY_SHARE
GiB = named_resources_aws.USABLE_GIB
AWS_NAMED_RESOURCES: dict[str, ResourceFactory] = dict(named_resources_aws.NAMED_RESOURCES)
GENERIC_NAMED_RESOURCES = named_resources_generic.NAMED_RESOURCES
NAMED_RESOURCES = AWS_NAMED_RESOURCES

_FUNCTIONS = {
    name.replace(".", "_").replace("-", "_"): factory for name, factory in AWS_NAMED_RESOURCES.items()
}


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
