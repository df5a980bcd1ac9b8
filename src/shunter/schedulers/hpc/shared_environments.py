"""Python environments on a cluster's shared storage, which the toolkit builds and keeps there."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from typing import Any

from shunter._toolkit.environment_build import find_uv
from shunter._toolkit.environment_description import Description
from shunter.progress import Progress
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.storage import Storage
from shunter.schedulers.hpc.submission import put_toolkit
from shunter.workspace import environment

#: Runs the toolkit by the Python that jobs find.
_TOOLKIT = (
    'toolkit=$1; shift; exec "$(command -v python || command -v python3)" -S "$toolkit" environment "$@"'
)


def folder_in(shared: str) -> str:
    """Return the folder of environments on the shared storage."""
    return posixpath.join(shared, "environments")


def build(
    commands: Commands, storage: Storage, description: Description, shared: str, progress: Progress
) -> str:
    """Build a Python environment on the shared storage, unless it is there; returns what leads to it.

    It is built where the storage is seen, for the ``python`` that jobs find there, so that nodes need no
    network.

    Raises:
        BackendError: it cannot be built; the message has the installer's last lines.
    """
    toolkit = put_toolkit(storage, shared)
    progress.step(f"building the environment of {description.source} {commands.where}")
    answer = commands.shell(
        _TOOLKIT,
        [toolkit, "build", folder_in(shared)],
        stdin=environment.request_for(description, "python", "" if commands.host else find_uv()),
        timeout=environment.BUILD_SECONDS,
    )
    result = environment.result_of(answer.code, answer.out, answer.err)
    environment.report(result, description, progress)
    return str(result["pointer"])


def unused(commands: Commands, storage: Storage, shared: str, older_than: float) -> list[dict[str, Any]]:
    """Return the environments on the shared storage that no job has used for ``older_than`` seconds."""
    if not storage.exists(folder_in(shared)):
        return []
    answer = _ask_toolkit(commands, storage, shared, "unused", f"{older_than:g}")
    return list(json.loads(answer))


def remove(commands: Commands, storage: Storage, shared: str, names: Sequence[str]) -> int:
    """Remove environments from the shared storage; returns how many bytes that frees."""
    return int(json.loads(_ask_toolkit(commands, storage, shared, "remove", *names))) if names else 0


def _ask_toolkit(commands: Commands, storage: Storage, shared: str, action: str, *words: str) -> str:
    arguments = [put_toolkit(storage, shared), action, folder_in(shared), *words]
    answer = commands.shell(_TOOLKIT, arguments, timeout=environment.BUILD_SECONDS)
    if answer.code != 0:
        raise environment.environment_error(answer.err)
    return answer.text
