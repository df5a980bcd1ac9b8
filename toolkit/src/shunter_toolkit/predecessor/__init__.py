"""What AWS's framework toolkits and users' code import of the predecessors, beyond our own modules.

Each module has names and signatures of one of ``sagemaker_training``'s, over our own parts; see
:mod:`shunter_toolkit.aliases`.
"""

from __future__ import annotations

from typing import Any

from ..environment import Environment


def training_env(
    resource_config: dict[str, Any] | None = None,
    input_data_config: dict[str, Any] | None = None,
    hyperparameters: dict[str, Any] | None = None,
) -> Any:
    """The job, as ``sagemaker_containers.beta.framework.training_env()`` gave it."""
    return Environment(resource_config, input_data_config, hyperparameters)
