"""The points of a sweep in a role, ``metadata["sweep"]``: each replica runs its own command.

A role with points has one replica for each. Every replica starts a shell whose arguments are all commands,
and which runs the one of its replica. So the table travels with the job on every scheduler, without a file.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shunter.errors import ConfigError
from shunter.redaction import Redactor
from shunter.specs.app import Role
from shunter.specs.training import SWEEP_KEY

#: Runs the command of this replica: argument N, counted from 0, in shell words. Many systems call Python
#: python3 alone.
SELECT = (
    'shift "$TORCHX_REPLICA_IDX" && eval "set -- $1" || exit 64; '
    'if [ "$1" = python ] && ! command -v python >/dev/null 2>&1; then shift; set -- python3 "$@"; fi; '
    'exec "$@"'
)
_BEFORE = ["-c", SELECT, "sweep"]
#: Linux allows a program 2 MiB of arguments and variables (execve(2)); the rest is left for the job.
MOST_BYTES = 1_500_000


@dataclass
class Point:
    """One combination of values.

    Args:
        values: what varies, by name, as text.
        args: all arguments of the component: words of a command line, or values by parameter name.
    """

    values: dict[str, str]
    args: Any


def points_of(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the points of a role, or of its metadata as JSON values; empty without a sweep.

    Each has ``values``, what varies by name, and ``args``, the arguments of the role (of the script, if it
    runs under the toolkit).
    """
    sweep = metadata.get(SWEEP_KEY)
    points = sweep.get("points") if isinstance(sweep, dict) else None
    return list(points) if isinstance(points, list) else []


def label_of(point: Mapping[str, Any]) -> str:
    """Return the label of a point, for messages: ``lr=1e-3 seed=0``, secrets masked."""
    redactor = Redactor()
    return " ".join(f"{name}={redactor.named(name, value)}" for name, value in point["values"].items())


def index_of(role: str, replica: int) -> int:
    """Return the index of the point that a replica of a sweep belongs to.

    Where points are jobs, their roles are called ``INDEX.ROLE``.
    """
    first = role.partition(".")[0]
    return int(first) if first.isdecimal() else replica


def run_own_command(role: Role, commands: Sequence[Sequence[str]]) -> None:
    """Let each replica of a role run its own command, in place."""
    role.entrypoint = "sh"
    role.args = [*_BEFORE, *(shlex.join(command) for command in commands)]


def own_command(entrypoint: str, args: Sequence[str], index: int) -> list[str]:
    """Return the command of a replica: the one from `run_own_command`, or else that of its role."""
    if entrypoint == "sh" and list(args[: len(_BEFORE)]) == _BEFORE:
        return shlex.split(args[len(_BEFORE) + index])
    return [entrypoint, *args]


def nothing_failed() -> ConfigError:
    """Return the error for ``--failed`` on a sweep without failed points."""
    return ConfigError("no point of the sweep has failed", hint="`shunter points` shows their states.")
