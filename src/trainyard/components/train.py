"""A plain Python script as a job."""

from __future__ import annotations

import os

from trainyard.components.image import NO_IMAGE
from trainyard.specs.app import AppDef, Role
from trainyard.specs.mounts import parse_mounts
from trainyard.specs.resources import resource


def script(
    *script_args: str,
    script: str,
    name: str = "",
    image: str = NO_IMAGE,
    h: str | None = None,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    num_replicas: int = 1,
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
) -> AppDef:
    """Run a Python script. ``trainyard run ./train.py --lr 0.1`` is short for it.

    Args:
        script_args: arguments of the script
        script: the script
        name: name of the job; the script's unless given
        image: image to run in
        h: named resource, which stands for cpu, gpu and memMB
        cpu: cpus of a replica
        gpu: gpus of a replica
        memMB: memory of a replica in MiB
        num_replicas: how many run it
        env: environment variables
        max_retries: how often to start again after a failure
        mounts: mounts, such as type=bind,src=/data,dst=/data,readonly
    """
    stem = os.path.splitext(os.path.basename(script))[0] or "script"
    role = Role(
        stem,
        image,
        entrypoint="python",
        args=[script, *script_args],
        env=dict(env or {}),
        num_replicas=num_replicas,
        max_retries=max_retries,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name=name or stem, roles=[role])
