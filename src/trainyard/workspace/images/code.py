"""What is put into images for one job, read once for all of its roles."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import trainyard
from trainyard.workspace.images.context import find_context
from trainyard.workspace.images.image_config import LABEL_FINGERPRINT, LABEL_TOOLKIT, LABEL_VERSION
from trainyard.workspace.images.image_content import Cargo, no_content
from trainyard.workspace.snapshot import snapshot
from trainyard.workspace.toolkit_files import toolkit_archive

if TYPE_CHECKING:
    from trainyard.specs.workspace import Workspace
    from trainyard.workspace.manifest import Manifest

#: Changed whenever the same files would be laid out in another way.
LAYOUT = 2


class Code:
    """A workspace, fixed; the toolkit, if a role needs it; and the workspace's own Dockerfile.

    Args:
        workspace: what travels; an empty one is nothing but the toolkit.
        with_toolkit: whether a role needs the toolkit.
        growing: absolute paths of files that are known to be appended to all the time.

    Raises:
        WorkspaceError: the workspace cannot be read, or has no files.
        ConfigError: the toolkit is needed, and is not there.
    """

    def __init__(
        self, workspace: Workspace, *, with_toolkit: bool, growing: frozenset[str] = frozenset()
    ) -> None:
        self.workspace = workspace
        self.snapshot = snapshot(workspace, growing=growing) if workspace else None
        self.toolkit = toolkit_archive() if with_toolkit else None
        self.context = find_context(self.snapshot, workspace.projects) if self.snapshot else None

    @property
    def manifest(self) -> Manifest | None:
        """The workspace's manifest."""
        return self.snapshot.manifest if self.snapshot else None

    def roots(self, *, with_toolkit: bool) -> str:
        """Return what names the layers that differ little from each other: the same directories' ones."""
        directories = str(self.workspace.absolute()) if self.workspace else ""
        return f"{directories} with the toolkit" if with_toolkit else directories

    @property
    def labels(self) -> dict[str, str]:
        """Labels of all images that it is put into."""
        own = {LABEL_VERSION: trainyard.__version__}
        return {**own, LABEL_FINGERPRINT: self.manifest.fingerprint} if self.manifest else own

    def labels_of(self, *, with_toolkit: bool) -> dict[str, str]:
        """Return the labels of an image that it is put into, with the toolkit or without."""
        return {**self.labels, LABEL_TOOLKIT: self._toolkit_digest} if with_toolkit else self.labels

    @property
    def _toolkit_digest(self) -> str:
        return hashlib.sha256(self.toolkit).hexdigest() if self.toolkit else ""

    def key(self, image: str, *, with_toolkit: bool, platform: str | None = None) -> str:
        """Return the tag of the image that comes of an image and this code. Nothing is asked for it."""
        parts = [
            LAYOUT,
            image,
            self.manifest.fingerprint if self.manifest else "",
            self._toolkit_digest if with_toolkit else "",
            self.context.fingerprint if self.context else "",
            platform or "",
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    def cargo(self, *, with_workspace: bool, with_toolkit: bool) -> Cargo:
        """Return it as what goes into a layer."""
        toolkit = self.toolkit if with_toolkit else None
        if self.snapshot is None or not with_workspace:
            return Cargo(None, no_content, toolkit)
        return Cargo(self.snapshot.manifest.entries, self.snapshot.read, toolkit)
