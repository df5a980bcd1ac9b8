"""TorchX's names for containers (``torchx.schedulers.docker_scheduler``)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from shunter.compat.torchx_settings import ENV_TORCHX_IMAGE as ENV_TORCHX_IMAGE
from shunter.docker.engine import Engine
from shunter.errors import ShunterError
from shunter.specs.status import AppState

log = logging.getLogger(__name__)
LABEL_VERSION = "torchx.pytorch.org/version"
LABEL_APP_ID = "torchx.pytorch.org/app-id"
LABEL_ROLE_NAME = "torchx.pytorch.org/role-name"
LABEL_REPLICA_ID = "torchx.pytorch.org/replica-id"
NETWORK = "torchx"
#: States of the Docker daemon; "exited" is SUCCEEDED or FAILED by the exit code.
CONTAINER_STATE: dict[str, AppState] = {
    "created": AppState.SUBMITTED,
    "restarting": AppState.PENDING,
    "running": AppState.RUNNING,
    "paused": AppState.PENDING,
    "removing": AppState.PENDING,
    "dead": AppState.FAILED,
}


@dataclass
class DockerContainer:
    """The arguments with which docker-py creates a container."""

    image: str
    command: list[str]
    kwargs: dict[str, object]


@dataclass
class DockerJob:
    """The containers of a job."""

    app_id: str
    containers: list[DockerContainer]


def has_docker() -> bool:
    """Tell whether a Docker daemon answers."""
    engine = Engine.from_env()
    try:
        engine.request("GET", "/_ping")
    except (ShunterError, OSError):
        return False
    finally:
        engine.close()
    return True


def ensure_network(client: Any | None = None) -> None:
    """Make the network `NETWORK` unless it exists.

    Args:
        client: a client of docker-py; by default that of the environment.
    """
    import docker

    try:
        (client or docker.from_env()).networks.create(name=NETWORK, driver="bridge", check_duplicate=True)
    except docker.errors.APIError as error:
        if "already exists" not in str(error):
            raise


def _to_str(a: str | bytes) -> str:
    return a.decode("utf-8") if isinstance(a, bytes) else a


def state_of_container(container: Any) -> AppState:
    """Return the state of a container of docker-py."""
    if container.status == "exited":
        return AppState.SUCCEEDED if container.attrs["State"]["ExitCode"] == 0 else AppState.FAILED
    return CONTAINER_STATE.get(container.status, AppState.UNKNOWN)
