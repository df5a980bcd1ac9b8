"""Variables for AWS's network between hosts (EFA), by instance type, as the predecessor sets them."""

from __future__ import annotations

from collections.abc import Mapping

#: Instance types whose NCCL goes over EFA.
SM_EFA_NCCL_INSTANCES = [
    "ml.g4dn.8xlarge",
    "ml.g4dn.12xlarge",
    "ml.g5.48xlarge",
    "ml.p3dn.24xlarge",
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
    "ml.p5.48xlarge",
    "ml.p5e.48xlarge",
    "ml.trn1.32xlarge",
    "ml.p6e-gb200.36xlarge",
]
#: Those of them whose GPUs read each other's memory over EFA.
SM_EFA_RDMA_INSTANCES = [
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
    "ml.p5.48xlarge",
    "ml.p5e.48xlarge",
    "ml.trn1.32xlarge",
    "ml.p6e-gb200.36xlarge",
]


def variables(instance_type: str, env: Mapping[str, str]) -> dict[str, str]:
    """Variables to set on this instance type, except those that the job sets itself; none on other types."""
    found: dict[str, str] = {}
    if instance_type in SM_EFA_NCCL_INSTANCES:
        found.update(FI_PROVIDER="efa", NCCL_PROTO="simple")
    if instance_type in SM_EFA_RDMA_INSTANCES:
        found.update(FI_EFA_USE_DEVICE_RDMA="1", RDMAV_FORK_SAFE="1")
    return {name: value for name, value in found.items() if name not in env}
