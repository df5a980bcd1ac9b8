"""Helpers for scripts that torchrun starts (``torchx.distributed``); torch is imported by calls."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

Backend = Literal["auto", "nccl", "gloo", "mpi"]


def local_rank() -> int:
    """Return the index of this process on its host; 0 without torchrun (a group then gets a warning)."""
    given = os.environ.get("LOCAL_RANK")
    if given is None and "torch" in sys.modules and _distributed().is_initialized():
        warnings.warn(
            "LOCAL_RANK is not set, so the local rank is 0: start the script with torchrun", stacklevel=2
        )
    return int(given or "0")


def rank() -> int:
    """Return the index of this process in its group; 0 without a group."""
    return int(_distributed().get_rank()) if _is_grouped() else 0


def world_size() -> int:
    """Return the number of processes in the group; 1 without a group."""
    return int(_distributed().get_world_size()) if _is_grouped() else 1


def is_rank0() -> bool:
    """Tell whether this is the first process of the group."""
    return rank() == 0


def is_local_rank0() -> bool:
    """Tell whether this is the first process of its host."""
    return local_rank() == 0


def has_cuda_devices() -> bool:
    """Tell whether torch can use an NVIDIA GPU."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.device_count() > 0)


def local_cuda_device() -> Any:
    """Return the gpu of this process."""
    import torch

    return torch.device(f"cuda:{local_rank()}")


def local_device() -> Any:
    """Return the gpu of this process, or the cpu where there is none."""
    import torch

    return local_cuda_device() if has_cuda_devices() else torch.device("cpu")


def init_pg(backend: str = "auto", **kwargs: Any) -> Any:
    """Join the processes that torchrun started, or make a group of this process alone; return its device.

    Args:
        backend: ``auto`` is nccl with gpus and gloo without.
        kwargs: given to ``torch.distributed.init_process_group``.
    """
    dist = _distributed()
    chosen = ("nccl" if has_cuda_devices() else "gloo") if backend == "auto" else backend
    device = local_device()
    if chosen == "nccl":
        import torch

        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group(chosen, **kwargs)
    else:
        dist.init_process_group(chosen, rank=0, world_size=1, store=dist.HashStore(), **kwargs)
    return device


def on_rank0_first() -> AbstractContextManager[None]:
    """Let the first process of the group do something before all others."""
    return _first(is_rank0)


def on_local_rank0_first() -> AbstractContextManager[None]:
    """Let the first process of each host do something before the others of the host."""
    return _first(is_local_rank0)


@contextmanager
def _first(is_first: Callable[[], bool]) -> Iterator[None]:
    """Let the other processes of the group wait until the first one has left the block."""
    grouped = _is_grouped()
    if grouped and not is_first():
        _distributed().barrier()
    try:
        yield
    finally:
        if grouped and is_first():
            _distributed().barrier()


def _is_grouped() -> bool:
    dist = _distributed()
    return bool(dist.is_available() and dist.is_initialized())


def _distributed() -> Any:
    import torch.distributed

    return torch.distributed
