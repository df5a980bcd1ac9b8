"""Our schedulers for an installed TorchX, which finds them by its entry points ``torchx.schedulers``.

Releases of TorchX up to 0.7 drop their own schedulers as soon as a distribution offers one. Schedulers that
TorchX has itself are therefore offered too: from TorchX's own module where that exists.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

#: TorchX's schedulers and their modules; shunter's own are used where TorchX no longer has the module.
KEPT = {
    "local_docker": "torchx.schedulers.docker_scheduler",
    "local_cwd": "torchx.schedulers.local_scheduler",
    "slurm": "torchx.schedulers.slurm_scheduler",
    "kubernetes": "torchx.schedulers.kubernetes_scheduler",
    "kubernetes_mcad": "torchx.schedulers.kubernetes_mcad_scheduler",
    "gcp_batch": "torchx.schedulers.gcp_batch_scheduler",
}
#: Schedulers that are always ours.
OURS = ("aws_batch", "aws_sagemaker", "sagemaker_local", "ray", "lsf", "sge")


def create(name: str, session_name: str, **parameters: Any) -> Any:
    """Make a scheduler for TorchX.

    Raises:
        ModuleNotFoundError: neither TorchX nor shunter has it.
    """
    from shunter.schedulers.registry import DEFAULT_SCHEDULER_MODULES

    module = KEPT.get(name, "")
    if module and (importlib.util.find_spec(module) or name not in DEFAULT_SCHEDULER_MODULES):
        return importlib.import_module(module).create_scheduler(session_name, **parameters)
    from shunter.compat.offered_scheduler import make_class

    return make_class(name)(name, session_name, parameters)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in KEPT and name not in OURS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return functools.partial(create, name)
