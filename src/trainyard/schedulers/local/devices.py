"""The GPUs of this machine, and who gets which."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from trainyard.errors import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"
NVIDIA_SMI_SECONDS = 30


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the ids of the GPUs that this process may use: of CUDA_VISIBLE_DEVICES, else all there are."""
    if VARIABLE in environ:
        return [part.strip() for part in environ[VARIABLE].split(",") if part.strip() not in ("", "-1")]
    import shutil
    import subprocess

    if shutil.which("nvidia-smi", path=environ.get("PATH")) is None:
        return []
    try:
        result = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            env=dict(environ),
            timeout=NVIDIA_SMI_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line for line in result.stdout.splitlines() if line.startswith("GPU ")]
    return [str(index) for index in range(len(lines))] if result.returncode == 0 else []


def place_gpus(wanted: Sequence[int], gpus: Sequence[str]) -> list[str | None]:
    """Share GPUs out among replicas.

    Args:
        wanted: number of GPUs for each replica; negative where it says nothing.
        gpus: ids of the GPUs there are.

    Returns:
        For each replica the value of CUDA_VISIBLE_DEVICES: "" hides all GPUs from a replica that wants
        none; None leaves the variable alone.

    Raises:
        ConfigError: the replicas want more than there are.
    """
    total = sum(count for count in wanted if count > 0)
    if total > len(gpus):
        raise ConfigError(
            f"the replicas ask for {total} GPUs in all, and {len(gpus)} are visible on this machine",
            hint="Ask for fewer, or leave auto_set_cuda_visible_devices off to let replicas share.",
        )
    placed: list[str | None] = []
    first = 0
    for count in wanted:
        placed.append(",".join(gpus[first : first + count]) if count >= 0 else None)
        first += max(count, 0)
    return placed
