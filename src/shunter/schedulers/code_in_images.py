"""Base classes for schedulers whose jobs run in containers: the code is put into their images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shunter.specs.app import AppDef, Role
from shunter.specs.workspace import Workspace
from shunter.workspace.docker_workspace import DockerWorkspaceMixin
from shunter.workspace.images.image_shipment import ImageShipment
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

    def plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan the images that hold the workspace; see `DockerWorkspaceMixin`."""
        return self._images().plan_shipment(app, workspace, self._image_options(cfg))

    def toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where the toolkit is in images."""
        return self._images().toolkit_place(role)

    def has_images(self, images: Sequence[str]) -> bool:
        """Tell whether all of these exact images are still there."""
        return self._images().has_images(images)


class CodeInPushedImages(DockerWorkspaceMixin):
    """A `DockerWorkspaceMixin` in which an implicit workspace travels only if ``image_repo`` is given."""

    def plan_shipment(
        self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]
    ) -> ImageShipment | None:
        """Plan the images that hold the workspace; see `DockerWorkspaceMixin`."""
        if workspace.implicit and not cfg.get("image_repo"):
            workspace = Workspace()
        return super().plan_shipment(app, workspace, cfg)
