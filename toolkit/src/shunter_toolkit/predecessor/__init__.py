"""What the predecessors' callers import beyond our own modules: see :mod:`shunter_toolkit.aliases`.

Each module has the public names and signatures of one of ``sagemaker_training``'s, over our own parts.
"""

from __future__ import annotations

from typing import Any

from ..efa import SM_EFA_NCCL_INSTANCES, SM_EFA_RDMA_INSTANCES

__all__ = ["SM_EFA_NCCL_INSTANCES", "SM_EFA_RDMA_INSTANCES", "SM_TRAINING_COMPILER_PATHS", "training_env"]

SM_TRAINING_COMPILER_PATHS = [
    "tensorflow/compiler/xla",
    "tensorflow/compiler/tf2xla",
    "tensorflow/python/compiler/xla",
    "torch_xla/",
]


def training_env(
    resource_config: dict[str, Any] | None = None,
    input_data_config: dict[str, Any] | None = None,
    hyperparameters: dict[str, Any] | None = None,
) -> Any:
    """The job, as ``sagemaker_containers.beta.framework.training_env()`` gave it."""
    from ..environment import Environment

    return Environment(resource_config, input_data_config, hyperparameters)
