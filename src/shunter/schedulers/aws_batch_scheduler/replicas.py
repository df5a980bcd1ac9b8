"""How replicas become a Batch job: its kind, their layout, and the command and variables of each.

- One replica: a **container** job, on EC2 or Fargate.
- Replicas that work together: a **multi-node** job, with a node for each, all running at the same time.
  Every role is one range of nodes.
- Independent replicas: an **array** job, if requested.

The nodes of a range, and the children of an array, share one command and environment. What differs is found
when they start, in the variables ``AWS_BATCH_JOB_NODE_INDEX``, ``AWS_BATCH_JOB_ARRAY_INDEX`` and
``AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS`` (which the first node lacks; see
https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html). So programs are started by ``sh -c
'export ...; exec "$@"' sh PROGRAM ARGUMENT...``; if an argument contains the index, the script contains the
arguments.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from shunter._toolkit import function_call, race_lease
from shunter.errors import ConfigError
from shunter.schedulers.aws_batch_scheduler.code_delivery import FORM, RESULTS, STARTER, URL
from shunter.schedulers.toolkit_supervision import NOTIFY
from shunter.specs.app import AppDef, RetryPolicy, Role, macros
from shunter.specs.handles import make_app_handle

CONTAINER = "container"
ARRAY = "array"
MULTINODE = "multinode"

MOST_RANGES = 5
MOST_NODES = 1000
MOST_CHILDREN = 10_000


@dataclass(frozen=True)
class Group:
    """Replicas that share a command and an environment.

    Args:
        role_index: index of their role.
        role: their role.
        first: index of their first node.
        count: their number.
        kind: kind of the job.
    """

    role_index: int
    role: Role
    first: int
    count: int
    kind: str

    @property
    def target_nodes(self) -> str:
        """The range of nodes as Batch writes it."""
        return f"{self.first}:{self.first + self.count - 1}"


def layout(app: AppDef, array: bool) -> tuple[str, list[Group]]:
    """Return the kind of job and the groups of its replicas; ``array`` asks for an array job.

    Raises:
        ConfigError: Batch has no such job.
    """
    total = sum(role.num_replicas for role in app.roles)
    if array and len(app.roles) > 1:
        names = ", ".join(role.name for role in app.roles)
        raise ConfigError(
            f"an array job has one role, and this job has {len(app.roles)}: {names}",
            hint="Submit separate jobs, or leave array out.",
        )
    if total == 1:
        return CONTAINER, [Group(0, app.roles[0], 0, 1, CONTAINER)]
    if array:
        return ARRAY, [_array(app.roles[0])]
    return MULTINODE, _ranges(app, total)


def _array(role: Role) -> Group:
    if role.num_replicas > MOST_CHILDREN:
        raise ConfigError(f"an array job has at most {MOST_CHILDREN} replicas, not {role.num_replicas}")
    return Group(0, role, 0, role.num_replicas, ARRAY)


def _ranges(app: AppDef, total: int) -> list[Group]:
    if total > MOST_NODES:
        raise ConfigError(
            f"{total} replicas: a multi-node job has at most {MOST_NODES} nodes",
            hint="Independent replicas can be an array job: -cfg array=true.",
        )
    groups, first = [], 0
    for index, role in enumerate(app.roles):
        if role.retry_policy is not RetryPolicy.APPLICATION and role.max_retries:
            raise ConfigError(
                f"role {role.name!r}: a multi-node job is restarted as a whole, "
                f"not by {role.retry_policy.value}",
                hint="Leave retry_policy out, or make independent replicas an array job: -cfg array=true.",
            )
        groups.append(Group(index, role, first, role.num_replicas, MULTINODE))
        first += role.num_replicas
    if len(groups) > MOST_RANGES:
        raise ConfigError(
            f"a multi-node job has at most {MOST_RANGES} ranges of nodes, and this one needs {len(groups)}",
            hint="Each role is a range: use fewer.",
        )
    return groups


JOB_ID = "TORCHX_JOB_ID"
ROLE_INDEX = "TORCHX_ROLE_IDX"
ROLE_NAME = "TORCHX_ROLE_NAME"
REPLICA_INDEX = "TORCHX_REPLICA_IDX"
RANK0_HOST = "TORCHX_RANK0_HOST"
MAIN_NODE = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
#: Variables that differ between runs of the same job.
OF_THE_RUN = frozenset(
    {JOB_ID, "TORCHX_INTERNAL_SESSION_ID", "TORCHX_PARENT_RUN_ID", NOTIFY}
    | {URL, RESULTS, FORM, function_call.KEY, race_lease.VARIABLE}
)

# Placeholder of the index until the script is written, in private characters that users do not type.
_INDEX = "\ue000replica\ue001"
SHELL = ["sh", "-c"]


@dataclass(frozen=True)
class ReplicaCommand:
    """The command and environment of a replica."""

    command: list[str]
    env: dict[str, str]


def replica_command(group: Group, app_id: str, name: str, session: str) -> ReplicaCommand:
    """Return the command and environment of a group of replicas; ``name`` replaces the macro ``app_id``."""
    role, is_alone = group.role, group.kind == CONTAINER
    values = macros.Values("", name, "0" if is_alone else _INDEX, RANK0_HOST)
    applied = values.apply(role)
    env = {
        **applied.env,
        JOB_ID: make_app_handle("aws_batch", session, app_id),
        ROLE_INDEX: str(group.role_index),
        ROLE_NAME: role.name,
    }
    command = [role.entrypoint, *applied.args]
    if group.kind != MULTINODE:
        env[RANK0_HOST] = "localhost"
    if is_alone:
        return ReplicaCommand(command, {**env, REPLICA_INDEX: "0"})
    env.pop(REPLICA_INDEX, None)
    late = {key: value for key, value in env.items() if _INDEX in value}
    plain = {key: value for key, value in env.items() if key not in late}
    return ReplicaCommand(_wrapped(command, late, group), plain)


def _wrapped(command: list[str], late: dict[str, str], group: Group) -> list[str]:
    exports = _runtime_variables(group) + [f"{key}={_quoted(value)}" for key, value in sorted(late.items())]
    script = f"export {exports[0]}; "
    if exports[1:]:
        script += f"export {' '.join(exports[1:])}; "
    if any(_INDEX in word for word in command):
        return [*SHELL, f"{script}exec {' '.join(map(_quoted, command))}"]
    return [*SHELL, f'{script}exec "$@"', SHELL[0], *command]


def _runtime_variables(group: Group) -> list[str]:
    if group.kind == ARRAY:
        # a child's id is PARENT:INDEX
        return [f'{REPLICA_INDEX}="${{AWS_BATCH_JOB_ARRAY_INDEX:-${{AWS_BATCH_JOB_ID##*:}}}}"']
    node = f"${{AWS_BATCH_JOB_NODE_INDEX:-{group.first}}}"
    index = f"$(({node} - {group.first}))" if group.first else node
    return [f'{REPLICA_INDEX}="{index}"', f'{RANK0_HOST}="${{{MAIN_NODE}:-localhost}}"']


def _quoted(text: str) -> str:
    """Quote a word for the shell, with the index as the variable's value."""
    if _INDEX not in text:
        return shlex.quote(text)
    parts = [shlex.quote(part) if part else "" for part in text.split(_INDEX)]
    return f'"${REPLICA_INDEX}"'.join(parts)


def original_command(command: list[str]) -> list[str]:
    """Return the program and arguments that a command was made from, with the macro for the index."""
    if command[:2] != SHELL or len(command) < 3 or not command[2].startswith(f"export {REPLICA_INDEX}="):
        words = list(command)
    elif command[2].endswith('; exec "$@"'):
        words = command[4:]
    else:
        words = shlex.split(command[2].rpartition("; exec ")[2])
        words = [word.replace(f"${REPLICA_INDEX}", macros.replica_id) for word in words]
    is_started = tuple(words[: len(STARTER)]) == STARTER
    return words[len(STARTER) :] if is_started else words
