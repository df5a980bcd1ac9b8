"""The command and environment of replicas: macros, and what is known only when a replica starts.

All nodes of a range, and all children of an array, share one command. Their index, and the address of the
first node, are in variables that Batch sets: ``AWS_BATCH_JOB_NODE_INDEX``, ``AWS_BATCH_JOB_ARRAY_INDEX``
and ``AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS`` (which the first node itself does not have; see
https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html). So the program is started by ``sh -c
'export ...; exec "$@"' sh PROGRAM ARGUMENT...``, and where an argument holds the index itself, the script
holds the arguments.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from trainyard.schedulers.aws.batch.shapes import ARRAY, CONTAINER, Group
from trainyard.specs.handles import make_app_handle
from trainyard.specs.substitution import macros

JOB_ID = "TORCHX_JOB_ID"
ROLE_INDEX = "TORCHX_ROLE_IDX"
ROLE_NAME = "TORCHX_ROLE_NAME"
REPLICA_INDEX = "TORCHX_REPLICA_IDX"
RANK0_HOST = "TORCHX_RANK0_HOST"
MAIN_NODE = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
#: Variables that are different for every run of one and the same job.
OF_THE_RUN = frozenset({JOB_ID, "TORCHX_INTERNAL_SESSION_ID", "TORCHX_PARENT_RUN_ID"})

# Stands for the index until the script is written. Private characters: no text of a user's holds them.
_INDEX = "\ue000replica\ue001"
SHELL = ["sh", "-c"]


@dataclass(frozen=True)
class Program:
    """What a replica starts."""

    command: list[str]
    env: dict[str, str]


def program(group: Group, app_id: str, name: str, session: str) -> Program:
    """Return the command and environment of a group of replicas.

    Args:
        group: the replicas.
        app_id: the job's app id.
        name: what the macro ``app_id`` stands for.
        session: the session of the job's handle.
    """
    role, replica = group.role, group.replica
    is_main = group.first == 0
    values = macros.Values(
        img_root="",
        app_id=name,
        replica_id=_INDEX if replica is None else str(replica),
        rank0_env=RANK0_HOST if replica is None or is_main else MAIN_NODE,
    )
    applied = values.apply(role)
    env = {
        **applied.env,
        JOB_ID: make_app_handle("aws_batch", session, app_id),
        ROLE_INDEX: str(group.role_index),
        ROLE_NAME: role.name,
    }
    command = [role.entrypoint, *applied.args]
    if replica is not None:
        env[REPLICA_INDEX] = str(replica)
        if is_main:
            env[RANK0_HOST] = "localhost"
        return Program(command, env)
    env.pop(REPLICA_INDEX, None)
    if group.kind == ARRAY:
        env[RANK0_HOST] = "localhost"
    late = {key: value for key, value in env.items() if _INDEX in value}
    plain = {key: value for key, value in env.items() if key not in late}
    return Program(_wrapped(command, late, group), plain)


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
    """Quote a word for the shell; the index in it is the variable's value."""
    if _INDEX not in text:
        return shlex.quote(text)
    parts = [shlex.quote(part) if part else "" for part in text.split(_INDEX)]
    return f'"${REPLICA_INDEX}"'.join(parts)


def original_command(command: list[str]) -> list[str]:
    """Return the program and arguments that a command was made from, the index as its macro."""
    if command[:2] != SHELL or len(command) < 3 or not command[2].startswith(f"export {REPLICA_INDEX}="):
        return list(command)
    if command[2].endswith('; exec "$@"'):
        return command[4:]
    words = shlex.split(command[2].rpartition("; exec ")[2])
    return [word.replace(f"${REPLICA_INDEX}", macros.replica_id) for word in words]


__all__ = ["CONTAINER", "OF_THE_RUN", "Program", "original_command", "program"]
