"""How a job's code gets to AWS Batch: as a layer over the images of its roles, in a registry."""

from __future__ import annotations

from trainyard.docker.engine import Engine
from trainyard.workspace.image_shipment import DockerWorkspaceMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Options that mean something else to what makes images, where ``platform`` is that of an image.
_OURS = ("platform",)


class BatchImages(DockerWorkspaceMixin):
    """Makes images and pushes them to ``image_repo``, by a Docker daemon or without one.

    Args:
        backend: name of the scheduler.
        docker_client: a client of docker-py to speak to the daemon through; None to find the daemon.
    """

    def __init__(self, backend: str, docker_client: Any = None) -> None:
        self.backend = backend
        self._is_given = docker_client is not None
        if self._is_given:
            self._own_engine = Engine.adopt(docker_client)

    def close(self) -> None:
        """Close the connections to the daemon; a client that was handed in stays open."""
        if self._own_engine is not None and not self._is_given:
            self._own_engine.close()
            self._own_engine = None


def image_options(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as what makes images understands them."""
    return {key: value for key, value in cfg.items() if key not in _OURS}
