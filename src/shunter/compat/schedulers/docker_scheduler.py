"""The class of ``torchx.schedulers.docker_scheduler``, and states of containers."""

from __future__ import annotations

import contextlib
from typing import Any

from shunter.compat.schedulers.derivable import DerivableScheduler
from shunter.docker.command import DockerCommand
from shunter.errors import ShunterError
from shunter.specs.status import AppState
from shunter.workspace.docker_workspace import DockerWorkspaceMixin

#: States of the Docker daemon; "exited" is SUCCEEDED or FAILED by the exit code.
CONTAINER_STATE: dict[str, AppState] = {
    "created": AppState.SUBMITTED,
    "restarting": AppState.PENDING,
    "running": AppState.RUNNING,
    "paused": AppState.PENDING,
    "removing": AppState.PENDING,
    "dead": AppState.FAILED,
}


class DockerScheduler(DockerWorkspaceMixin, DerivableScheduler):
    """Runs jobs in containers of this machine."""

    ours = "shunter.schedulers.docker_scheduler:DockerScheduler"

    def _get_app_state(self, container: Any) -> AppState:
        """Return the state of a container of docker-py."""
        if container.status == "exited":
            return AppState.SUCCEEDED if container.attrs["State"]["ExitCode"] == 0 else AppState.FAILED
        return CONTAINER_STATE.get(container.status, AppState.UNKNOWN)


def has_docker() -> bool:
    """Tell whether a Docker daemon answers."""
    with contextlib.suppress(ShunterError):
        return bool(DockerCommand().facts())
    return False


def _to_str(a: str | bytes) -> str:
    return a.decode("utf-8") if isinstance(a, bytes) else a
