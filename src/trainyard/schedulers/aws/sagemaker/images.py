"""Code that travels in the image: for programs that are no scripts, where a repository is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainyard.docker.engine import Engine
from trainyard.schedulers.aws.sagemaker.names import BACKEND
from trainyard.schedulers.aws.sagemaker.training_script import script_of
from trainyard.workspace.image_shipment import DockerWorkspaceMixin

if TYPE_CHECKING:
    from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts
    from trainyard.specs.app import AppDef
    from trainyard.specs.workspace import Workspace


def goes_into_image(app: AppDef, workspace: Workspace, opts: AWSSageMakerOpts) -> bool:
    """Tell whether the workspace is put into the image. A script's code comes by ``/opt/ml/code``."""
    if not opts.image_repo or not workspace or opts.source_dir is not None or opts.git_config is not None:
        return False
    return len(app.roles) > 1 or script_of(app.roles[0]) is None


class ImageMaker(DockerWorkspaceMixin):
    """Plans images with the workspace.

    Args:
        docker_client: a client of docker-py to use; None for the daemon of the environment.
    """

    backend = BACKEND

    def __init__(self, docker_client: Any | None = None) -> None:
        if docker_client is not None:
            self._own_engine = Engine.adopt(docker_client)
