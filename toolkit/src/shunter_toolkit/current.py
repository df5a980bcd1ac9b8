"""What a job's code uses: which process it is, where its files go, and how it goes on after a stop."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Callable, Tuple

# How launchers number processes, in the order in which they are asked: torchrun, Open MPI, MPICH and Intel
# MPI.
_RANKS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


@dataclass(frozen=True)
class Current:
    """This process and its job.

    Attributes:
        job: the job's handle, such as ``slurm://shunter/train-x1``; "" outside of jobs.
        role: the role's name; "" outside of jobs.
        replica: the replica's index in its role, from 0. In an array, each call is a replica.
        rank: this process's number among all that work together, from 0.
        world_size: how many processes work together.
        local_rank: its number among those of its host, from 0.
        host: this host's name.
        hosts: the names of all hosts, in order.
        master_address: the first host's name or address.
        checkpoint_dir: the directory whose content is there again after a restart; "" outside of jobs.
        model_dir: the directory for what the job produces; "" outside of jobs.
        output_dir: the directory for other results; "" outside of jobs.
    """

    job: str
    role: str
    replica: int
    rank: int
    world_size: int
    local_rank: int
    host: str
    hosts: Tuple[str, ...]
    master_address: str
    checkpoint_dir: str
    model_dir: str
    output_dir: str


def current() -> Current:
    """Return what this process is. Outside of jobs it is the only process of a job without a name."""
    variables = os.environ
    host = variables.get("SM_CURRENT_HOST") or os.uname().nodename
    hosts = _hosts() or (host,)
    rank, size, local = _place(host, hosts)
    return Current(
        job=variables.get("TORCHX_JOB_ID", ""),
        role=variables.get("TORCHX_ROLE_NAME", ""),
        replica=_number("TORCHX_REPLICA_IDX") or 0,
        rank=rank,
        world_size=size,
        local_rank=local,
        host=host,
        hosts=hosts,
        master_address=variables.get("MASTER_ADDR") or hosts[0],
        checkpoint_dir=variables.get("SM_CHECKPOINT_DIR", ""),
        model_dir=variables.get("SM_MODEL_DIR", ""),
        output_dir=variables.get("SM_OUTPUT_DATA_DIR", ""),
    )


def _place(host: str, hosts: Tuple[str, ...]) -> Tuple[int, int, int]:
    """Return rank, number of processes and local rank: as a launcher says, else one process on each host."""
    for names in _RANKS:
        rank, size, local = (_number(name) for name in names)
        if rank is not None and size is not None:
            return rank, size, local or 0
    return (hosts.index(host) if host in hosts else 0), len(hosts), 0


def _hosts() -> Tuple[str, ...]:
    try:
        hosts = json.loads(os.environ.get("SM_HOSTS") or "[]")
    except ValueError:
        return ()
    return tuple(str(host) for host in hosts) if isinstance(hosts, list) else ()


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None


class DelayedSubmission:
    """A call to go on with after the job was stopped: what a function's ``checkpoint`` method returns.

    Args:
        function: what to call after the restart.
        args, kwargs: its arguments.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
