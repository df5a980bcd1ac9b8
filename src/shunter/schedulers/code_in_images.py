"""Base classes for schedulers whose jobs run in containers: the code is put into their images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shunter.progress import Progress
from shunter.specs.app import AppDef, Role
from shunter.specs.workspace import Workspace
from shunter.workspace.images.image_shipment import DockerWorkspaceMixin, ImageMaker
from shunter.workspace.shipment import Shipment
from shunter.workspace.toolkit_files import ToolkitPlace


class CodeInImages:
    """Delegates questions about code to the image builder.

    Must precede `Scheduler` among a scheduler's base classes.
    """

    def _images(self) -> DockerWorkspaceMixin:
        """Return the image builder."""
        raise NotImplementedError

    def _image_options(self, cfg: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options that are passed to the image builder."""
        return cfg

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan the images that hold the workspace; see `DockerWorkspaceMixin`."""
        return self._images().plan_shipment(app, workspace, self._image_options(cfg))

    def build_workspaces(
        self,
        roles: Sequence[Role],
        cfg: Mapping[str, Any],
        workspace: Workspace | str = ".",
        progress: Progress | None = None,
    ) -> None:
        """Make the images of roles now; see `DockerWorkspaceMixin`."""
        self._images().build_workspaces(roles, self._image_options(cfg), workspace, progress)

    def _toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where the toolkit is in images."""
        return self._images().toolkit_place(role)

    def has_images(self, images: Sequence[str]) -> bool:
        """Tell whether all of these exact images are still there."""
        return self._images().has_images(images)


class CodeInPushedImages(CodeInImages):
    """`CodeInImages` for machines elsewhere, which pull the images from the repository ``image_repo``.

    An implicit workspace travels only if ``image_repo`` is given.
    """

    backend: str
    _docker_client: Any = None
    _made_images: ImageMaker | None = None

    def _images(self) -> ImageMaker:
        """Return the image builder, created when it is first needed."""
        if self._made_images is None:
            self._made_images = ImageMaker(self.backend, self._docker_client)
        return self._made_images

    def _close_images(self) -> None:
        """Close the connections to registries and to the Docker daemon."""
        if self._made_images is not None:
            self._made_images.close()

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan the images that hold the workspace; see `DockerWorkspaceMixin`."""
        if workspace.implicit and not cfg.get("image_repo"):
            workspace = Workspace()
        return super()._plan_shipment(app, workspace, cfg)
