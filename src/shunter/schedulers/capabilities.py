"""What schedulers can do: the matrix of `shunter schedulers`, and what a job is checked against before it
is submitted.

A scheduler declares in `Scheduler.capabilities` only what its code does not show. That it can ``exec``, for
example, follows from its own `Scheduler.execute`, so the matrix cannot claim what is not there.

``chain`` is an option (a whole number, 1 by default) of the schedulers that can submit a job several times in
a row: attempt 2 begins when a time limit has ended attempt 1, and goes on from the last checkpoint. It is the
number of attempts in all. A failure of the program itself ends the chain. The attempts are one job with one
id and one log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shunter.errors import ConfigError
from shunter.schedulers.native_retries import words_of
from shunter.specs.app import AppDef, Role

#: Streams, kinds of mounts and retry policies that there are.
SEPARATE_STREAMS = ("stdout", "stderr", "combined")
ALL_MOUNTS = ("bind", "volume", "device")
ALL_RETRIES = ("replica", "role", "application")

#: The columns of the matrix, each with its meaning.
COLUMNS = {
    "detached": "a job keeps running when the terminal that started it is closed",
    "follow": "logs can be followed while the job writes them",
    "since_until": "logs can be limited to a period (--since, --until)",
    "streams": "which streams of a log can be read: stdout, stderr, or both combined",
    "arrays": "independent replicas can start one by one, as machines become free",
    "elastic": "a job can run with fewer replicas than it asks for (min_replicas)",
    "mounts": "kinds of mounts that a job may have",
    "workspaces": "the code of a directory is sent with the job",
    "training": "train.script runs with channels, results and checkpoints",
    "retries": "what can be retried: one replica, its role, or the whole application",
    "fetch": "`shunter fetch` brings results of jobs to this machine",
    "exec": "`shunter exec` starts a command in a running replica",
    "forward": "`shunter forward` makes a port of a running replica reachable on this machine",
    "after": "`run --after` lets a job wait for others",
    "chain": "the option chain continues a job from its last checkpoint after its time limit",
    "notify": "`run --notify` notifies URLs and commands when a job has ended",
    "retry": "`run --retry` sets retries by class of failure",
    "hangs": "`run --hang-timeout` detects hung replicas, and writes their stacks to the log",
    "delete": "`shunter delete` removes what the backend keeps of a job",
    "doctor": "`shunter doctor` checks whether jobs could run",
    "gc": "`shunter gc` finds what jobs left behind",
}

# The methods of each capability: a scheduler has the capability if it overrides one of them.
_METHODS = {
    "follow": ("log_blocks", "log_iter"),
    "workspaces": ("_plan_shipment",),
    "fetch": ("results",),
    "exec": ("execute",),
    "after": ("_depend_on",),
    "delete": ("delete", "_delete_existing"),
    "doctor": ("doctor",),
    "gc": ("leftovers",),
}
#: Modules whose methods do nothing but say that a scheduler cannot do it.
INTERFACES = ("shunter.schedulers.api", "shunter.compat.plugin_scheduler", "torchx.schedulers.api")


@dataclass(frozen=True)
class Capabilities:
    """What a scheduler declares, since no method shows it.

    Attributes:
        streams: of `SEPARATE_STREAMS`, those that its logs can be asked for.
        since_until: whether its logs have times.
        arrays: whether independent replicas start one by one.
        elastic: whether ``min_replicas`` has an effect.
        mounts: of `ALL_MOUNTS`, the kinds that work.
        retries: of `ALL_RETRIES`, the policies that work.
        detached: whether jobs outlive the terminal that they are started from.
        ignores: any of ``mounts``, ``elastic`` and ``retries``: a job that needs it runs without it, after a
            warning. Without this, such a job is refused.
        notes: by column, some words instead of "yes", such as ``{"exec": "srun"}``. What the scheduler
            cannot do stays "no".
        is_local: whether jobs run on this machine, so that a command that starts one follows it by default.
        notifies: whether `Scheduler.wait` returns as soon as the job ends, without polling the backend.
        ships_by_default: whether the current directory travels with a job by default, as an image needs the
            user's code.
        runs_images: whether every role needs an image, so that a role without one gets the default image.
        ships_roles: whether the scheduler itself ships the workspaces that roles name, as plugins for TorchX
            of 2026 do.
        reads_training_specs: whether it runs a role's ``metadata["train"]`` itself, without the toolkit.
        results_by_log: whether small results of jobs without an output come back with their logs, since
            nothing is left of a job's files after its end.
        pipes_streams: whether `Scheduler.execute` passes stdin and stdout on as they are, so that a
            connection can go through them.
        races: whether its jobs can take the lease of a race by a command before their own, see
            `shunter._toolkit.race_lease`. Those of other schedulers can if these are `TakesLeases`.
        list_filters: the filters that `Scheduler.list` accepts in ``cfg`` in addition to options: ``states``
            (a set of `AppState`), ``since`` (seconds since the epoch), ``all`` (also jobs that are not ours).
    """

    streams: tuple[str, ...] = ("combined",)
    since_until: bool = True
    arrays: bool = False
    elastic: bool = False
    mounts: tuple[str, ...] = ()
    retries: tuple[str, ...] = ALL_RETRIES
    detached: bool = True
    ignores: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    is_local: bool = False
    notifies: bool = False
    ships_by_default: bool = False
    runs_images: bool = False
    ships_roles: bool = False
    reads_training_specs: bool = False
    results_by_log: bool = False
    pipes_streams: bool = True
    races: bool = False
    list_filters: frozenset[str] = frozenset()


#: Capabilities of schedulers that declare none, as plugins may; jobs are not checked against them.
UNDECLARED = Capabilities()


def capabilities_of(scheduler: Any) -> dict[str, bool | str]:
    """Return what a scheduler can do, by column: whether, or in a few words how."""
    declared: Capabilities = getattr(scheduler, "capabilities", None) or UNDECLARED
    abilities: dict[str, bool | str] = {
        name: has_own(scheduler, *methods) for name, methods in _METHODS.items()
    }
    abilities["forward"] = bool(abilities["exec"]) and declared.pipes_streams
    reads_logs = bool(abilities["follow"])
    abilities |= {
        "detached": declared.detached,
        "since_until": reads_logs and declared.since_until,
        "streams": reads_logs and (", ".join(declared.streams) or False),
        "arrays": declared.arrays,
        "elastic": declared.elastic,
        "mounts": ", ".join(declared.mounts) or False,
        "retries": ", ".join(declared.retries) or False,
        "training": declared.reads_training_specs or has_own(scheduler, "_toolkit_place"),
        "chain": "chain" in scheduler.run_opts(),
        "notify": "notify" in scheduler.run_opts(),
        "retry": "retry" in scheduler.run_opts() and (words_of(scheduler.backend) or True),
        "hangs": "hang_timeout" in scheduler.run_opts(),
    }
    return {name: declared.notes.get(name, abilities[name]) if abilities[name] else False for name in COLUMNS}


def has_own(scheduler: Any, *methods: str) -> bool:
    """Tell whether a scheduler has a method that is not merely the interface's."""
    if hasattr(scheduler, "implements"):  # it wraps another scheduler
        return bool(scheduler.implements(*methods))
    return any(
        getattr(getattr(type(scheduler), name, None), "__module__", INTERFACES[0]) not in INTERFACES
        for name in methods
    )


# ---- what a job needs


def check_needs(scheduler: str, capabilities: Capabilities, app: AppDef) -> list[str]:
    """Compare what a job needs with what its scheduler can do; returns what will have no effect.

    Raises:
        ConfigError: it needs what the scheduler lacks and does not ignore. All of it is reported at once.
    """
    ignored: list[str] = []
    refused: list[str] = []
    if capabilities is UNDECLARED:
        return ignored
    for role in app.roles:
        for need, words in _lacking(role, capabilities):
            if need in capabilities.ignores:
                ignored.append(f"role {role.name!r}: {scheduler} ignores {words}")
            else:
                refused.append(f"role {role.name!r}: {scheduler} has no {words}")
    if refused:
        raise ConfigError("; ".join(refused), hint="`shunter schedulers` shows what each scheduler can do.")
    return ignored


def _lacking(role: Role, capabilities: Capabilities) -> Iterator[tuple[str, str]]:
    """Yield what a role needs but the scheduler lacks: the capability, and a description of it."""
    kinds = {type(mount).__name__.removesuffix("Mount").lower(): None for mount in role.mounts}
    missing = [kind for kind in kinds if kind not in capabilities.mounts]
    if missing:
        yield "mounts", f"mounts of type {', '.join(missing)}"
    if role.min_replicas not in (None, role.num_replicas) and not capabilities.elastic:
        yield "elastic", f"min_replicas={role.min_replicas}"
    policy = role.retry_policy.value.lower()
    if role.max_retries and policy not in capabilities.retries:
        yield "retries", f"retry policy {role.retry_policy.value}"
