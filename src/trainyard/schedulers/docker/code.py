"""How a job's code gets into its containers: as a layer over the images of its roles."""

from __future__ import annotations

from trainyard.workspace.image_shipment import DockerWorkspaceMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.docker.engine import Engine


class LocalImages(DockerWorkspaceMixin):
    """Makes images in the daemon that runs the jobs, so that no registry is needed.

    Args:
        backend: name of the scheduler.
        engine: the daemon.
    """

    requires_image_repo = False

    def __init__(self, backend: str, engine: Engine) -> None:
        self.backend = backend
        self._engine = engine

    def docker_engine(self) -> Engine:
        """Return the client of the daemon."""
        return self._engine
