"""AWS instance types as named resources.

Memory is 96 % of what AWS advertises, in MiB of each GiB rounded down: the rest is taken by the host's own
processes (TorchX's rule). Figures: the EC2 instance type pages of the AWS documentation.
"""

from __future__ import annotations

from functools import partial

from shunter.specs.resources import Resource, ResourceFactory

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
EFA_DEVICE = "vpc.amazonaws.com/efa"
NEURON_DEVICE = "aws.amazon.com/neurondevice"
MEMORY_SHARE = 0.96
#: MiB of an advertised GiB that jobs get.
USABLE_GIB = int(1024 * MEMORY_SHARE)

# name: (vCPUs, GPUs, advertised GiB, EFA interfaces, Neuron devices)
_TYPES: dict[str, tuple[int, int, int, int, int]] = {
    "t3.medium": (2, 0, 4, 0, 0),
    "m5.large": (2, 0, 8, 0, 0),
    "m5.xlarge": (4, 0, 16, 0, 0),
    "m5.2xlarge": (8, 0, 32, 0, 0),
    "m5.4xlarge": (16, 0, 64, 0, 0),
    "m5.8xlarge": (32, 0, 128, 0, 0),
    "m5.12xlarge": (48, 0, 192, 0, 0),
    "m5.16xlarge": (64, 0, 256, 0, 0),
    "m5.24xlarge": (96, 0, 384, 0, 0),
    "m5.metal": (96, 0, 384, 0, 0),
    "m5d.large": (2, 0, 8, 0, 0),
    "m5d.xlarge": (4, 0, 16, 0, 0),
    "m5d.2xlarge": (8, 0, 32, 0, 0),
    "m5d.4xlarge": (16, 0, 64, 0, 0),
    "m5d.8xlarge": (32, 0, 128, 0, 0),
    "m5d.12xlarge": (48, 0, 192, 0, 0),
    "m5d.16xlarge": (64, 0, 256, 0, 0),
    "m5d.24xlarge": (96, 0, 384, 0, 0),
    "m5d.metal": (96, 0, 384, 0, 0),
    "c5.18xlarge": (72, 0, 142, 0, 0),  # AWS advertises 144; this is TorchX's figure
    "c7i.8xlarge": (32, 0, 64, 0, 0),
    "c7i.24xlarge": (96, 0, 192, 0, 0),
    "r5.8xlarge": (32, 0, 256, 0, 0),
    "r5.24xlarge": (96, 0, 768, 0, 0),
    "m7g.8xlarge": (32, 0, 128, 0, 0),
    "c7g.16xlarge": (64, 0, 128, 0, 0),
    "p3.2xlarge": (8, 1, 61, 0, 0),
    "p3.8xlarge": (32, 4, 244, 0, 0),
    "p3.16xlarge": (64, 8, 488, 0, 0),
    "p3dn.24xlarge": (96, 8, 768, 1, 0),
    "p4d.24xlarge": (96, 8, 1152, 4, 0),
    "p4de.24xlarge": (96, 8, 1152, 4, 0),
    "p5.48xlarge": (192, 8, 2048, 32, 0),
    "p5e.48xlarge": (192, 8, 2048, 32, 0),
    "p5en.48xlarge": (192, 8, 2048, 16, 0),
    "p6-b200.48xlarge": (192, 8, 2048, 8, 0),
    "p6-b300.48xlarge": (192, 8, 4096, 16, 0),
    "p6e-gb200.36xlarge": (144, 4, 960, 16, 0),
    "g4dn.xlarge": (4, 1, 16, 0, 0),
    "g4dn.2xlarge": (8, 1, 32, 0, 0),
    "g4dn.4xlarge": (16, 1, 64, 0, 0),
    "g4dn.8xlarge": (32, 1, 128, 1, 0),
    "g4dn.12xlarge": (48, 4, 192, 1, 0),
    "g4dn.16xlarge": (64, 1, 256, 1, 0),
    "g4dn.metal": (96, 8, 384, 1, 0),
    "g5.xlarge": (4, 1, 16, 0, 0),
    "g5.2xlarge": (8, 1, 32, 0, 0),
    "g5.4xlarge": (16, 1, 64, 0, 0),
    "g5.8xlarge": (32, 1, 128, 1, 0),
    "g5.12xlarge": (48, 4, 192, 1, 0),
    "g5.16xlarge": (64, 1, 256, 1, 0),
    "g5.24xlarge": (96, 4, 384, 1, 0),
    "g5.48xlarge": (192, 8, 768, 1, 0),
    "g6.xlarge": (4, 1, 16, 0, 0),
    "g6.2xlarge": (8, 1, 32, 0, 0),
    "g6.4xlarge": (16, 1, 64, 0, 0),
    "g6.8xlarge": (32, 1, 128, 1, 0),
    "g6.12xlarge": (48, 4, 192, 1, 0),
    "g6.16xlarge": (64, 1, 256, 1, 0),
    "g6.24xlarge": (96, 4, 384, 1, 0),
    "g6.48xlarge": (192, 8, 768, 1, 0),
    "g6e.xlarge": (4, 1, 32, 0, 0),
    "g6e.2xlarge": (8, 1, 64, 0, 0),
    "g6e.4xlarge": (16, 1, 128, 0, 0),
    "g6e.8xlarge": (32, 1, 256, 0, 0),
    "g6e.12xlarge": (48, 4, 384, 0, 0),
    "g6e.16xlarge": (64, 1, 512, 0, 0),
    "g6e.24xlarge": (96, 4, 768, 2, 0),
    "g6e.48xlarge": (192, 8, 1536, 4, 0),
    "trn1.2xlarge": (8, 0, 32, 0, 1),
    "trn1.32xlarge": (128, 0, 512, 8, 16),
    "inf2.xlarge": (4, 0, 16, 0, 1),
    "inf2.8xlarge": (32, 0, 128, 0, 1),
    "inf2.24xlarge": (96, 0, 384, 0, 6),
    "inf2.48xlarge": (192, 0, 768, 0, 12),
}


def _instance(name: str, cpu: int, gpu: int, gib: int, efa: int, neuron: int) -> Resource:
    devices = {EFA_DEVICE: efa, NEURON_DEVICE: neuron}
    return Resource(
        cpu=cpu,
        gpu=gpu,
        memMB=gib * USABLE_GIB,
        capabilities={INSTANCE_TYPE: name},
        devices={device: count for device, count in devices.items() if count},
    )


NAMED_RESOURCES: dict[str, ResourceFactory] = {
    f"aws_{name}": partial(_instance, name, *figures) for name, figures in _TYPES.items()
}
