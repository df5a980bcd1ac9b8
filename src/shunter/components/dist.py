"""Distributed PyTorch: torchrun on every node, with a rendezvous between them."""

from __future__ import annotations

import os
import shlex

from shunter.components.structured_arg import Nodes, StructuredJArgument, StructuredNameArgument
from shunter.errors import ComponentArgumentError
from shunter.specs.app import NO_IMAGE, AppDef, Role, macros
from shunter.specs.mounts import parse_mounts
from shunter.specs.resource_catalog import resource

DEBUG_ENV = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}

# The signals that torchrun passes on to the ranks, as its option --signals-to-handle: clusters send USR1 or
# USR2 before the time limit. As a variable, which a torch without the option ignores.
SIGNALS_ENV = {"PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"}

# For --rdzv_port 0: a port derived from the job's id, so all nodes agree on it, and jobs that share a machine
# get different ones. 10000 to 29999 is below the range of ephemeral ports.
_PORT_OF_JOB = f"$$((10000 + $$(printf %s {macros.app_id} | cksum | cut -d' ' -f1) % 20000))"


def ddp(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = NO_IMAGE,
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x2",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    rdzv_port: int = 29500,
    rdzv_backend: str = "c10d",
    rdzv_conf: str | None = None,
    mounts: list[str] | None = None,
    debug: bool = False,
    tee: int = 3,
) -> AppDef:
    """Train with torchrun on one node or many.

    A single node uses a free port. Several nodes meet at the first one's host and rdzv_port. If all nodes are
    on one machine, jobs that run at the same time need different ports: --rdzv_port 0 derives one from the
    job's id.

    Args:
        script_args: arguments of the script
        script: script to run
        m: module to run instead of a script
        image: image to run in; it needs bash and PyTorch
        name: EXPERIMENT/RUN; the run is named after the script or module unless given
        h: named resource of a node, instead of cpu, gpu and memMB
        cpu: cpus of a node
        gpu: gpus of a node
        memMB: memory of a node in MiB
        j: size as [[MIN:]NODESx]PROCESSES; with MIN the job is elastic
        env: environment variables
        metadata: metadata of the job; tags, if the scheduler has them
        max_retries: number of restarts after a failure
        rdzv_port: port of the rendezvous on the first node; 0 derives one from the job's id
        rdzv_backend: c10d, static, or another backend of torchrun
        rdzv_conf: more configuration of the rendezvous, such as join_timeout=600
        mounts: mounts, such as type=bind,src=/data,dst=/data,readonly
        debug: set variables that make PyTorch and NCCL report more
        tee: streams to print as well as to record: 0 none, 1 stdout, 2 stderr, 3 both
    """
    names = StructuredNameArgument.parse_from(name, m=m, script=script)
    size = Nodes.parse(j)
    if not 0 <= rdzv_port <= 65535:
        raise ComponentArgumentError(f"--rdzv_port must be 0 to 65535, not {rdzv_port}")
    program = [script] if script is not None else ["-m", m or ""]
    command = [
        *_torchrun_options(size, rdzv_backend, rdzv_port, rdzv_conf, tee),
        *(shlex.quote(word) for word in [*program, *script_args]),
    ]
    role = Role(
        StructuredNameArgument.parse_from("/", m=m, script=script).run_name,
        image,
        min_replicas=size.min_nodes,
        entrypoint="bash",
        args=["-c", " ".join(command)],
        env=_environment(env, names, debug=debug),
        num_replicas=size.nodes,
        max_retries=max_retries,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        port_map={"c10d": rdzv_port} if rdzv_port else {},
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name=names.run_name, roles=[role], metadata=dict(metadata or {}))


#: The same, under the name that it has in TorchX since 2026.
torchrun = ddp


def spmd(
    *args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = NO_IMAGE,
    name: str = "/",
    h: str = "gpu.small",
    j: str = "1x1",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    debug: bool = False,
) -> AppDef:
    """Run one program on every gpu, with torchrun.

    Args:
        args: arguments of the script
        script: script to run
        m: module to run instead of a script
        image: image to run in; it needs bash and PyTorch
        name: EXPERIMENT/RUN; the run is named after the script or module unless given
        h: named resource of a node
        j: size as NODESxPROCESSES, or NODES with a process for each gpu of h
        env: environment variables
        metadata: metadata of the job; tags, if the scheduler has them
        max_retries: number of restarts after a failure
        mounts: mounts, such as type=bind,src=/data,dst=/data,readonly
        debug: set variables that make PyTorch and NCCL report more
    """
    return ddp(
        *args,
        script=script,
        m=m,
        image=image,
        name=name,
        h=h,
        j=str(StructuredJArgument.parse_from(h, j)),
        env=env,
        metadata=metadata,
        max_retries=max_retries,
        mounts=mounts,
        debug=debug,
    )


def _torchrun_options(size: Nodes, backend: str, port: int, conf: str | None, tee: int) -> list[str]:
    """Return torchrun and its options as words of bash.

    The macro gives the *name* of the variable with the first node's host. Bash reads the variable; on the
    first node itself it may be unset, and the host is localhost then. ``$$`` is a ``$`` after the macros.
    """
    endpoint = "localhost:0"
    if size.nodes > 1 or backend == "static":
        host = "localhost" if size.nodes == 1 else f"$${{{macros.rank0_env}:=localhost}}"
        endpoint = f"{host}:{port}" if port else f'"{host}:{_PORT_OF_JOB}"'
    words = ["torchrun", "--rdzv_backend", shlex.quote(backend)]
    words += ["--rdzv_endpoint", endpoint, "--rdzv_id", macros.app_id]
    if backend == "static":
        words += ["--node_rank", macros.replica_id]
    if conf:
        words += ["--rdzv_conf", shlex.quote(conf)]
    words += ["--nnodes", str(size), "--nproc_per_node", str(size.processes)]
    return [*words, "--tee", str(tee), "--role", "''"]


def _environment(env: dict[str, str] | None, names: StructuredNameArgument, *, debug: bool) -> dict[str, str]:
    variables = {
        "TORCHX_TRACKING_EXPERIMENT_NAME": names.experiment_name,
        "TORCHX_TRACKING_RUN_NAME": names.run_name,
        "LOGLEVEL": os.environ.get("LOGLEVEL", "WARNING"),
    }
    return {**variables, **SIGNALS_ENV, **(DEBUG_ENV if debug else {}), **(env or {})}
