"""For schedulers whose jobs run in images: their code is put into these. A base class for them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from trainyard.progress import Progress
    from trainyard.specs.app import AppDef, Role
    from trainyard.specs.workspace import Workspace
    from trainyard.workspace.images.image_shipment import DockerWorkspaceMixin
    from trainyard.workspace.shipment import Shipment
    from trainyard.workspace.toolkit_files import ToolkitPlace


class CodeInImages:
    """Passes a scheduler's questions about code on to what makes images, which reading commands never import.

    To be named before `Scheduler` among a scheduler's bases.
    """

    def _images(self) -> DockerWorkspaceMixin:
        """Return what makes images."""
        raise NotImplementedError

    def _image_options(self, cfg: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options that making images sees."""
        return cfg

    def plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
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

    def toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where the toolkit is in images."""
        return self._images().toolkit_place(role)

    def has_images(self, images: Sequence[str]) -> bool:
        """Tell whether all of these exact images are still there."""
        return self._images().has_images(images)
