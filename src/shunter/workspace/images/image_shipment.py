"""The shipment of a job's code in images, which `shunter.workspace.docker_workspace` plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shunter.errors import WorkspaceChangedError
from shunter.progress import Progress
from shunter.workspace.code_store import Store
from shunter.workspace.images.image_content import JobCode
from shunter.workspace.images.make_image import (
    CodeImage,
    ImageDestination,
    WantedImage,
)
from shunter.workspace.manifest import Manifest
from shunter.workspace.shipment import ATTEMPTS, Report


class ImageShipment:
    """The shipment of a job's code in the images that the job needs."""

    def __init__(self, code: JobCode, wanted: Sequence[WantedImage], destination: ImageDestination) -> None:
        self._code = code
        self._wanted = tuple(wanted)
        self._destination = destination

    @property
    def manifest(self) -> Manifest | None:
        """What is shipped; None if it is nothing but the toolkit."""
        return self._code.manifest

    @property
    def report(self) -> Report:
        """What the user should know of it."""
        return self._code.snapshot.report if self._code.snapshot else Report()

    def plan(self) -> dict[str, Any]:
        """Return what will be shipped, as JSON values."""
        manifest, report, context = self.manifest, self.report, self._code.context
        return {
            "kind": "image",
            "fingerprint": manifest.fingerprint if manifest else None,
            "files": manifest.files if manifest else 0,
            "size": manifest.size if manifest else 0,
            "dockerfile": context.dockerfile if context else None,
            "images": [
                {"base": wanted.image, "image": wanted.planned, "toolkit": wanted.toolkit}
                for wanted in self._wanted
            ],
            "secrets": report.secrets,
            "problems": [list(problem) for problem in report.problems],
        }

    def ship(self, progress: Progress) -> dict[str, str]:
        """Make the images; returns planned references and the exact ones that replace them."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                pinned = self._make_all(progress)
                break
            except WorkspaceChangedError:
                code = self._code
                if attempt == ATTEMPTS or code.workspace.frozen or code.snapshot is None:
                    raise
                progress.step("the workspace has changed; reading it again")
                self._code = JobCode(code.workspace, with_toolkit=code.toolkit is not None)
        if self._code.snapshot is not None:
            Store().keep_sources(self._code.snapshot)
        return pinned

    def _make_all(self, progress: Progress) -> dict[str, str]:
        """Make one image after the other: they share most of the work, and few jobs have several."""
        return {
            wanted.planned: CodeImage(wanted, self._code, self._destination, progress).make()
            for wanted in self._wanted
        }
