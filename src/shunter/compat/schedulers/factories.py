"""Which schedulers there are, as TorchX lists them (``torchx.schedulers``)."""

from __future__ import annotations

from typing import Any

from shunter.compat.util.entrypoints import load_group
from shunter.schedulers import registry

#: TorchX's schedulers and the modules under which their names are served. The first is its default.
DEFAULT_SCHEDULER_MODULES: dict[str, str] = {
    "local_docker": "torchx.schedulers.docker_scheduler",
    "local_cwd": "torchx.schedulers.local_scheduler",
    "slurm": "torchx.schedulers.slurm_scheduler",
    "kubernetes": "torchx.schedulers.kubernetes_scheduler",
    "aws_batch": "torchx.schedulers.aws_batch_scheduler",
    "aws_sagemaker": "torchx.schedulers.aws_sagemaker_scheduler",
    "ray": "torchx.schedulers.ray_scheduler",
    "lsf": "torchx.schedulers.lsf_scheduler",
}


def get_scheduler_factories(group: str = "torchx.schedulers", skip_defaults: bool = False) -> dict[str, Any]:
    """Return the factory of each scheduler, by name: TorchX's first, then ours, then those of plugins.

    Args:
        group: the entry-point group to search.
        skip_defaults: only those of plugins.
    """
    every = registry.get_scheduler_factories()
    offered = every if group == "torchx.schedulers" else dict(load_group(group) or {})
    if skip_defaults:
        return {
            name: make for name, make in offered.items() if name not in registry.DEFAULT_SCHEDULER_MODULES
        }
    return {**{name: every[name] for name in DEFAULT_SCHEDULER_MODULES}, **offered}


def get_default_scheduler_name() -> str:
    """Return the scheduler that TorchX uses when none is named."""
    return next(iter(get_scheduler_factories()))
